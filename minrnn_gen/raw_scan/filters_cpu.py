"""Linear filters along rows of host arrays in NumPy: their recursive part is a scan of constant maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy

from minrnn_gen.call.array import Array, as_numpy
from minrnn_gen.cpu.maps import scan_maps
from minrnn_gen.cpu.recurrence import Values
from minrnn_gen.raw_scan.map_arguments import CARRIED

# The exponent of the least distance between poles, in place of 0.
_SMALLEST = -30


def run_filter(arrays: Mapping[str, Array | None], y: Array, zf: Array) -> None:
    """Write y and zf; see `filters.run_filter`."""
    x, b, a, zi = (_values(arrays[name]) for name in ("x", "b", "a", "zi"))
    order = b.shape[1] - 1
    sums = numpy.zeros(x.shape)
    for delay in range(order + 1):
        sums += _delayed(x * b[:, delay, None], delay)
    _add_in_place(sums, zi)
    outputs = _recur(a, sums)
    as_numpy(y)[...] = outputs
    last = numpy.zeros(zf.shape)
    _add_in_place(last, None if zi is None else zi[..., x.shape[-1] :])
    for delay in range(1, order + 1):
        # The contribution of the last `delay` steps to the next ones.
        ends = _ends(x, delay) * b[:, delay, None] - _ends(outputs, delay) * a[:, delay, None]
        last[..., :delay] += ends
    as_numpy(zf)[...] = last


def run_filter_backward(arrays: Mapping[str, Array | None], dx: Array, db: Array, da: Array, dzi: Array) -> None:
    """Write the gradients, those of coefficients for each row; see `filters.run_filter_backward`.

    delta[t] = dy[t] - a[1] delta[t+1] - ..., where delta from T on is dzf.
    """
    x, y, b, a, dy, dzf = (_values(arrays[name]) for name in ("x", "y", "b", "a", "dy", "dzf"))
    order, time = b.shape[1] - 1, x.shape[-1]
    later = numpy.zeros((*x.shape[:2], order)) if dzf is None else dzf
    sums = numpy.array(dy)
    for delay in range(1, order + 1):
        # Steps whose gradients see dzf, from `first` on.
        first = max(0, time - delay)
        sums[..., first:] -= a[:, delay, None] * later[..., first + delay - time : delay][..., : time - first]
    delta = numpy.concatenate([_recur(a, sums[..., ::-1])[..., ::-1], later], axis=-1)
    shifted = [delta[..., delay : delay + time] for delay in range(order + 1)]
    as_numpy(dx)[...] = sum(b[:, delay, None] * ahead for delay, ahead in enumerate(shifted))
    for delay, ahead in enumerate(shifted):
        as_numpy(db)[..., 0, delay] = (ahead * x).sum(-1)
        as_numpy(da)[..., 0, delay] = -(ahead * y).sum(-1) if delay else 0
    as_numpy(dzi)[...] = delta[..., :order]


PASSES: dict[str, Callable[..., None]] = {"filter": run_filter, "filter_backward": run_filter_backward}


def _recur(a: Values, inputs: Values) -> Values:
    """Return y[t] = inputs[t] - a[1] y[t-1] - ... along the last axis.

    States are results as divided differences around the mean of the poles, ordered from the last result on: maps of poles that
    lie close together keep their digits only so.
    """
    count, channels, time = inputs.shape
    order = a.shape[1] - 1
    maps = numpy.zeros((channels, order, order))
    center, scale = numpy.zeros(channels), numpy.ones(channels)
    for channel, coefficients in enumerate(a.tolist()):
        center[channel], scale[channel], maps[channel, 0] = _around_center(coefficients)
        maps[channel] += numpy.diag(numpy.full(order, center[channel])) + numpy.diag(numpy.full(order - 1, scale[channel]), -1)
    b = numpy.zeros((time, count, channels, order))
    b[..., 0] = numpy.moveaxis(inputs, -1, 0) / scale ** (order - 1)
    rows = (count * channels, order)
    of_rows = numpy.broadcast_to(maps, (count, *maps.shape)).reshape(*rows, order)
    states = scan_maps(of_rows, b.reshape(time, *rows), numpy.zeros(rows)).reshape(time + 1, count, channels, order)
    for last in range(1, order):
        for place in range(last - 1, -1, -1):
            states[..., place] = states[..., place] * scale + states[..., place + 1] * center
    return numpy.moveaxis(states[1:, ..., 0], 0, -1)


def _around_center(a: Sequence[float]) -> tuple[float, float, list[float]]:
    """Return the mean of the poles, a power of two near their distance from it, and the recursion of the differences."""
    order = len(a) - 1
    if order == 1 or not all(map(math.isfinite, a)):
        return 0.0, 1.0, [-value for value in a[1:]]
    center = float(numpy.float32(min(max(-a[1] / order, -1), 1)))
    around = [Fraction(1), *map(Fraction, a[1:])]  # coefficients around the center are sums that cancel
    for last in range(order, 0, -1):
        for place in range(1, last + 1):
            around[place] += around[place - 1] * Fraction(center)
    exponents = [math.frexp(value)[1] / place for place, value in enumerate(around) if place and value]
    scale = 2.0 ** min(0, math.ceil(max([_SMALLEST, *exponents])))
    return center, scale, [-float(value) / scale**place for place, value in enumerate(around[1:])]


def _delayed(values: Values, delay: int) -> Values:
    """Return values delayed by some steps, with zeros before them."""
    later = numpy.zeros_like(values)
    later[..., delay:] = values[..., : values.shape[-1] - delay] if delay <= values.shape[-1] else 0
    return later


def _ends(values: Values, count: int) -> Values:
    """Return the last values, zeros before the first."""
    ends = numpy.zeros((*values.shape[:-1], count))
    last = values[..., max(0, values.shape[-1] - count) :]
    ends[..., count - last.shape[-1] :] = last
    return ends


def _add_in_place(target: Values, state: Values | None) -> None:
    """Add a state to the first steps, as far as there are steps."""
    if state is not None:
        count = min(target.shape[-1], state.shape[-1])
        target[..., :count] += state[..., :count]


def _values(array: Array | None) -> Any:
    return None if array is None else as_numpy(array).astype(CARRIED)
