"""The recurrence h[t] = a[t] h[t-1] + b[t] over time in NumPy: step by step or as a parallel scan, in linear or log space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy
from numpy.typing import NDArray

Values = NDArray[Any]
Cuts = NDArray[numpy.bool_] | None
ScanMethod = Literal["sequential", "parallel"]

# A step costs two calls of NumPy, about 1 us, however few its elements; the parallel scan calls NumPy a few times per doubling
# of T, but reads and writes everything more often. Measured in float32 and float64, T = 64 ... 65,536, on two cores: parallel
# takes 1/2 to 1/400 of the sequential time for at most 64 elements per step, about the same at 128 ... 256, up to 4 times as
# long beyond. A shorter sequence takes 0.3 ms sequentially, and then gives the same bits wherever it is cut.
PARALLEL_ELEMENTS_MOST = 128
PARALLEL_STEPS_LEAST = 256
# The parallel scan takes as many steps at once as keep its intermediate values in the cache of one core; beyond 2^17 elements
# it takes twice as long per element.
PARALLEL_BLOCK_ELEMENTS = 1 << 16
# So few steps run in sequence: a further halving costs as many calls.
SERIAL_STEPS = 4


@dataclass(frozen=True)
class Space:
    """Multiplies and adds numbers in their stored form, and has the stored form of 0."""

    times: numpy.ufunc
    plus: numpy.ufunc
    zero: float


LINEAR = Space(numpy.multiply, numpy.add, 0.0)
LOG = Space(numpy.add, numpy.logaddexp, -numpy.inf)


def scan_in_logarithms(a: Values, b: Values, initial: Values, method: ScanMethod | None = None, cuts: Cuts = None) -> Values:
    """Return the result of `scan`, computed with the logarithms of a, b and `initial`, none of which may be negative.

    Negative values of a and b, which come from rounding alone, count as 0; a negative `initial` gives NaN. Source: Feng et al.,
    arXiv 2410.01201, appendix B, but steps are composed instead of divided by their running product.
    """
    with numpy.errstate(all="ignore"):
        log_a, log_b = (numpy.log(numpy.maximum(gate, 0)) for gate in (a, b))
        log_initial = numpy.log(initial)
        log_states = _scan(log_a, log_b, log_initial, method, cuts, LOG)
        # Steps that change nothing return exactly the state.
        states: Values = numpy.where(log_states == log_initial, initial, numpy.exp(log_states))
    return states


def scan(a: Values, b: Values, initial: Values, method: ScanMethod | None = None, cuts: Cuts = None) -> Values:
    """Return the states [T + 1, ...], the initial one first, of a and b [T, ...] and `initial` [...] in one common dtype.

    Any dtype that multiplies and adds; infinities and NaN follow IEEE 754 without warnings. `cuts` [T, ...], which broadcasts
    to the shape of a, marks steps that no earlier value enters: h[t] = b[t] there, even after NaN.

    Without a `method` the sizes choose it: parallel for at least `PARALLEL_STEPS_LEAST` steps of at most
    `PARALLEL_ELEMENTS_MOST` elements, sequential otherwise, and for each element with a coefficient above 1 in magnitude. So
    no element's result depends on the values of another.
    """
    return _scan(a, b, initial, method, cuts, LINEAR)


def _scan(a: Values, b: Values, initial: Values, method: ScanMethod | None, cuts: Cuts, space: Space) -> Values:
    if cuts is not None:
        cuts = numpy.broadcast_to(cuts, a.shape)
    if method is not None:
        return _SCANS[method](a, b, initial, cuts, space)
    steps = len(a)
    if steps < PARALLEL_STEPS_LEAST or initial.size > PARALLEL_ELEMENTS_MOST:
        return scan_sequential(a, b, initial, cuts, space)
    states = scan_parallel(a, b, initial, cuts, space)
    growing = (numpy.abs(a) > 1).any(axis=0) if space is LINEAR else numpy.False_
    if growing.any():
        cuts = None if cuts is None else cuts[:, growing]
        states[:, growing] = scan_sequential(a[:, growing], b[:, growing], initial[growing], cuts)
    return states


def scan_sequential(a: Values, b: Values, initial: Values, cuts: Cuts = None, space: Space = LINEAR) -> Values:
    """Return the result of `scan`, step by step; `cuts` have the shape of a."""
    states = _states(a, b, initial)
    with numpy.errstate(all="ignore"):
        _walk(a, b, states, cuts, space)
    return states


def scan_parallel(a: Values, b: Values, initial: Values, cuts: Cuts = None, space: Space = LINEAR) -> Values:
    """Return the result of `scan` by the work-efficient parallel scan over time; `cuts` have the shape of a.

    An up-sweep composes neighbours, and a down-sweep fills in between: O(T) operations in O(log T) calls.

    The result differs from the sequential one by rounding alone, except for coefficients so large that a product of several
    overflows where no state does. Source: Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, sections 1.2 and 1.4.
    """
    states = _states(a, b, initial)
    steps = max(1, PARALLEL_BLOCK_ELEMENTS // max(1, initial.size))
    with numpy.errstate(all="ignore"):
        for start in range(0, len(a), steps):
            part = slice(start, start + steps)
            _sweep(a[part], b[part], states[start : start + steps + 1], _at(cuts, part), space)
    return states


_SCANS: dict[ScanMethod, Callable[[Values, Values, Values, Cuts, Space], Values]] = {
    "sequential": scan_sequential,
    "parallel": scan_parallel,
}


def _states(a: Values, b: Values, initial: Values) -> Values:
    states = numpy.empty((len(a) + 1, *initial.shape), numpy.result_type(a, b, initial))
    states[0] = initial
    return states


def _walk(a: Values, b: Values, states: Values, cuts: Cuts, space: Space) -> None:
    """Fill states[1:] from states[0], step by step."""
    for t in range(len(a)):
        _enter(a[t], b[t], states[t], _at(cuts, t), states[t + 1], space)


def _sweep(a: Values, b: Values, states: Values, cuts: Cuts, space: Space) -> None:
    """Fill states[1:] from states[0], in pairs of steps."""
    steps = len(a)
    if steps <= SERIAL_STEPS:
        _walk(a, b, states, cuts, space)
        return
    paired = steps - steps % 2
    first, second = slice(0, paired, 2), slice(1, paired, 2)
    pair_b = numpy.empty_like(b[second])
    _enter(a[second], b[second], b[first], _at(cuts, second), pair_b, space)
    pair_cuts = None if cuts is None else cuts[first] | cuts[second]
    _sweep(space.times(a[second], a[first]), pair_b, states[::2][: paired // 2 + 1], pair_cuts, space)
    _enter(a[::2], b[::2], states[:steps:2], _at(cuts, slice(0, None, 2)), states[1::2], space)


def _at(cuts: Cuts, part: int | slice) -> Cuts:
    return None if cuts is None else cuts[part]


def _enter(a: Values, b: Values, states: Values, cuts: Cuts, out: Values, space: Space) -> None:
    """Write a * states + b, and b alone at cuts."""
    space.times(a, states, out=out)
    if cuts is not None:
        numpy.copyto(out, space.zero, where=cuts)
    space.plus(out, b, out=out)
