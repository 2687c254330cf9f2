"""A result against the fp64 reference, and the tolerance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from minrnn_gen.config.spec import Spec
from minrnn_gen.precision import precision_of

# Roundings of the arithmetic that may add up in one element, in units of the largest value. A step makes about eight (sigmoid,
# product, sum), and with gates sigma(N(0, 1)) a state remembers fewer than eight steps' worth of them.
ARITHMETIC_ROUNDINGS = 64
# With a projection the pre-activations are rounded to storage, and with a recurrent product the output that it takes: through a
# sigmoid's slope, of at most 1/4, and eight steps, on values within four standard deviations.
PRODUCT_ROUNDINGS = 8

# A fast function is off by up to a relative 2^-17 (docs/numerics.md, tanh), in each of the eight steps that a state remembers.
# Where values are stored in 16 bits, the rounding of y is coarser than that.
FAST_FUNCTIONS_SLACK = 8 * 2.0**-17

Result = tuple[Any, Mapping[str, Any]]


@dataclass(frozen=True)
class Accuracy:
    """The largest error of y, the largest |y|, and the largest share of its tolerance that any element of y or state uses."""

    error: float
    value: float
    share: float
    allowed: str

    @property
    def is_within(self) -> bool:
        """Whether every element keeps its tolerance; NaN keeps none."""
        return self.share <= 1

    @property
    def verdict(self) -> str:
        """Whether the tolerance is kept, and by what share, in words."""
        kept = "kept" if self.is_within else "EXCEEDED"
        if math.isnan(self.share):
            return f"{kept}: a result is NaN; allowed are {self.allowed}"
        return f"{kept}: the worst element uses {self.share:.0%} of {self.allowed}"


def compare(spec: Spec, result: Result, expected: Result, is_recurrent: bool = False) -> Accuracy:
    """Compare (y, state) with the fp64 reference; `is_recurrent`: the cell has recurrent products.

    An element of y may be off by one rounding to storage, |y| u_storage, and by a few of the arithmetic, u_arithmetic times the
    largest value; a state, never rounded to storage, by the latter alone.
    """
    precision = precision_of(spec.precision).with_functions(spec.functions).with_product(spec.fp32_product)
    (y, state), (y_expected, state_expected) = result, expected
    slack = ARITHMETIC_ROUNDINGS * precision.arithmetic_roundoff
    allowed = f"{ARITHMETIC_ROUNDINGS} roundings of {precision.arithmetic_dtype}"
    if precision.storage_dtype != precision.arithmetic_dtype:
        allowed = f"one rounding to {precision.storage_dtype} and {allowed}"
    elif precision.functions == "fast":
        slack += FAST_FUNCTIONS_SLACK
        allowed += f", and {FAST_FUNCTIONS_SLACK:.1g} for fast functions"
    for is_made, name in ((spec.input_size, "projection"), (is_recurrent, "recurrent product")):
        if is_made:
            slack += PRODUCT_ROUNDINGS * precision.operand_roundoff
            operands = "tf32" if precision.multiplies_in_tf32 else precision.storage_dtype
            allowed += f", and {PRODUCT_ROUNDINGS} of {operands} for the {name}"
    shares = [_share(y, y_expected, precision.storage_roundoff, slack)]
    shares += [_share(state[name], state_expected[name], 0.0, slack) for name in state_expected]
    error = float(numpy.max(numpy.abs(y.astype(numpy.float64) - y_expected)))
    # NaN must win over every number, as it does in numpy.max and does not in max.
    return Accuracy(error, float(numpy.max(numpy.abs(y_expected))), float(numpy.max(shares)), allowed)


def _share(values: Any, expected: Any, relative: float, slack: float) -> float:
    """Return the largest error as a share of the allowed error; equal infinities are no error."""
    magnitude = numpy.abs(expected)
    finite = magnitude[numpy.isfinite(magnitude)]
    largest = max(1.0, float(finite.max())) if finite.size else 1.0
    values = values.astype(numpy.float64)
    error = numpy.where(values == expected, 0.0, numpy.abs(values - expected))
    share: float = numpy.max(error / (relative * magnitude + slack * largest))
    return float(share)
