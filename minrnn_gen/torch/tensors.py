"""Arguments of functions and layers that have to be tensors: dense and real ones, their shapes and devices, and integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.pool import PAD_SLOT
from minrnn_gen.call.pool_checks import check_range, check_writes
from minrnn_gen.call.sequences import are_numbers, as_marks, listed_integers
from minrnn_gen.errors import BadInput, kind_of
from minrnn_gen.gpu.memory import inspect
from minrnn_gen.precision import why_unsupported
from minrnn_gen.torch.dtypes import PRECISIONS

# The dtypes that kernels compute with, in words.
_REAL = "float64, float32, float16 or bfloat16"
# The device of an array without values, which is neither host memory nor one of CUDA.
_NO_DEVICE = -1

# torch 2.6 does not say: it records a layer for an export as it does for a compiler.
_EXPORTS: Callable[[], bool] = getattr(torch.compiler, "is_exporting", bool)
# Compilers of torch before it say that they export whatever they trace.
_SAYS_EXPORTS = torch.__version__ >= "2.11"


def is_exporting() -> bool:
    """Say whether torch.export records this; False where this torch does not distinguish it from compiling."""
    return _EXPORTS() and (_SAYS_EXPORTS or not torch.compiler.is_dynamo_compiling())


def check_tensor(value: Any, name: str) -> None:
    """Refuse everything but a dense tensor."""
    if not isinstance(value, torch.Tensor):
        raise BadInput(f"{name} is {kind_of(value)}; a torch tensor is expected")
    if value.is_nested:
        raise BadInput(
            f"{name} is a nested tensor; a dense one is expected: pad its sequences and give their lengths, or join them and "
            f"give cu_seqlens"
        )
    if value.layout is not torch.strided:
        raise BadInput(f"{name} has layout {value.layout}; a dense tensor is expected, which to_dense() returns")


def check_real(tensor: Any, name: str, axes: int | None = None) -> None:
    """Refuse everything but a dense tensor of real numbers that kernels compute with, with `axes` axes unless that is None."""
    check_tensor(tensor, name)
    if tensor.dtype not in PRECISIONS:
        raise BadInput(f"{name} has dtype {tensor.dtype}; {_REAL} is expected{why_unsupported(tensor.dtype)}")
    if axes is not None and tensor.dim() != axes:
        raise BadInput(f"{name} has shape {list(tensor.shape)}; {axes} axes are expected")


def check_shape(tensor: Any, name: str, *shapes: Sequence[int | str]) -> None:
    """Refuse a tensor that is not real, or of none of these shapes; a size that is text is a name and may be any."""
    check_real(tensor, name)
    if not any(_fits(tensor.shape, shape) for shape in shapes):
        *first, last = (f"[{', '.join(map(str, shape))}]" for shape in shapes)
        expected = f"{', '.join(first)} or {last}" if first else last
        raise BadInput(f"{name} has shape {list(tensor.shape)}; {expected} is expected")


def check_devices(tensors: Mapping[str, Any]) -> None:
    """Refuse tensors, any of them None, on another device than the first."""
    (first, like), *others = ((name, tensor) for name, tensor in tensors.items() if tensor is not None)
    for name, tensor in others:
        if tensor.device != like.device:
            raise BadInput(f"{name} is on {tensor.device}, but {first} is on {like.device}; move one of them")


def check_slots(slots: Any, name: str, count: int, are_written: bool = True) -> None:
    """Refuse host slots beyond a pool of `count` slots, except -1, and duplicates where slots are written."""
    if not slots.is_cuda:
        check_range(slots.numpy(), name, count, PAD_SLOT)
        if are_written:
            check_writes(slots[slots != PAD_SLOT].numpy(), name)


def _fits(shape: Sequence[int], wanted: Sequence[int | str]) -> bool:
    return len(shape) == len(wanted) and all(
        isinstance(size, str) or size == own for own, size in zip(shape, wanted, strict=True)
    )


def integers_in(value: Any, name: str) -> Any:
    """Return lengths or boundaries as a tensor, those in a list or tuple as int64 in host memory; None stays None."""
    if isinstance(value, (list, tuple)):
        return torch.tensor(listed_integers(value, name), dtype=torch.int64)
    if value is not None and not isinstance(value, torch.Tensor):
        raise BadInput(f"{name} is {kind_of(value)}; a torch tensor or a list of integers is expected")
    return value


def marks_in(resets: Any, name: str = "resets") -> Any:
    """Return resets as bool, see `sequences.as_marks`; None stays None.

    Raises BadInput for other values than 0 and 1, and for numbers where a compiler knows no values.
    """
    if not isinstance(resets, torch.Tensor) or not are_numbers(resets):
        return resets
    if torch.compiler.is_compiling():
        raise BadInput(f"{name} has dtype {resets.dtype} within torch.compile, which knows no values; give {name}.bool()")
    return resets == 1 if resets.is_meta else as_marks(resets, name)


def autocasts(x: torch.Tensor) -> bool:
    """Say whether autocast is on where a tensor is; it knows nothing of tensors without values."""
    # The first check takes a tenth of the others' time.
    return torch._C._is_any_autocast_enabled() and not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_values(value: Any, name: str) -> Array:
    """Describe a tensor that comes with an x on the meta device, as if without gaps: it has a shape and no memory."""
    check_tensor(value, name)
    if not value.is_meta:
        if name in ("lengths", "cu_seqlens"):
            return inspect(value, name)
        raise BadInput(f"{name} is on {value.device}, but x is on meta; move one of them")
    shape = tuple(value.shape)
    return Array(name, "torch", value, 0, shape, contiguous_strides(shape), str(value.dtype).removeprefix("torch."), _NO_DEVICE)
