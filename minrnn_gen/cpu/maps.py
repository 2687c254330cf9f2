"""Scans of affine maps of a few states in NumPy: chunks of time in parallel, then again from the states between chunks."""

from __future__ import annotations

import math

import numpy

from minrnn_gen.cpu.recurrence import Cuts, Values


def scan_maps(maps: Values, b: Values, initial: Values, cuts: Cuts = None) -> Values:
    """Return the states before and after every step, [T + 1, N, m]; maps [T, N, m, m] or [N, m, m], b [T, N, m].

    Computes in double precision. `cuts` [T, N] marks steps that no earlier value enters, not even NaN.
    """
    time = len(b)
    states = numpy.empty((time + 1, *initial.shape))
    states[0] = initial
    steps = math.isqrt(time)
    chunks = time // steps if steps else 0
    whole = slice(0, chunks * steps)

    def by_chunk(values: Values) -> Values:
        return values[whole].reshape(chunks, steps, *values.shape[1:])

    of_b, of_maps = by_chunk(b), None if maps.ndim == 3 else by_chunk(maps)
    of_cuts = None if cuts is None else by_chunk(cuts)

    def advanced(step: int, state: Values) -> Values:
        entered = _apply(maps if of_maps is None else of_maps[:, step], state)
        return _cut(entered, None if of_cuts is None else of_cuts[:, step, :, None]) + of_b[:, step]

    with numpy.errstate(all="ignore"):
        local = numpy.zeros((chunks, *initial.shape))
        composed = numpy.broadcast_to(numpy.eye(b.shape[-1]), (chunks, *maps.shape[-3:]))
        for step in range(steps):
            local = advanced(step, local)
            composed = (maps if of_maps is None else of_maps[:, step]) @ composed
            composed = _cut(composed, None if of_cuts is None else of_cuts[:, step, :, None, None])
        # Chunks with a cut are constant, whatever enters them.
        is_cut: Cuts = None if of_cuts is None else numpy.logical_or.reduce(of_cuts, axis=1)[..., None]
        entering = numpy.empty_like(local)
        state = initial
        for chunk in range(chunks):
            entering[chunk] = state
            state = _cut(_apply(composed[chunk], state), None if is_cut is None else is_cut[chunk]) + local[chunk]
        after = by_chunk(states[1:])
        for step in range(steps):
            entering = advanced(step, entering)
            after[:, step] = entering
        _walk(maps, b, states, cuts, chunks * steps)
        # Compositions of maps that grow may overflow where no state does.
        growing = ~numpy.isfinite(composed).all((0, -2, -1))
        if growing.any():
            alone = None if cuts is None else cuts[:, growing]
            of_growing = states[:, growing]
            _walk(maps[..., growing, :, :], b[:, growing], of_growing, alone, 0)
            states[:, growing] = of_growing
    return states


def _walk(maps: Values, b: Values, states: Values, cuts: Cuts, start: int) -> None:
    """Fill the states after `start`, step by step."""
    for step in range(start, len(b)):
        entered = _apply(maps if maps.ndim == 3 else maps[step], states[step])
        states[step + 1] = _cut(entered, None if cuts is None else cuts[step, :, None]) + b[step]


def _apply(maps: Values, states: Values) -> Values:
    applied: Values = numpy.matmul(maps, states[..., None])[..., 0]
    return applied


def _cut(values: Values, cuts: Cuts) -> Values:
    return values if cuts is None else numpy.where(cuts, 0.0, values)
