"""The package's operators in torch's dispatcher, and the calls that have to go through it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from minrnn_gen.errors import BadInput

# The remedy where torch's own layers support the request.
OF_REPLACED = (
    "a layer that was replaced is torch's again after layer.use_torch(), all of a model are after replace(model, back=True), "
    "and replace(model, leave=[…]) leaves some"
)
LIBRARY = torch.library.Library("minrnn_gen", "DEF")
# For the name of an operator, a function of its arguments with the transforms of torch.func.
UNDER_TRANSFORMS: dict[str, Callable[..., Any]] = {}
_NO_TRANSFORMS = (
    "torch.func.vmap or another transform of torch.func was asked for over a call of minrnn_gen that has none; recurrence, "
    f"scan and the layers have them, and torch.autograd has gradients of all; {OF_REPLACED}"
)
_NO_TRACING = (
    "torch.jit.trace was asked for over a recurrence of minrnn_gen, which it would record as constants; torch.export and "
    f"torch.compile record it; {OF_REPLACED}"
)
_NO_ONNX = (
    "an ONNX file was asked for over a recurrence of minrnn_gen, for which ONNX has no operator; export what "
    "minrnn_gen.torch.export_operators returns, translated by onnx_translations(program), or the layer of torch.nn with this "
    f"state_dict; {OF_REPLACED}"
)
_NO_TABLE = (
    "an ONNX file was asked for over an operator that was exported, without how it is written; give torch.onnx.export "
    "custom_translation_table=minrnn_gen.torch.onnx_translations(program)"
)
_NO_SCRIPT = (
    "torch.jit.script was asked for over a layer of minrnn_gen, which TorchScript cannot read; torch.export and torch.compile "
    f"take it, and its state_dict fits the layer of torch.nn; {OF_REPLACED}"
)
NO_FORWARD_MODE = (
    "a derivative in forward mode was asked for, which this call of minrnn_gen does not have; torch.autograd.grad has its "
    f"gradients; {OF_REPLACED}"
)
_NO_BATCHED_GRADIENTS = (
    "gradients of a recurrence of minrnn_gen were asked for as a batch (is_grads_batched or vectorize), which it has not; "
    "ask for them one after the other, with is_grads_batched=False or vectorize=False"
)
# An export to ONNX has imported it; asking torch would import it.
_ONNX_EXPORTER = "torch.onnx._internal.exporter"
# Whether an exported operator runs that is being written into an ONNX file.
_IS_TRANSLATED = ContextVar("is_translated", default=False)
_PLAIN_TYPES = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any], record: Callable[..., Any]) -> Any:
    """Define and return an operator that `run` computes, `fake` computes without values, and `record` records for autograd.

    Within a transform of torch.func that torch.compile traces, its entry of `UNDER_TRANSFORMS` computes it; without an entry it
    is refused. Uses `Library.define` and `impl`: with `custom_op` and `register_autograd` a call with lists of tensors takes
    some 80 us longer.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for backend in ("CPU", "CUDA"):
        LIBRARY.impl(name, run, backend)

    def record_or_transform(*arguments: Any) -> Any:
        if not torch._C._are_functorch_transforms_active():
            return record(*arguments)
        if name not in UNDER_TRANSFORMS:
            raise BadInput(_NO_TRANSFORMS)
        return UNDER_TRANSFORMS[name](*arguments)

    LIBRARY.impl(name, record_or_transform, "Autograd")

    def fake_outside_of_onnx(*arguments: Any) -> Any:
        # An exporter of ONNX inspects a program of torch.export before it translates it.
        if _writes_onnx() and not _IS_TRANSLATED.get():
            raise BadInput(_NO_ONNX)
        return fake(*arguments)

    torch.library.register_fake(f"minrnn_gen::{name}", fake_outside_of_onnx, lib=LIBRARY)
    torch.library.register_vmap(f"minrnn_gen::{name}", _refuse_vmap, lib=LIBRARY)
    return getattr(torch.ops.minrnn_gen, name).default


