"""`minrnn_gen.torch.scan`: the raw scan as an operator that torch records, traces and compiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from minrnn_gen.errors import BadInput
from minrnn_gen.precision import precision_storing
from minrnn_gen.raw_scan.arguments import check_scan
from minrnn_gen.raw_scan.map_arguments import CARRIED, Form, check_form, check_pairs, check_scan_of_maps
from minrnn_gen.raw_scan.pairs import Library, Pairs
from minrnn_gen.raw_scan.scan import scan as run_scan
from minrnn_gen.raw_scan.scan import scan_backward as run_scan_backward
from minrnn_gen.torch.operators.dispatch import below_autograd, define, has_transforms, is_plain, records, unbatched
from minrnn_gen.torch.operators.recorded import RecurrenceFunction, Tensors, gradients_once
from minrnn_gen.torch.sequence_group.group import member_of
from minrnn_gen.torch.sequence_group.scans import scan_pieces
from minrnn_gen.torch.tensors import autocasts, check_tensor, without_values

_OPTIONS = "bool log_a, bool reverse, int axis, bool is_full=False"
# For maps of the other forms, which are scans of numbers.
_LIBRARY = Library(torch.stack, torch.cat, torch.zeros_like, lambda pairs: torch.complex(pairs[..., 0], pairs[..., 1]))


def scan(
    a: Any,
    b: Any,
    h0: Any = None,
    *,
    form: Form = "scalar",
    log_a: bool = False,
    reverse: bool = False,
    axis: int = 1,
    sequence_group: Any = None,
) -> tuple[Any, Any]:
    """Return (y, final) of h[t] = a[t] h[t-1] + b[t] along `axis`, with gradients of a, b and h0 where they require them.

    Shapes, dtypes and forms are those of `minrnn_gen.scan`. Under autocast, a and b of two dtypes take the wider one. Tensors
    on the meta device give results there. Gradients have gradients, and transforms of torch.func work.
    sequence_group: a process group over whose ranks `axis` is split (docs/how-to/several-gpus.md), for form "scalar" alone.
    Raises BadInput for arguments that do not fit.
    """
    form = check_form(form, log_a)
    if sequence_group is not None:
        if form != "scalar":
            raise BadInput(f"sequence_group is given with form {form!r}, whose maps are not composed over ranks; leave it out")
        return scan_pieces(a, b, h0, member_of(sequence_group), log_a=log_a, reverse=reverse, axis=axis)  # type: ignore[no-any-return]
    check_tensor(a, "a")
    check_tensor(b, "b")
    if h0 is not None:
        check_tensor(h0, "h0")
    if autocasts(a) and a.dtype is not b.dtype:
        wider = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(wider), b.to(wider)
    if form in ("rotation", "dual"):
        index, is_constant = check_pairs(a, b, axis, reverse, h0=h0)
        dtype = b.dtype
        if is_constant and b.is_cuda:  # powers of one map would repeat the same rounding error
            a, b, h0 = (None if tensor is None else tensor.double() for tensor in (a, b, h0))
        y, final = Pairs(_LIBRARY, scan, form, index, reverse).forward(a.broadcast_to(b.shape), b, h0)
        return y.to(dtype), final.to(dtype)
    tensors, is_full = (a, b, h0), form == "full"
    if not is_plain(tensors, takes_transforms=True):
        if not torch.compiler.is_compiling() and has_transforms():
            if is_full and a.dim() < b.dim():  # one map of all steps becomes a map of each
                tensors = (a.expand(*b.shape, b.shape[-1]), b, h0)
            return _ScanFunction.apply(_Way(log_a, reverse, axis % b.dim(), is_full), *tensors)  # type: ignore[no-any-return]
        if a.is_meta and not torch.compiler.is_compiling():
            _check_meta(tensors, log_a, reverse, axis, is_full)
        return _SCAN(*tensors, log_a, reverse, axis, is_full)  # type: ignore[no-any-return]
    if records(tensors):
        return RecurrenceFunction.of(_Straight(log_a, reverse, axis, is_full), tensors)  # type: ignore[no-any-return]
    return run_scan(a, b, h0, form=form, log_a=log_a, reverse=reverse, axis=axis)


@dataclass(frozen=True, slots=True)
class _Way:
    """Options of a scan in addition to its tensors a, b, h0."""

    log_a: bool
    reverse: bool
    axis: int
    is_full: bool

    results_count: int = 2
    returned_count: int | None = None

    @property
    def _options(self) -> tuple[bool, bool, int, bool]:
        return (self.log_a, self.reverse, self.axis, self.is_full)

    def read_again(self, tensors: Tensors) -> Tensors:
        a, _, h0 = tensors
        return (a, None, h0)

    def forward(self, tensors: Tensors) -> Tensors:
        return below_autograd(_SCAN, *tensors, *self._options)  # type: ignore[no-any-return]

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        (a, _, h0), (y,), (dy, dfinal) = tensors, results, gradients
        dy = torch.zeros_like(y) if dy is None else dy
        if torch.is_grad_enabled():
            return self.recorded_back(a, h0, y, dy, dfinal)
        da, db, dh0 = _SCAN_BACKWARD(a, y, dy, h0, dfinal, *self._options)
        return (da, db, None if h0 is None else dh0)

    def recorded_back(self, a: Any, h0: Any, y: Any, dy: Any, dfinal: Any) -> Tensors:
        """Return the gradients by a scan that is recorded as well, so that they have gradients."""
        if not y.shape[self.axis]:
            return (torch.zeros_like(a), torch.zeros_like(y), h0 if h0 is None or dfinal is None else dfinal)
        carried = _fake_state(y, self.axis, self.is_full).dtype
        wide, dy = a.to(carried), dy.to(carried)
        first, last = (-1, 0) if self.reverse else (0, -1)
        if dfinal is not None:
            dy = dy.index_add(
                self.axis, torch.tensor([last % y.shape[self.axis]], device=y.device), dfinal.unsqueeze(self.axis)
            )
        if self.is_full:
            return self._recorded_back_of_maps(a, h0, y, dy)
        later, _ = scan(
            self._shifted(wide, torch.zeros_like(wide.select(self.axis, 0)), not self.reverse).conj().resolve_conj(),
            dy,
            log_a=self.log_a,
            reverse=not self.reverse,
            axis=self.axis,
        )
        before = self._before(y.to(carried), h0)
        of_a, factor = later * before.conj(), wide.exp() if self.log_a else wide
        da = of_a * factor if self.log_a else of_a
        dh0 = None if h0 is None else (later * factor.conj()).select(self.axis, first)
        return (da.to(a.dtype), later.to(y.dtype), dh0)

    def _recorded_back_of_maps(self, a: Any, h0: Any, y: Any, dy: Any) -> Tensors:
        """Return the gradients of full maps; dy includes the final state's."""
        way, is_constant = replace(self, axis=self.axis % y.dim()), a.dim() < y.dim()
        transposed = a.to(dy.dtype).expand(*y.shape, y.shape[-1]).mT
        entering = torch.zeros_like(transposed.select(way.axis, 0))
        maps = way._shifted(transposed, entering, not self.reverse)
        later, _ = scan(maps, dy, form="full", reverse=not self.reverse, axis=way.axis)
        da = later.unsqueeze(-1) * way._before(y.to(dy.dtype), h0).unsqueeze(-2)
        da = da.sum(tuple(range(way.axis + 1))) if is_constant else da
        dh0 = None if h0 is None else _applied(transposed, later).select(way.axis, -1 if self.reverse else 0)
        return (da.to(a.dtype), later.to(y.dtype), dh0)

    def moved(self, tensors: Tensors, y: Any, tangents: Tensors) -> tuple[Any, Any]:
        """Return the derivatives of y and of the final state along tangents of a, b and h0, None for zeros."""
        (a, _, h0), (da, db, dh0) = tensors, tangents
        db = torch.zeros_like(y) if db is None else db
        if da is not None and y.shape[self.axis]:
            carried = _fake_state(y, self.axis, self.is_full).dtype
            of_a, before = da.to(carried), self._before(y.to(carried), h0)
            of_a = of_a * a.to(carried).exp() if self.log_a else of_a
            db = (db.to(carried) + (_applied(of_a, before) if self.is_full else of_a * before)).to(y.dtype)
        form: Form = "full" if self.is_full else "scalar"
        return scan(a, db, dh0, form=form, log_a=self.log_a, reverse=self.reverse, axis=self.axis)

    def _before(self, y: Any, h0: Any) -> Any:
        """Return the value before each step."""
        return self._shifted(y, torch.zeros_like(y.select(self.axis, 0)) if h0 is None else h0, self.reverse)

    def _shifted(self, values: Any, entering: Any, backwards: bool) -> Any:
        """Return values one step later, `entering` first; or one step earlier, `backwards`."""
        count, entering = values.shape[self.axis] - 1, entering.unsqueeze(self.axis)
        kept = values.narrow(self.axis, 1 if backwards else 0, count)
        return torch.cat([kept, entering] if backwards else [entering, kept], self.axis)


