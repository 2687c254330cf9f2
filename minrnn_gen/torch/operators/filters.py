"""`minrnn_gen.torch.lfilter` and `sosfilt`: linear filters with exact gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from minrnn_gen.raw_scan.filter_arguments import channels_of, check_sections, filtered_by_sections
from minrnn_gen.raw_scan.filters import run_filter, run_filter_backward
from minrnn_gen.torch.operators.dispatch import below_autograd, define, is_plain, records
from minrnn_gen.torch.operators.recorded import RecurrenceFunction, Tensors, gradients_once
from minrnn_gen.torch.tensors import check_devices, check_real, check_shape

_CARRIED = torch.float64


def lfilter(x: Any, a: Any, b: Any, zi: Any = None) -> Any:
    """Return y, or (y, zf) where `zi` is given, of a linear filter along the last axis of x, with gradients of all tensors.

    a[0] y[t] = b[0] x[t] + b[1] x[t-1] + ... - a[1] y[t-1] - a[2] y[t-2] - ..., computed in float64 as it is written, without
    truncation. x: [..., T]. a, b: [n + 1] of any order n, the shorter padded with zeros; or [C, n + 1] for x [..., C, T], a row
    for each channel. zi, zf: [..., n], the states before and after of scipy.signal.lfilter's transposed direct form II.
    Floating-point dtypes may differ: y has that of x, zf that of zi, gradients that of their tensors.

    There are no gradients of gradients and there is no vmap. Raises BadInput for wrong arguments, and where a[0] is 0. Source:
    Oppenheim & Schafer, Discrete-Time Signal Processing, section 6.3.
    """
    for name, tensor in {"x": x, "a": a, "b": b, **({} if zi is None else {"zi": zi})}.items():
        check_real(tensor, name)
    channels = channels_of(x.shape, {"a": a.shape, "b": b.shape})
    check_devices({"x": x, "a": a, "b": b, "zi": zi})
    order = max(a.shape[-1], b.shape[-1]) - 1
    if zi is not None:
        check_shape(zi, "zi", (*x.shape[:-1], order))
    shape = (math.prod(x.shape[:-1]) // channels, channels)
    rows = x.reshape(*shape, x.shape[-1])
    # Sixteen bits are computed as float32, which holds them.
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    state = None if zi is None else zi.reshape(*shape, order).to(_CARRIED)
    y, zf = _filtered(rows, _wide(b, channels, order), _wide(a, channels, order), state)
    y = y.reshape(x.shape).to(x.dtype)
    return y if zi is None else (y, zf[..., :order].reshape(zi.shape).to(zi.dtype))


def sosfilt(sos: Any, x: Any, zi: Any = None) -> Any:
    """Return y, or (y, zf) where `zi` is given, of second-order sections in sequence, with gradients of all tensors.

    x: [..., T]. sos: [sections, 6], each b0, b1, b2, a0, a1, a2; or [C, sections, 6] for x [..., C, T], sections for each
    channel. zi, zf: [sections, ..., 2], as scipy.signal.sosfilt has them. Each section is `lfilter`, and passes a signal of x's
    dtype to the next. Raises BadInput for wrong arguments, and where an a0 is 0.
    """
    check_real(x, "x")
    check_real(sos, "sos")
    count = check_sections(sos.shape)
    channels_of(x.shape, {})  # x is named where it is wrong
    if zi is not None:
        check_shape(zi, "zi", (count, *x.shape[:-1], 2))
    return filtered_by_sections(lfilter, torch.stack, sos, x, zi)


def _wide(tensor: Any, channels: int, order: int) -> Any:
    """Return coefficients as [channels, order + 1] in float64, of at least the first order, padded with zeros."""
    tensor = tensor.to(_CARRIED)
    if missing := max(order, 1) + 1 - tensor.shape[-1]:
        tensor = torch.nn.functional.pad(tensor, (0, missing))
    return tensor.expand(channels, -1)


def _filtered(x: Any, b: Any, a: Any, zi: Any) -> Any:
    if zi is not None and not zi.shape[-1]:
        zi = None  # of a filter that only multiplies
    tensors = (x, b, a, zi)
    if is_plain(tensors) and records(tensors):
        return RecurrenceFunction.of(_Filter(zi is not None), tensors)
    return _FILTER(*tensors)


@dataclass(frozen=True, slots=True)
class _Filter:
    """A filter of tensors x, b, a, zi."""

    has_zi: bool

    results_count: int = 2
    returned_count: int | None = None

    def read_again(self, tensors: Tensors) -> Tensors:
        x, b, a, _ = tensors
        return (x, b, a, None)

    def forward(self, tensors: Tensors) -> Tensors:
        return below_autograd(_FILTER, *tensors)  # type: ignore[no-any-return]

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        (x, b, a, _), (y,), (dy, dzf) = tensors, results, gradients
        dy = torch.zeros_like(y) if dy is None else dy
        dx, db, da, dzi = _FILTER_BACKWARD(x, y, b, a, dy, dzf)
        return (dx, db, da, dzi if self.has_zi else None)


def _fake(x: Any, b: Any, _a: Any, _zi: Any) -> tuple[Any, Any]:
    return x.new_empty(x.shape), _fake_state(x, b)


def _fake_backward(x: Any, _y: Any, b: Any, a: Any, _dy: Any, _dzf: Any) -> tuple[Any, Any, Any, Any]:
    return x.new_empty(x.shape), b.new_empty(b.shape), a.new_empty(a.shape), _fake_state(x, b)


def _fake_state(x: Any, b: Any) -> Any:
    return b.new_empty((*x.shape[:-1], b.shape[-1] - 1))


def _record(x: Any, b: Any, a: Any, zi: Any) -> Any:
    if records((x, b, a, zi)):
        return RecurrenceFunction.apply(_Filter(zi is not None), x, b, a, zi)
    return below_autograd(_FILTER, x, b, a, zi)


def _record_backward(*arguments: Any) -> Any:
    return gradients_once(lambda: below_autograd(_FILTER_BACKWARD, *arguments), arguments)


_FILTER = define("filter(Tensor x, Tensor b, Tensor a, Tensor? zi) -> (Tensor, Tensor)", run_filter, _fake, _record)
_FILTER_BACKWARD = define(
    "filter_backward(Tensor x, Tensor y, Tensor b, Tensor a, Tensor dy, Tensor? dzf) -> (Tensor, Tensor, Tensor, Tensor)",
    run_filter_backward,
    _fake_backward,
    _record_backward,
)
