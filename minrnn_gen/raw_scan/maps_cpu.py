"""Scans of maps on host arrays in NumPy: chunks of time side by side, then again from the states between them."""

from __future__ import annotations

import math
from typing import Any

import numpy

from minrnn_gen.call.array import Array, as_numpy
from minrnn_gen.cpu.recurrence import Values
from minrnn_gen.raw_scan.map_arguments import CARRIED, MapBackwardCall, MapCall, MapRecurrence


def run_scan(call: MapCall, h: Array, final: Array) -> None:
    """Write `h`, shaped like b, and `final`, of the state's shape."""
    recurrence = call.recurrence
    states = scan_maps(_maps(recurrence, call.a), _by_time(recurrence, call.b), _state(recurrence, call.h0))
    _write(recurrence, h, states[1:])
    as_numpy(final)[...] = states[-1].reshape(recurrence.state_shape)


def run_scan_backward(call: MapBackwardCall, da: Array, db: Array, dh0: Array) -> None:
    """Write `db`, shaped like y, `dh0`, of the state's shape, and `da`, like a, that of constant maps for each row.

    delta[t] = dy[t] + A[t+1]' delta[t+1]; db = delta, dA = delta h[t-1]'.
    """
    recurrence = call.recurrence
    maps, dy = _maps(recurrence, call.a), _by_time(recurrence, call.dy)
    before = numpy.concatenate([_state(recurrence, call.h0)[None], _by_time(recurrence, call.y)])[:-1]
    transposed = maps.swapaxes(-1, -2)
    # Entered through A[t+1]: delta before A' is the state of a scan whose inputs are A' dy.
    inputs = _apply(transposed, dy)
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


def scan_maps(maps: Values, b: Values, initial: Values) -> Values:
    """Return the states before and after every step, [T + 1, N, m]; maps [T, N, m, m] or [N, m, m], b [T, N, m]."""
    time = len(b)
    states = numpy.empty((time + 1, *initial.shape))
    states[0] = initial
    steps = math.isqrt(time)
    chunks = time // steps if steps else 0
    by_chunk = b[: chunks * steps].reshape(chunks, steps, *b.shape[1:])
    is_constant = maps.ndim == 3
    of_chunk = None if is_constant else maps[: chunks * steps].reshape(chunks, steps, *maps.shape[1:])

    def at(step: int) -> Values:
        return maps if of_chunk is None else of_chunk[:, step]

    with numpy.errstate(all="ignore"):
        local = numpy.zeros((chunks, *initial.shape))
        composed = numpy.broadcast_to(numpy.eye(b.shape[-1]), (chunks, *maps.shape[-3:]))
        for step in range(steps):
            local = _apply(at(step), local) + by_chunk[:, step]
            composed = at(step) @ composed
        if not numpy.isfinite(composed).all():  # of maps that grow, where no state may
            _walk(maps, b, states, 0)
            return states
        entering = numpy.empty_like(local)
        state = initial
        for chunk in range(chunks):
            entering[chunk] = state
            state = _apply(composed[chunk], state) + local[chunk]
        after = states[1 : 1 + chunks * steps].reshape(by_chunk.shape)
        for step in range(steps):
            entering = _apply(at(step), entering) + by_chunk[:, step]
            after[:, step] = entering
        _walk(maps, b, states, chunks * steps)
    return states


def _walk(maps: Values, b: Values, states: Values, start: int) -> None:
    """Fill the states behind `start`, step by step."""
    for step in range(start, len(b)):
        states[step + 1] = _apply(maps if maps.ndim == 3 else maps[step], states[step]) + b[step]


def _apply(maps: Values, states: Values) -> Values:
    applied: Values = numpy.matmul(maps, states[..., None])[..., 0]
    return applied


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
