"""Oracle of every kernel: the affine cells in float64, one step after the other, with a bound on the error.

The equations are written down here a second time, from their publications, on purpose: nothing of the package's own front end
is used. Each value carries a bound on how far a computation of roundoff u may be from it, so that no test needs a tolerance of
its own: |computed - y| <= y_bound, element by element. `xp` is numpy or cupy, so that long sequences are checked on the GPU.

The bound is the running error analysis of Higham (Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.3). With
h[t] = a[t] h[t-1] + b[t] and magnitudes M[t] = |a[t]| M[t-1] + |b[t]|, M[0] = |h[0]|,

    E[t] = |a[t]| E[t-1] + error(a[t]) M[t-1] + error(b[t]) + STEP_ROUNDINGS u M[t],   E[0] = 0,

and what a scan computes at t is within E[t] + TILE_ROUNDINGS u M[t], in whatever order it composes the steps: expanded, a term
b[s] that has gone through n steps is charged with n times STEP_ROUNDINGS u of its own magnitude, which is what n products
charge it with. M instead of |h| is what makes that true where terms cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from minrnn_gen.precision import Precision

Array = Any  # of numpy or cupy

# A step rounds a product and a sum, and so does composing it; composing segments, warps and tiles costs the same once more
# per two steps at least.
STEP_ROUNDINGS = 3
# Once per element, however long the sequence: five doublings of a warp's scan, the exchange between warps, the carry.
TILE_ROUNDINGS = 16
# exp, log1p, tanh and expm1 are within 4 units in the last place on every target (CUDA C++ Programming Guide, mathematical
# functions: 2; NumPy's vectorised float32 functions: 4), and one unit in the last place is at most 2 u.
FUNCTION_ROUNDINGS = 8
# With 16-bit storage the GPU takes ex2.approx (2 + |x| ulp with the product by log2(e) before it), lg2.approx (absolute
# error 2^-22, 4 u, and as much again for the sum before it) and for tanh a difference of numbers near 1 (relative error 2^-17):
# far below what storing y in 16 bits costs.
APPROXIMATE_EXP_ROUNDINGS_PER_X = 4
APPROXIMATE_LOG_ROUNDINGS = 8
APPROXIMATE_TANH_ROUNDINGS = 128
# The products of errors that a first-order analysis leaves out: below 2 % while T * STEP_ROUNDINGS * u is.
SECOND_ORDER = 1.05
# Coefficients are made for this many steps at once, so that 2^31 elements still fit.
STEPS_AT_ONCE = 256
ORACLE_ROUNDOFF = 2.0**-53

# (exponent of the smallest normal number, of the smallest denormal one), IEEE 754-2019 table 3.5 and bfloat16.
_EXPONENTS = {"float64": (-1022, -1074), "float32": (-126, -149), "float16": (-14, -24), "bfloat16": (-126, -133)}


@dataclass(frozen=True)
class Arithmetic:
    """How a computation rounds: roundoff `u` (the oracle's own added), and what underflow may take away."""

    xp: Any
    u: float
    denormal: float
    flushed: float
    approximate: bool

    @classmethod
    def of(cls, xp: Any, precision: Precision) -> Arithmetic:
        normal, denormal = _EXPONENTS[precision.arithmetic_dtype]
        u = precision.arithmetic_roundoff + ORACLE_ROUNDOFF
        return cls(xp, u, 2.0**denormal, 2.0**normal, approximate=precision.storage_bytes == 2)

    def exact(self, value: Array) -> Tracked:
        """Return `value` as something that is stored, not computed."""
        value = self.xp.asarray(value).astype(self.xp.float64)
        return Tracked(value, self.xp.zeros_like(value), self)

    def exp_roundings(self, x: Array) -> Array:
        """Relative error of exp(x), in u."""
        slope = APPROXIMATE_EXP_ROUNDINGS_PER_X if self.approximate else 0
        return FUNCTION_ROUNDINGS + slope * abs(x)


@dataclass(frozen=True)
class Tracked:
    """Values in float64, each with a bound on the error of whoever computes it with `arithmetic`."""

    value: Array
    error: Array
    arithmetic: Arithmetic

    def __len__(self) -> int:
        return len(self.value)

    def _made(self, value: Array, error: Array, roundings: float = 1, lost: float | None = None) -> Tracked:
        """Return a computed value: `error` came in, and the operation itself rounds."""
        arithmetic = self.arithmetic
        lost = arithmetic.denormal if lost is None else lost
        return Tracked(value, error + roundings * arithmetic.u * abs(value) + lost, arithmetic)

    def _other(self, other: Tracked | float) -> Tracked:
        return other if isinstance(other, Tracked) else self.arithmetic.exact(other)

    def __add__(self, other: Tracked | float) -> Tracked:
        right = self._other(other)
        return self._made(self.value + right.value, self.error + right.error)

    def __sub__(self, other: Tracked | float) -> Tracked:
        return self + -self._other(other)

    def __rsub__(self, other: float) -> Tracked:
        return self._other(other) + -self

    def __neg__(self) -> Tracked:
        return Tracked(-self.value, self.error, self.arithmetic)

    def __mul__(self, other: Tracked | float) -> Tracked:
        right = self._other(other)
        error = abs(self.value) * right.error + abs(right.value) * self.error + self.error * right.error
        return self._made(self.value * right.value, error)

    __rmul__ = __mul__

    def function(self, value: Array, slope: Array, roundings: Any = FUNCTION_ROUNDINGS) -> Tracked:
        """Return f of this, given f and |f'| there; a function may flush what is below the normal numbers."""
        return self._made(value, slope * self.error, roundings, self.arithmetic.flushed)


def exp(x: Tracked) -> Tracked:
    value = x.arithmetic.xp.exp(x.value)
    return x.function(value, value, x.arithmetic.exp_roundings(x.value))


def expm1(x: Tracked) -> Tracked:
    xp = x.arithmetic.xp
    return x.function(xp.expm1(x.value), xp.exp(x.value))


def tanh(x: Tracked) -> Tracked:
    value = x.arithmetic.xp.tanh(x.value)
    return x.function(value, 1 - value * value, APPROXIMATE_TANH_ROUNDINGS if x.arithmetic.approximate else FUNCTION_ROUNDINGS)


def sqrt(x: Tracked) -> Tracked:
    xp = x.arithmetic.xp
    # sqrt(v) - sqrt(v - e) = e / (sqrt(v) + sqrt(v - e)); at v = 0 the error of the root is the root of the error.
    below = xp.sqrt(x.value) + xp.sqrt(xp.maximum(x.value - x.error, 0))
    error = xp.where(below > 0, x.error / xp.where(below > 0, below, 1), xp.sqrt(x.error))
    return x._made(xp.sqrt(x.value), error)


def sigmoid(x: Tracked) -> Tracked:
    arithmetic, xp = x.arithmetic, x.arithmetic.xp
    small = xp.exp(-abs(x.value))
    value = xp.where(x.value >= 0, 1, small) / (1 + small)
    complement = xp.where(x.value >= 0, small, 1) / (1 + small)
    # 1 / (1 + exp(-x)): the exponential counts by its share of the sum; then a sum and a reciprocal, 1 + 2 u.
    return x.function(value, value * complement, complement * arithmetic.exp_roundings(x.value) + 3)


def softplus(x: Tracked) -> Tracked:
    arithmetic, xp = x.arithmetic, x.arithmetic.xp
    small = xp.exp(-abs(x.value))
    tail = xp.log1p(small)
    value = xp.maximum(x.value, 0) + tail
    slope = xp.where(x.value >= 0, 1, small) / (1 + small)
    in_tail = FUNCTION_ROUNDINGS * tail + small / (1 + small) * arithmetic.exp_roundings(x.value)
    if arithmetic.approximate:
        in_tail = in_tail + APPROXIMATE_LOG_ROUNDINGS
    return x._made(value, slope * x.error + arithmetic.u * in_tail, lost=arithmetic.flushed)


def silu(x: Tracked) -> Tracked:
    return x * sigmoid(x)


def positive(x: Tracked) -> Tracked:
    """g(v) of the log-space model: v + 1/2 for v >= 0, sigmoid(v) below."""
    upper, lower = x + 0.5, sigmoid(x)
    where = x.arithmetic.xp.where
    return Tracked(where(x.value >= 0, upper.value, lower.value), where(x.value >= 0, upper.error, lower.error), x.arithmetic)


Values = Mapping[str, Tracked]


@dataclass(frozen=True)
class AffineCell:
    """h[t] = a h[t-1] + b with (a, b) = `step(W, parameters)`; `output(W, h)` where y is not h itself."""

    gates: tuple[str, ...]
    step: Callable[[Values, Values], tuple[Tracked, Tracked]]
    state: str = "h"
    parameters: tuple[str, ...] = ()
    output: Callable[[Values, Tracked], Tracked] = lambda _, state: state


def _gated(z: Tracked, candidate: Tracked) -> tuple[Tracked, Tracked]:
    return 1 - z, z * candidate


def _new_share(W: Values) -> Tracked:
    """i / (f + i) with f = sigmoid(W.f), i = sigmoid(W.i), in the form that never is 0 / 0."""
    return sigmoid(softplus(-W["f"]) - softplus(-W["i"]))


def _hgrn(W: Values, _: Values) -> tuple[Tracked, Tracked]:
    f = sigmoid(W["f"])
    return f, (1 - f) * silu(W["i"])


def _qrnn(W: Values, _: Values) -> tuple[Tracked, Tracked]:
    f = sigmoid(W["f"])
    return f, (1 - f) * tanh(W["z"])


def _rg_lru(W: Values, parameters: Values) -> tuple[Tracked, Tracked]:
    log_a = -8 * softplus(parameters["decay"]) * sigmoid(W["r"])
    return exp(log_a), sqrt(-expm1(2 * log_a)) * (sigmoid(W["i"]) * W["x"])


# Gates, states and parameters in the order of the arrays. Sources: arXiv 2410.01201 section 3 and appendix B (the minimal
# cells), 2311.04823 (hgrn), 1611.01576 (qrnn), 2402.19427 (rg_lru).
CELLS = {
    "raw": AffineCell(("a", "b"), lambda W, _: (W["a"], W["b"])),
    "min_gru": AffineCell(("z", "h"), lambda W, _: _gated(sigmoid(W["z"]), W["h"])),
    "min_gru_log": AffineCell(("z", "h"), lambda W, _: _gated(sigmoid(W["z"]), positive(W["h"]))),
    "min_gru_tanh": AffineCell(("z", "h"), lambda W, _: _gated(sigmoid(W["z"]), tanh(W["h"]))),
    "min_lstm": AffineCell(("f", "i", "h"), lambda W, _: _gated(_new_share(W), W["h"])),
    "min_lstm_log": AffineCell(("f", "i", "h"), lambda W, _: _gated(_new_share(W), positive(W["h"]))),
    "hgrn": AffineCell(("f", "i"), _hgrn),
    "qrnn": AffineCell(("z", "f", "o"), _qrnn, state="c", output=lambda W, c: sigmoid(W["o"]) * c),
    "rg_lru": AffineCell(("r", "i", "x"), _rg_lru, parameters=("decay",)),
}


@dataclass(frozen=True)
class StepCell:
    """A cell of one state that is not affine in it: (h, y) = `step(W, h before, parameters)`."""

    gates: tuple[str, ...]
    step: Callable[[Values, Tracked, Values], tuple[Tracked, Tracked]]
    state: str = "h"
    parameters: tuple[str, ...] = ()


def relu(x: Tracked) -> Tracked:
    """Exact, and no error grows in it."""
    return Tracked(x.arithmetic.xp.maximum(x.value, 0), x.error, x.arithmetic)


def _ind_rnn(W: Values, h: Tracked, parameters: Values) -> tuple[Tracked, Tracked]:
    new = relu(W["h"] + parameters["u"] * h)
    return new, new


def _veiled(W: Values, m: Tracked, _: Values) -> tuple[Tracked, Tracked]:
    new = tanh(W["x"] * m + W["y"])
    return new, sigmoid(W["o"]) * new + m


# ind_rnn: arXiv 1803.04831; "veiled" is that of tests/support/reference_loops.py.
STEP_CELLS = {
    "ind_rnn": StepCell(("h",), _ind_rnn, parameters=("u",)),
    "veiled": StepCell(("x", "y", "o"), _veiled, state="m"),
}
# What `minrnn_gen.compile` takes as the model of the cell "raw": a and b are the arrays themselves.
RAW_CELL = {"name": "raw", "equations": "h[t] = W.a * h[t-1] + W.b"}


@dataclass(frozen=True)
class Expected:
    """Expected results of a kernel, and how far it may be off: y [T, B, H], states {name: [B, H]}, all float64."""

    y: Array
    states: dict[str, Array]
    y_bound: Array
    state_bounds: dict[str, Array]


def oracle(
    xp: Any,
    cell: str,
    gates: Mapping[str, Array | Tracked],
    initial: Mapping[str, Array],
    parameters: Mapping[str, Array],
    precision: Precision,
    bias: Mapping[str, Array] | None = None,
) -> Expected:
    """Run `cell`, one of `CELLS` or `STEP_CELLS`, over time.

    `gates` {name: [T, B, H]}, the pre-activations as they are stored (or `Tracked` ones that were computed), `initial`
    {state: [B, H]}, `parameters` and `bias` {name: [H]}; any float dtype. The bounds hold for kernels of `precision`.
    """
    arithmetic = Arithmetic.of(xp, precision)
    if cell in STEP_CELLS:
        assert bias is None
        return _step_after_step(STEP_CELLS[cell], arithmetic, gates, initial, parameters, precision)
    formula = CELLS[cell]
    vectors = {name: arithmetic.exact(parameters[name]) for name in formula.parameters}
    state = xp.asarray(initial[formula.state]).astype(xp.float64)
    bound, magnitude = xp.zeros_like(state), abs(state)
    time = len(gates[formula.gates[0]])
    y, y_bound = xp.empty((time, *state.shape)), xp.empty((time, *state.shape))
    state_bound = bound
    for start in range(0, time, STEPS_AT_ONCE):
        part = slice(start, min(start + STEPS_AT_ONCE, time))
        W = {name: _part(arithmetic, gates[name], part) for name in formula.gates}
        if bias is not None:
            W = {name: gate + arithmetic.exact(bias[name]) for name, gate in W.items()}
        a, b = formula.step(W, vectors)
        history, history_bound = xp.empty_like(a.value), xp.empty_like(a.value)
        for t in range(history.shape[0]):
            bound = abs(a.value[t]) * bound + a.error[t] * magnitude + b.error[t]
            magnitude = abs(a.value[t]) * magnitude + abs(b.value[t])
            bound = bound + STEP_ROUNDINGS * (arithmetic.u * magnitude + arithmetic.denormal)
            state = a.value[t] * state + b.value[t]
            state_bound = SECOND_ORDER * (bound + TILE_ROUNDINGS * (arithmetic.u * magnitude + arithmetic.denormal))
            history[t], history_bound[t] = state, state_bound
        result = formula.output(W, Tracked(history, history_bound, arithmetic))
        y[part], y_bound[part] = result.value, _stored(precision, result)
    return Expected(y, {formula.state: state}, y_bound, {formula.state: state_bound})


def _step_after_step(
    formula: StepCell,
    arithmetic: Arithmetic,
    gates: Mapping[str, Array | Tracked],
    initial: Mapping[str, Array],
    parameters: Mapping[str, Array],
    precision: Precision,
) -> Expected:
    """As a kernel that composes nothing does it: every operation of every step brings its own rounding."""
    vectors = {name: arithmetic.exact(parameters[name]) for name in formula.parameters}
    state, time, xp = arithmetic.exact(initial[formula.state]), len(gates[formula.gates[0]]), arithmetic.xp
    y, y_bound = xp.empty((time, *state.value.shape)), xp.empty((time, *state.value.shape))
    for t in range(time):
        W = {name: _part(arithmetic, gates[name], t) for name in formula.gates}
        state, result = formula.step(W, state, vectors)
        y[t], y_bound[t] = result.value, SECOND_ORDER * _stored(precision, result)
    return Expected(y, {formula.state: state.value}, y_bound, {formula.state: SECOND_ORDER * state.error})


def raw_gradients(
    xp: Any, a: Array, b: Array, initial: Array, dy: Array, dfinal: Array, precision: Precision
) -> dict[str, tuple[Array, Array]]:
    """Return the gradients of the cell "raw" by "a", "b" and "initial", each with a bound for kernels of `precision`.

    `a`, `b`, `dy` [T, B, H] and `initial`, `dfinal` [B, H], float64 values as they are stored; T > 0. What reaches the state
    from later obeys the recurrence itself: delta[t] = a[t+1] delta[t+1] + dy[t], which the same bound holds for; and then the
    gradient of a[t] is delta[t] h[t-1], with h as it was stored.
    """
    arithmetic = Arithmetic.of(xp, precision)
    unstored = replace(precision, storage_bytes=8, storage_dtype=precision.arithmetic_dtype, storage_roundoff=0.0)
    forward = oracle(xp, "raw", {"a": a, "b": b}, {"h": initial}, {}, precision)
    later = xp.concatenate([xp.ones_like(a[:1]), a[:0:-1]])
    backward = oracle(xp, "raw", {"a": later, "b": dy[::-1]}, {"h": dfinal}, {}, unstored)
    delta = Tracked(backward.y[::-1], backward.y_bound[::-1], arithmetic)
    before = Tracked(
        xp.concatenate([initial[None], forward.y[:-1]]),
        xp.concatenate([xp.zeros_like(initial)[None], forward.y_bound[:-1]]),
        arithmetic,
    )
    of_a, of_initial = delta * before, arithmetic.exact(a[0]) * Tracked(delta.value[0], delta.error[0], arithmetic)
    return {
        "a": (of_a.value, _stored(precision, of_a)),
        "b": (delta.value, _stored(precision, delta)),
        "initial": (of_initial.value, of_initial.error),
    }


def _part(arithmetic: Arithmetic, gate: Array | Tracked, part: slice | int) -> Tracked:
    if isinstance(gate, Tracked):
        return Tracked(gate.value[part], gate.error[part], arithmetic)
    return arithmetic.exact(gate[part])


def _stored(precision: Precision, y: Tracked) -> Array:
    """Return the bound after y is rounded once more, to storage; there the spacing does not shrink below the normal numbers."""
    half_denormal = 2.0 ** (_EXPONENTS[precision.storage_dtype][1] - 1)
    return y.error + precision.storage_roundoff * (abs(y.value) + y.error) + half_denormal


def assert_within(expected: Array, bound: Array, got: Array) -> None:
    """Assert |got - expected| <= bound element by element, NaN where and only where NaN is expected; says how far it is off."""
    # Arrays of the library that `expected` is of; `got` may be bfloat16.
    got = got.astype(expected.dtype)
    if not expected.size:
        assert got.shape == expected.shape
        return
    assert got.shape == expected.shape, f"shape {got.shape}, expected {expected.shape}"
    missing = expected != expected
    assert bool(((got != got) == missing).all()), "NaN in the wrong places"
    excess = abs(got - expected) - bound
    excess[missing] = -1
    worst = int(excess.argmax())
    place = tuple(int(index) for index in _unravelled(worst, expected.shape))
    assert bool((excess <= 0).all()), (
        f"at {place} the kernel has {float(got[place])!r}, the oracle {float(expected[place])!r}: off by "
        f"{float(abs(got - expected)[place]):.3g}, allowed {float(bound[place]):.3g}"
    )


def _unravelled(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    place: tuple[int, ...] = ()
    for size in reversed(shape):
        index, within = divmod(index, size)
        place = (within, *place)
    return place