def is_plain(tensors: Sequence[Any], takes_transforms: bool = False) -> bool:
    """Say whether only autograd observes a call: no compiler, no dispatch mode, no tensor subclass, no tensor without values.

    Any tensor but the first may be None. Such calls bypass the dispatcher. Raises BadInput within torch.jit.trace. Unless the
    caller `takes_transforms`, also raises it within a transform of torch.func and for tensors with tangents, which a call would
    lose.
    """
    if torch.compiler.is_compiling():
        return False
    if torch._C._is_tracing():
        raise BadInput(_NO_TRACING)
    if torch._C._are_functorch_transforms_active():
        if takes_transforms:
            return False
        raise BadInput(_NO_TRANSFORMS)
    if forward_ad._current_level >= 0 and any(map(_has_tangent, tensors)):
        if takes_transforms:
            return False
        raise BadInput(NO_FORWARD_MODE)
    if torch._C._len_torch_dispatch_stack():
        return False
    return _PLAIN_TYPES.issuperset(map(type, tensors)) and not tensors[0].is_meta


def has_transforms() -> bool:
    """Say whether a transform of torch.func is active, or derivatives in forward mode are computed."""
    return bool(torch._C._are_functorch_transforms_active()) or forward_ad._current_level >= 0


def _has_tangent(tensor: Any) -> bool:
    has_derivatives = isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex())
    return has_derivatives and forward_ad.unpack_dual(tensor).tangent is not None


def refuse_transforms(*tensors: Any) -> None:
    """Refuse to run within a transform of torch.func, and with tangents of these tensors."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise BadInput(_NO_TRANSFORMS)
    if forward_ad._current_level >= 0 and any(map(_has_tangent, tensors)):
        raise BadInput(NO_FORWARD_MODE)


def refuse_others() -> None:
    """Refuse to be traced, and to run within a transform, as `refuse_tracing` and `refuse_transforms` do."""
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        refuse_tracing()
    elif torch._C._are_functorch_transforms_active():
        raise BadInput(_NO_TRANSFORMS)


def refuse_tracing() -> None:
    """Refuse tracing by torch.jit and by exporters of ONNX, before any size is read: sizes are tensors there."""
    if torch.compiler.is_compiling():
        if _writes_onnx():
            raise BadInput(_NO_ONNX)
    elif torch._C._is_tracing():
        raise BadInput(_NO_ONNX if torch.onnx.is_in_onnx_export() else _NO_TRACING)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _writes_onnx() -> bool:
    """Say whether an ONNX file is being written; a compiler that traced torch's own function would get False."""
    return _ONNX_EXPORTER in sys.modules and torch.onnx.is_in_onnx_export()


@contextlib.contextmanager
def exported(has_translation: bool) -> Iterator[None]:
    """Compute an exported operator by the operators here; refuse one without a translation while an ONNX file is written."""
    if not _writes_onnx():
        yield
        return
    if not has_translation:
        raise BadInput(_NO_TABLE)
    before = _IS_TRANSLATED.set(True)
    try:
        yield
    finally:
        _IS_TRANSLATED.reset(before)


def refuse_scripting() -> NoReturn:
    """Refuse TorchScript, which would otherwise stop at the first line outside its language."""
    raise BadInput(_NO_SCRIPT)


def dense_gradients(gradients: Sequence[Any]) -> list[Any]:
    """Return arriving gradients, any of them None, with sparse ones made dense.

    Raises BadInput for gradients that autograd has batched as one tensor without memory of its own.
    """
    dense = [
        gradient.to_dense() if type(gradient) is torch.Tensor and gradient.layout is not torch.strided else gradient
        for gradient in gradients
    ]
    if any(type(gradient) is torch.Tensor and not torch._C._has_storage(gradient) for gradient in dense):
        raise BadInput(_NO_BATCHED_GRADIENTS)
    return dense


def unbatched(gradients: Sequence[Any]) -> Sequence[Any]:
    """Return arriving gradients or tangents as `dense_gradients` does; within transforms of torch.func, unchanged."""
    return gradients if torch._C._are_functorch_transforms_active() else dense_gradients(gradients)


def records(tensors: Sequence[Any]) -> bool:
    """Say whether autograd records a call with these tensors, any of which may be None."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def below_autograd(operator: Any, *arguments: Any) -> Any:
    """Call an operator below autograd; its own recording function calls this."""
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def _refuse_vmap(*_: Any) -> NoReturn:
    raise BadInput(_NO_TRANSFORMS)