def _applied(maps: Any, states: Any) -> Any:
    return (maps @ states.unsqueeze(-1)).squeeze(-1)


class _Straight(_Way):
    """Calls the scan directly, unless a dispatch mode looks on."""

    __slots__ = ()

    def forward(self, tensors: Tensors) -> Tensors:
        a, b, h0 = tensors
        return _run(a, b, h0, *self._options)

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        (a, _, h0), (y,), (dy, dfinal) = tensors, results, gradients
        if not is_plain(tensors) or torch.is_grad_enabled():
            return _Way.backward(self, tensors, results, gradients)
        dy = torch.zeros_like(y) if dy is None else dy
        da, db, dh0 = _run_backward(a, y, dy, h0, dfinal, *self._options)
        return (da, db, None if h0 is None else dh0)


class _ScanFunction(torch.autograd.Function):
    """A scan under transforms of torch.func and with dual numbers, whose rules are scans of the same kind."""

    @staticmethod
    def forward(way: _Way, a: Any, b: Any, h0: Any) -> Any:
        return way.forward((a, b, h0))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.way, *tensors = inputs
        ctx.save_for_backward(*tensors, output[0])
        ctx.save_for_forward(*tensors, output[0])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (a, _, h0, y), (dy, dfinal) = ctx.saved_tensors, unbatched(gradients)
        if dy is None and dfinal is None:
            return (None, None, None, None)
        return (None, *ctx.way.recorded_back(a, h0, y, torch.zeros_like(y) if dy is None else dy, dfinal))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        *tensors, y = ctx.saved_tensors
        return ctx.way.moved(tensors, y, unbatched(tangents))

    @staticmethod
    def vmap(info: Any, in_dims: Any, way: _Way, *tensors: Any) -> Any:
        stacked = [
            tensor
            if tensor is None
            else tensor.expand(info.batch_size, *tensor.shape)
            if dim is None
            else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        return _ScanFunction.apply(replace(way, axis=way.axis + 1), *stacked), (0, 0)


def _run(a: Any, b: Any, h0: Any, log_a: bool, reverse: bool, axis: int, is_full: bool = False) -> tuple[Any, Any]:
    return run_scan(a, b, h0, form="full" if is_full else "scalar", log_a=log_a, reverse=reverse, axis=axis)


def _run_backward(
    a: Any, y: Any, dy: Any, h0: Any, dfinal: Any, log_a: bool, reverse: bool, axis: int, is_full: bool = False
) -> tuple[Any, Any, Any]:
    form: Form = "full" if is_full else "scalar"
    return run_scan_backward(a, y, dy, h0, dfinal, form=form, log_a=log_a, reverse=reverse, axis=axis)


def _fake(_a: Any, b: Any, _h0: Any, _log_a: bool, _reverse: bool, axis: int, is_full: bool = False) -> tuple[Any, Any]:
    return b.new_empty(b.shape), _fake_state(b, axis, is_full)


def _fake_backward(
    a: Any,
    y: Any,
    _dy: Any,
    _h0: Any,
    _dfinal: Any,
    _log_a: bool,
    _reverse: bool,
    axis: int,
    is_full: bool = False,
) -> tuple[Any, Any, Any]:
    return a.new_empty(a.shape), y.new_empty(y.shape), _fake_state(y, axis, is_full)


def _fake_state(b: Any, axis: int, is_full: bool) -> Any:
    precision = precision_storing(str(b.dtype).removeprefix("torch."))
    if precision is None:
        raise BadInput(f"b has dtype {b.dtype}, which no scan supports; cast it")
    if not -b.dim() <= axis < b.dim():
        raise BadInput(f"axis is {axis}, but b has shape {list(b.shape)}; -{b.dim()} to {b.dim() - 1} are allowed")
    at = axis % b.dim()
    dtype = CARRIED if is_full else precision.arithmetic_dtype
    return b.new_empty((*b.shape[:at], *b.shape[at + 1 :]), dtype=getattr(torch, dtype))


def _check_meta(tensors: Tensors, log_a: bool, reverse: bool, axis: int, is_full: bool) -> None:
    if is_full:
        check_scan_of_maps(*tensors, reverse=reverse, axis=axis, inspect=without_values)
    else:
        check_scan(*tensors, log_a=log_a, reverse=reverse, axis=axis, inspect=without_values)


def _record(a: Any, b: Any, h0: Any, log_a: bool, reverse: bool, axis: int, is_full: bool = False) -> Any:
    if records((a, b, h0)):
        return RecurrenceFunction.apply(_Way(log_a, reverse, axis, is_full), a, b, h0)
    return below_autograd(_SCAN, a, b, h0, log_a, reverse, axis, is_full)


def _record_backward(*arguments: Any) -> Any:
    return gradients_once(lambda: below_autograd(_SCAN_BACKWARD, *arguments), arguments[:5])


_SCAN = define(f"scan(Tensor a, Tensor b, Tensor? h0, {_OPTIONS}) -> (Tensor, Tensor)", _run, _fake, _record)
_SCAN_BACKWARD = define(
    f"scan_backward(Tensor a, Tensor y, Tensor dy, Tensor? h0, Tensor? dfinal, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    _run_backward,
    _fake_backward,
    _record_backward,
)
