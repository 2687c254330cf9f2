"""The quotient i / (f + i) of min_lstm beside its exact value: the error that docs/numerics.md states."""

from __future__ import annotations

import numpy as np
import pytest
from support.uncompiled_kernels import host_kernel

HIDDEN = 1 << 14
# Of the exponentials, their sum and the quotient.
ROUNDINGS = 3
# By precision: how far apart gates are whose quotient is a normal number, and the largest error that the page states.
RANGES = {"fp32": (np.float32, 87.0, 34), "fp64": (np.float64, 708.0, 258)}


def exact_quotient(f: np.ndarray, i: np.ndarray) -> np.ndarray:
    """Return sigmoid(i) / (sigmoid(f) + sigmoid(i)) by logarithms, in which nothing is 0."""
    f, i = f.astype(np.longdouble), i.astype(np.longdouble)
    log_sigmoid_f, log_sigmoid_i = (-np.logaddexp(np.longdouble(0), -gate) for gate in (f, i))
    quotient: np.ndarray = np.exp(log_sigmoid_i - np.logaddexp(log_sigmoid_f, log_sigmoid_i))
    return quotient


@pytest.mark.parametrize("scale", [1, 30, 1e4])
@pytest.mark.parametrize("precision", RANGES)
def test_the_error_is_that_of_the_difference_of_the_gates(precision: str, scale: float) -> None:
    """An exponential magnifies the rounding of its exponent, half a unit in the last place of W.f - W.i."""
    dtype, reach, largest = RANGES[precision]
    random, kernel = np.random.default_rng(0), host_kernel("min_lstm", HIDDEN, precision)
    f = random.uniform(-scale, scale, HIDDEN).astype(dtype)
    i = (f + random.uniform(-reach, reach, HIDDEN) * random.integers(0, 2, HIDDEN)).astype(dtype)
    _, state = kernel(np.stack([f, i, np.ones_like(f)])[None, None])
    exact = exact_quotient(f, i)
    is_normal = exact >= np.finfo(dtype).tiny
    units = np.abs(state["h"][0] - exact)[is_normal] / exact[is_normal] / np.finfo(dtype).eps
    of_difference = np.spacing(np.abs(f - i)[is_normal]) / 2 / np.finfo(dtype).eps
    assert (units <= ROUNDINGS + of_difference).all(), (units - of_difference).max()
    assert units.max() <= largest
    apart = np.abs(f - i)[is_normal]
    for less_than, allowed in ((4, 4), (16, 7), (64, 19)):
        assert units[apart < less_than].max() <= allowed
