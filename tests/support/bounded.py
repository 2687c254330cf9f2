"""Values in float64, each with a bound on how far whoever computes it in less precision may be from it.

A bound of 0 is an exact value: a stored number, or what a choice gives. An infinite one says that nothing is known: where a sum
may have overflowed, or a choice hangs on the last bit. NaN and infinities that every computation must give are exact.

The bounds are a running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.3) of
intervals, so that a function is bounded by its values at both ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minrnn_gen.precision import Precision

Array = Any

# (least normal number, largest number), IEEE 754-2019 table 3.5, and bfloat16.
_RANGES = {
    "float64": (2.0**-1022, 2.0**1023),
    "float32": (2.0**-126, 2.0**127),
    "bfloat16": (2.0**-126, 2.0**127),
    "float16": (2.0**-14, 2.0**15),
}
_LEAST_DENORMAL = {"float64": 2.0**-1074, "float32": 2.0**-149, "bfloat16": 2.0**-133, "float16": 2.0**-24}
# A sum or product, fused or not; a quotient by a reciprocal; a function (NumPy's of float32 are off by up to 4 units in the
# last place, and a function here is made of up to four).
ROUNDINGS, QUOTIENT_ROUNDINGS, FUNCTION_ROUNDINGS = 2, 8, 32
# docs/numerics.md: fast functions, relative and, of logarithms, absolute.
FAST_RELATIVE, FAST_ABSOLUTE = 2.0**-14, 2.0**-18
# Functions flush what is below the normal numbers, and silu multiplies it by x.
FLUSHED_NORMALS = 256.0
_LOGARITHMS = {"log", "log1p", "softplus", "logsigmoid"}


@dataclass(frozen=True)
class Bounded:
    """Values, and how far a computed one may be off; exact where the radius is 0, unknown where it is infinite."""

    value: Array
    radius: Array

    @property
    def is_unknown(self) -> Array:
        return np.isinf(self.radius)

    def __getitem__(self, place: Any) -> Bounded:
        return Bounded(self.value[place], self.radius[place])


@dataclass(frozen=True)
class Choice:
    """Outcomes of conditions, each known or not."""

    holds: Array
    known: Array

    def __invert__(self) -> Choice:
        return Choice(~self.holds, self.known)

    def __and__(self, other: Choice) -> Choice:
        is_false = (self.known & ~self.holds) | (other.known & ~other.holds)
        return Choice(self.holds & other.holds, is_false | (self.known & other.known))

    def __or__(self, other: Choice) -> Choice:
        return ~(~self & ~other)

    def of_any(self, size: int) -> Choice:
        """Return whether one of so many neighbours holds, for each of them."""
        holds, known = (np.broadcast_to(part, self.holds.shape).reshape(-1, size) for part in (self.holds, self.known))
        is_true = (holds & known).any(-1, keepdims=True)
        parts = (is_true | holds.any(-1, keepdims=True), is_true | known.all(-1, keepdims=True))
        return Choice(*(np.broadcast_to(part, holds.shape).reshape(self.holds.shape) for part in parts))


def exact(value: Any) -> Bounded:
    """Return numbers that are stored as they are."""
    value = np.asarray(value, np.float64)
    return Bounded(value, np.zeros(value.shape))


@dataclass(frozen=True)
class Arithmetic:
    """Operations on bounded values as a precision computes them.

    `loose`: sums and products may be associated in another way, so that an infinity may as well become NaN.
    """

    precision: Precision
    loose: bool = False

    @property
    def roundoff(self) -> float:
        return self.precision.arithmetic_roundoff + 2.0**-53

    @property
    def smallest(self) -> float:
        return FLUSHED_NORMALS * _RANGES[self.precision.arithmetic_dtype][0]

    def number(self, text: str) -> Bounded:
        value = float(text)
        rounded = float(np.dtype(self.precision.arithmetic_dtype).type(value))
        return Bounded(np.float64(value), np.float64(0 if rounded == value else self.roundoff * abs(value)))

    def _settled(self, value: Array, radius: Array) -> Bounded:
        """Return unknown values where the numbers may be too large."""
        largest = _RANGES[self.precision.arithmetic_dtype][1] / 8
        unknown = ~(radius < np.inf) | (np.isfinite(value) & ~(np.abs(value) + radius < largest))
        return Bounded(np.where(unknown, 0.0, value), np.where(unknown, np.inf, np.where(np.isfinite(value), radius, 0.0)))

    def _binary(self, function: Callable[..., Array], a: Bounded, b: Bounded, radius: Array, roundings: int) -> Bounded:
        value = function(a.value, b.value)
        finite = np.isfinite(a.value) & np.isfinite(b.value)
        rounded = radius + roundings * self.roundoff * np.abs(value) + self.smallest
        if np.isfinite(value).all() and finite.all() and np.isfinite(rounded).all():
            return self._settled(value, rounded)
        is_nan = np.isnan(a.value) | np.isnan(b.value)
        both_known = ~(a.is_unknown | b.is_unknown)
        same = np.ones(value.shape, bool)
        for i, j in itertools.product((-1, 1), repeat=2):
            corner = function(a.value + i * a.radius, b.value + j * b.radius)
            same &= (corner == value) | (np.isnan(corner) & np.isnan(value))
        is_exact = both_known & (a.radius == 0) & (b.radius == 0)
        of_finite = np.where(np.isfinite(value), rounded, np.where(is_exact & np.isnan(value), 0.0, np.inf))
        of_special = np.where(both_known & same & (not self.loose), np.where(np.isfinite(value), self.smallest, 0.0), np.inf)
        total = np.where(is_nan, 0.0, np.where(both_known, np.where(finite, of_finite, of_special), np.inf))
        return self._settled(np.where(is_nan, np.nan, value), total)

    def add(self, a: Bounded, b: Bounded) -> Bounded:
        total = self._binary(np.add, a, b, a.radius + b.radius, ROUNDINGS)
        # A sum with zero is exact.
        for zero, other in ((a, b), (b, a)):
            is_zero = (zero.value == 0) & (zero.radius == 0)
            total = _where(is_zero, other, total)
        return total

    def negate(self, a: Bounded) -> Bounded:
        return Bounded(-a.value, a.radius)

    def multiply(self, a: Bounded, b: Bounded) -> Bounded:
        radius = np.abs(a.value) * b.radius + np.abs(b.value) * a.radius + a.radius * b.radius
        result = self._binary(np.multiply, a, b, radius, ROUNDINGS)
        is_zero = ((a.value == 0) & (a.radius == 0) & _is_number(b)) | ((b.value == 0) & (b.radius == 0) & _is_number(a))
        return _where(is_zero, exact(np.zeros(result.value.shape)), result)

    def divide(self, a: Bounded, b: Bounded) -> Bounded:
        least = np.abs(b.value) - b.radius
        radius = np.where(least > 0, (a.radius + np.abs(a.value / b.value) * b.radius) / least, np.inf)
        radius = np.where((a.value == 0) & (b.value == 0) & (a.radius == 0) & (b.radius == 0), 0.0, radius)
        # A divisor that is denormal may be flushed, and a quotient of one that is huge as well.
        largest = _RANGES[self.precision.arithmetic_dtype][1] / 8
        usual = (least > self.smallest) & (np.abs(b.value) < largest) | ~np.isfinite(b.value) | (b.value == 0)
        return self._binary(np.divide, a, b, np.where(usual, radius, np.inf), QUOTIENT_ROUNDINGS)

    def mean(self, a: Bounded, size: int) -> Bounded:
        """Return the means of so many neighbours each, added in any order; an infinity or an unknown makes one unknown."""
        value, radius = (np.broadcast_to(part, a.value.shape).reshape(-1, size) for part in (a.value, a.radius))
        is_nan = np.isnan(value).any(-1)
        odd = (~np.isfinite(value) | np.isinf(radius)).any(-1)
        safe, radii = (np.where(np.isfinite(value) & np.isfinite(radius), part, 0.0) for part in (value, radius))
        sizes = np.abs(safe).sum(-1) + radii.sum(-1)
        bound = radii.sum(-1) + (size + QUOTIENT_ROUNDINGS) * self.roundoff * sizes + size * self.smallest
        too_large = sizes >= _RANGES[self.precision.arithmetic_dtype][1] / 8
        bound = np.where(odd | too_large, np.inf, np.where(sizes == 0, 0.0, bound / size))
        mean = self._settled(np.where(odd, 0.0, safe.sum(-1) / size), bound)
        mean = _where(is_nan, exact(np.full(is_nan.shape, np.nan)), mean)
        return Bounded(*(np.repeat(part, size).reshape(a.value.shape) for part in (mean.value, mean.radius)))

    def function(self, name: str, x: Bounded) -> Bounded:
        function = FUNCTIONS[name]
        value, low, high = (function(x.value + sign * x.radius) for sign in (0, -1, 1))
        if name == "silu":
            radius = 1.1 * x.radius  # |silu'| < 1.1
        elif name == "abs":
            radius = x.radius
        else:
            radius = np.maximum(np.abs(high - value), np.abs(low - value))
        same = np.isnan(low) & np.isnan(high) & np.isnan(value) | (low == value) & (high == value)
        if name not in ("relu", "abs"):
            relative, absolute = FUNCTION_ROUNDINGS * self.roundoff, self.smallest
            if self.precision.functions == "fast":
                relative += FAST_RELATIVE
                absolute += FAST_ABSOLUTE if name in _LOGARITHMS else 0.0
            rounded = radius + relative * np.abs(value) + absolute
            # A logarithm of what may be flushed, and a root whose slope has no end.
            tiny = (np.abs(x.value) < self.smallest) & (x.value != 0)
            rounded = np.where(tiny & (name in ("log", "sqrt")), np.inf, rounded)
        else:
            rounded = radius
        special = np.where(same & ~x.is_unknown, 0.0, np.inf)
        total = np.where(x.is_unknown, np.inf, np.where(np.isfinite(value), rounded, special))
        return self._settled(np.where(np.isnan(x.value), np.nan, value), np.where(np.isnan(x.value), 0.0, total))

    def compare(self, name: str, a: Bounded, b: Bounded) -> Choice:
        holds = COMPARISONS[name](a.value, b.value)
        is_nan = np.isnan(a.value) | np.isnan(b.value)
        is_exact = (a.radius == 0) & (b.radius == 0)
        apart = np.abs(a.value - b.value) > a.radius + b.radius
        infinite = (np.isinf(a.value) | np.isinf(b.value)) & ~a.is_unknown & ~b.is_unknown
        return Choice(np.asarray(holds), np.asarray(is_nan | is_exact | apart | infinite))

    def choose(self, choice: Choice, yes: Bounded, no: Bounded) -> Bounded:
        """Return what is chosen, and where the choice is not known, both if they are equal or near each other."""
        taken = _where(choice.holds, yes, no)
        spread = np.abs(yes.value - no.value)
        either = np.where(np.isnan(spread), np.inf, spread) + np.maximum(yes.radius, no.radius)
        same = (yes.value == no.value) & (yes.radius == 0) & (no.radius == 0)
        radius = np.where(choice.known | same, taken.radius, either)
        return self._settled(np.where(np.isinf(radius), 0.0, taken.value), radius)

    def first_is_taken(self, name: str, a: Bounded, b: Bounded) -> Choice:
        is_nan, b_is_nan = np.isnan(a.value), np.isnan(b.value)
        order = self.compare("<=" if name == "min" else ">=", a, b)
        unknown = (a.is_unknown | b.is_unknown) & ~is_nan
        return Choice(is_nan | order.holds & ~b_is_nan, is_nan | order.known & ~unknown)

    def extreme(self, name: str, a: Bounded, b: Bounded) -> Bounded:
        """Return min or max, which is as exact as its arguments."""
        taken = self.first_is_taken(name, a, b)
        value = np.where(taken.holds, a.value, b.value)
        radius = np.where(taken.known, np.where(taken.holds, a.radius, b.radius), np.maximum(a.radius, b.radius))
        is_nan = np.isnan(a.value) | np.isnan(b.value)
        radius = np.where(is_nan, 0.0, np.where(a.is_unknown | b.is_unknown, np.inf, radius))
        return self._settled(np.where(is_nan, np.nan, value), radius)

    def stored(self, a: Bounded) -> Bounded:
        """Return a value after rounding to storage."""
        dtype = self.precision.storage_dtype
        rounding = self.precision.storage_roundoff * (np.abs(a.value) + a.radius) + _LEAST_DENORMAL[dtype]
        is_kept = ~np.isfinite(a.value) | (a.value == 0) & (a.radius == 0)
        radius = np.where(is_kept, a.radius, a.radius + rounding)
        too_large = np.isfinite(a.value) & (np.abs(a.value) + a.radius > _RANGES[dtype][1] * 0.99)
        return Bounded(a.value, np.where(too_large, np.inf, radius))


def _is_number(a: Bounded) -> Array:
    return np.isfinite(a.value) & ~a.is_unknown


def _where(condition: Array, yes: Bounded, no: Bounded) -> Bounded:
    return Bounded(np.where(condition, yes.value, no.value), np.where(condition, yes.radius, no.radius))


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1.0, np.exp(-np.abs(x))) / (1.0 + np.exp(-np.abs(x)))


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "logsigmoid": lambda x: np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x))),
    "softplus": lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))),
    "silu": lambda x: x * _sigmoid(x),
    "relu": lambda x: np.where(x < 0, 0.0, x),
    "abs": np.abs,
    "sqrt": np.sqrt,
}
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip
