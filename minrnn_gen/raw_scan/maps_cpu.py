"""Scans of maps on host arrays in NumPy."""

from __future__ import annotations

from typing import Any

import numpy

from minrnn_gen.call.array import Array, as_numpy
from minrnn_gen.cpu.maps import scan_maps
from minrnn_gen.cpu.recurrence import Values
from minrnn_gen.raw_scan.map_arguments import CARRIED, MapBackwardCall, MapCall, MapRecurrence


def run_scan(call: MapCall, h: Array, final: Array) -> None:
    """Write `h`, shaped like b, and `final`, of the state's shape."""
    recurrence = call.recurrence
    states = scan_maps(_maps(recurrence, call.a), _by_time(recurrence, call.b), _state(recurrence, call.h0))
    _write(recurrence, h, states[1:])
    as_numpy(final)[...] = states[-1].reshape(recurrence.state_shape)


def run_scan_backward(call: MapBackwardCall, da: Array, db: Array, dh0: Array) -> None:
    """Write `db`, shaped like y, `dh0`, of the state's shape, and `da`, shaped like a; constant maps get one `da` per row.

    delta[t] = dy[t] + A[t+1]' delta[t+1]; db = delta, dA = delta h[t-1]'.
    """
    recurrence = call.recurrence
    maps, dy = _maps(recurrence, call.a), _by_time(recurrence, call.dy)
    before = numpy.concatenate([_state(recurrence, call.h0)[None], _by_time(recurrence, call.y)])[:-1]
    transposed = maps.swapaxes(-1, -2)
    # Entered through A[t+1]: delta before A' is the state of a scan whose inputs are A' dy.
    inputs = numpy.matmul(transposed, dy[..., None])[..., 0]
    arriving = scan_maps(
        transposed if recurrence.is_constant else transposed[::-1], inputs[::-1], _state(recurrence, call.dfinal)
    )[::-1]
    delta = dy + arriving[1:]
    _write(recurrence, db, delta)
    as_numpy(dh0)[...] = arriving[0].reshape(recurrence.state_shape)
    products = delta[..., :, None] * before[..., None, :]
    if recurrence.is_constant:
        as_numpy(da)[...] = products.sum(0).reshape(da.shape)
    else:
        _write(recurrence, da, products)


def _by_time(recurrence: MapRecurrence, array: Array) -> Values:
    """Return an array of the recurrence's shape as [T, N, m] in the order in which it runs."""
    view = numpy.moveaxis(as_numpy(array), recurrence.axis, 0).astype(CARRIED)
    rows: Values = view.reshape(recurrence.time, recurrence.rows * recurrence.channels, recurrence.size)
    return rows[::-1] if recurrence.reverse else rows


def _maps(recurrence: MapRecurrence, a: Array) -> Values:
    """Return the maps as [T, N, m, m], or [N, m, m] where they are constant."""
    maps = as_numpy(a).astype(CARRIED)
    size, channels, rows = recurrence.size, recurrence.channels, recurrence.rows
    if recurrence.is_constant:
        constant: Values = numpy.broadcast_to(maps.reshape(channels, size, size), (rows, channels, size, size))
        return constant.reshape(rows * channels, size, size)
    ordered: Values = numpy.moveaxis(maps, recurrence.axis, 0).reshape(recurrence.time, rows * channels, size, size)
    return ordered[::-1] if recurrence.reverse else ordered


def _state(recurrence: MapRecurrence, array: Array | None) -> Values:
    shape = (recurrence.rows * recurrence.channels, recurrence.size)
    state: Values = numpy.zeros(shape) if array is None else as_numpy(array).reshape(shape)
    return state


def _write(recurrence: MapRecurrence, array: Array, rows: Values) -> None:
    """Write [T, N, ...] in the order in which the recurrence runs."""
    view: Any = numpy.moveaxis(as_numpy(array), recurrence.axis, 0)
    view[...] = (rows[::-1] if recurrence.reverse else rows).reshape(view.shape)
