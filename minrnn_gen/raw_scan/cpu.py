"""A raw scan on host arrays: NumPy, in blocks of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy

from minrnn_gen.call.array import Array, as_numpy, numpy_dtype
from minrnn_gen.cpu.call import BLOCK_ELEMENTS
from minrnn_gen.cpu.recurrence import Values, scan
from minrnn_gen.raw_scan.arguments import BackwardCall, Recurrence, ScanCall


def run_scan(call: ScanCall, y: Array, final: Array) -> None:
    """Write `y`, shaped like a, and `final`, of the state's shape and dtype."""
    recurrence = call.recurrence
    a, b, result = (_by_time(recurrence, array) for array in (call.a, call.b, y))
    with numpy.errstate(all="ignore"):
        state = _state(recurrence, call.h0)
        for part in _blocks(recurrence):
            states = scan(_coefficients(recurrence, a[part]), _rows(recurrence, b[part]), state)
            result[part] = states[1:].reshape(result[part].shape)
            state = states[-1].copy()
    as_numpy(final)[...] = state.reshape(final.shape)


def run_scan_backward(call: BackwardCall, da: Array, db: Array, dh0: Array) -> None:
    """Write `da` and `db`, shaped like a, and `dh0`, of the state's shape and dtype.

    delta[t] = dy[t] + conj(a[t+1]) delta[t+1]; db = delta, da = delta conj(h[t-1]), times a if a was passed as logarithms.
    """
    recurrence = call.recurrence
    a, y, dy, da_rows, db_rows = (_by_time(recurrence, array) for array in (call.a, call.y, call.dy, da, db))
    first = _state(recurrence, call.h0)
    with numpy.errstate(all="ignore"):
        arriving = _state(recurrence, call.dfinal)
        for part in reversed(list(_blocks(recurrence))):
            factors = numpy.conjugate(_coefficients(recurrence, a[part]))
            local = _rows(recurrence, dy[part])
            delta = scan(factors[:0:-1], local[-2::-1], local[-1] + arriving)[::-1]
            arriving = factors[0] * delta[0]
            states = _rows(recurrence, y[part])
            before = first if part.start == 0 else _rows(recurrence, y[part.start - 1 : part.start])[0]
            previous = numpy.concatenate([before[None], states[:-1]])
            by_a = delta * numpy.conjugate(previous)
            shape = dy[part].shape
            da_rows[part] = (by_a * factors if recurrence.log_a else by_a).reshape(shape)
            db_rows[part] = delta.reshape(shape)
    as_numpy(dh0)[...] = arriving.reshape(dh0.shape)


def _by_time(recurrence: Recurrence, array: Array) -> Values:
    """View an array with the axis of time first, in the order in which the recurrence runs."""
    view: Values = numpy.moveaxis(as_numpy(array), recurrence.axis, 0)
    return view[::-1] if recurrence.reverse else view


def _blocks(recurrence: Recurrence) -> Iterator[slice]:
    time = recurrence.shape[recurrence.axis]
    steps = max(1, BLOCK_ELEMENTS // max(1, recurrence.sequences))
    for start in range(0, time, steps):
        yield slice(start, min(start + steps, time))


def _rows(recurrence: Recurrence, part: Values) -> Values:
    """Return a block of time as [steps, sequences] in the arithmetic's dtype, a copy or not."""
    return part.astype(_arithmetic(recurrence), order="C", copy=False).reshape(len(part), recurrence.sequences)


def _coefficients(recurrence: Recurrence, part: Values) -> Values:
    rows = _rows(recurrence, part)
    coefficients: Values = numpy.exp(rows) if recurrence.log_a else rows
    return coefficients


def _state(recurrence: Recurrence, array: Array | None) -> Values:
    if array is None:
        return numpy.zeros(recurrence.sequences, _arithmetic(recurrence))
    state: Values = as_numpy(array).reshape(recurrence.sequences)
    return state


def _arithmetic(recurrence: Recurrence) -> Any:
    return numpy_dtype(recurrence.precision.arithmetic_dtype)
