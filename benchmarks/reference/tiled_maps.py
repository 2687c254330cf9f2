"""The arithmetic of a scan of maps in NumPy: steps of threads from zero, and maps composed over lanes and warps.

Steps and maps have dtypes of their own, as in a kernel, and sums are fused multiply-adds in float32. Nothing here is shared
with the code that is measured.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy

Form = Literal["scalar", "rotation", "dual", "full"]
Values = Any
LANES = 32  # of a warp


class Arithmetic(NamedTuple):
    """Dtypes of a step and of maps, the form that maps keep, and the steps of a thread."""

    step: Any
    maps: Any
    form: Form
    steps: int = 16


def tiled(a: Values, b: Values, arithmetic: Arithmetic) -> Values:
    """Return the states [T, m] of s[t] = a s[t-1] + b[t], of a [T, m, m], or [m, m] where it is the same at all steps.

    T is a multiple of a warp's steps.
    """
    step, maps, form, steps = arithmetic
    threads, size, is_constant = len(b) // steps, b.shape[1], a.ndim == 2
    rows = b.astype(step).reshape(threads, steps, size)
    a = a.astype(step)
    each = numpy.broadcast_to(a, (threads, steps, size, size)) if is_constant else a.reshape(threads, steps, size, size)
    end, own = numpy.zeros((threads, size), step), numpy.broadcast_to(numpy.eye(size, dtype=maps), (threads, size, size))
    for n in range(steps):
        end = _applied(each[:, n], end, rows[:, n])
        if not is_constant:
            own = _composed(each[:, n].astype(maps), own, form)
    shape = (threads // LANES, LANES, size, size)

    def power(count: int) -> Values:
        """The map of a thread's steps so many times: powers are made in float64, then rounded."""
        return numpy.linalg.matrix_power(a.astype(float), steps * count).astype(maps)

    ends = end.astype(maps).reshape(shape[:-1])
    own = numpy.broadcast_to(power(1), shape) if is_constant else own.reshape(shape)
    for level in range(LANES.bit_length() - 1):
        distance = 1 << level
        later = numpy.broadcast_to(power(distance), shape)[:, distance:] if is_constant else own[:, distance:]
        ends = numpy.concatenate((ends[:, :distance], _applied(later, ends[:, :-distance], ends[:, distance:])), 1)
        if not is_constant:
            own = numpy.concatenate((own[:, :distance], _composed(later, own[:, :-distance], form)), 1)
    if is_constant:
        own = numpy.broadcast_to(numpy.stack([power(count) for count in range(1, LANES + 1)]), (len(ends), *shape[1:]))
    entering, state = numpy.empty_like(ends), numpy.zeros(size, maps)
    for warp in range(len(ends)):
        entering[warp] = state
        state = _applied(own[warp, -1], state, ends[warp, -1])
    entering[:, 1:] = _applied(own[:, :-1], entering[:, 1:], ends[:, :-1])
    state, states = entering.reshape(threads, size).astype(step), numpy.empty_like(rows)
    for n in range(steps):
        state = states[:, n] = _applied(each[:, n], state, rows[:, n])
    return states.reshape(b.shape)


def _fused(left: Values, right: Values, added: Values) -> Values:
    """Return left * right + added, rounded once where float64 holds the product of two float32."""
    if added.dtype == numpy.float32:
        return (left.astype(float) * right + added).astype(numpy.float32)
    return left * right + added


def _applied(maps: Values, states: Values, b: Values) -> Values:
    """Return maps [..., m, m] applied to states [..., m]."""
    result = b.copy()
    for column in reversed(range(b.shape[-1])):
        result = _fused(maps[..., column], states[..., column, None], result)
    return result


def _composed(later: Values, earlier: Values, form: Form) -> Values:
    """Return the product of maps, of which a rotation and a dual map keep the first column alone."""
    size = later.shape[-1]
    product = numpy.zeros_like(later)
    for k in reversed(range(size)):
        product = _fused(later[..., :, k, None], earlier[..., k, None, :], product)
    if form in ("rotation", "dual"):
        product[..., 1, 1] = product[..., 0, 0]
        product[..., 0, 1] = -product[..., 1, 0] if form == "rotation" else 0
    return product
