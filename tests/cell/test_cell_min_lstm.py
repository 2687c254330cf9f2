"""min_lstm's shares f / (f + i) and i / (f + i), f and i logistic: exact where f and i have long underflowed."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
from support.cell_evaluation import built_in

from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.lowering import lower_scan, lower_scan_backward

GATES = (-1e4, -9_990.0, -1e3, -104.0, -88.8, -20.0, -1.0, -1e-4, 0.0, 1e-4, 1.0, 20.0, 88.8, 104.0, 1e3, 9_990.0, 1e4)
# Three exponentials of at most 4 ulp, three sums, a quotient; and the difference from which each exponent is taken.
ROUNDINGS = 16


def exact_shares(f: float, i: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Return f / (f + i) and i / (f + i) as published: arXiv 2410.01201, section 3.2."""
    with mpmath.workdps(30):
        forget, new = (1 / (1 + mpmath.exp(-mpmath.mpf(each))) for each in (f, i))
        return forget / (forget + new), new / (forget + new)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["min_lstm", "min_lstm_log"])
def test_shares_and_their_gradients(name: str, dtype: type) -> None:
    """The new share is exact relative to itself, and its gradients new * kept * (1 - sigmoid) relative to new."""
    cell = built_in(name)
    lowered, backward = lower_scan(cell, classify(cell)), lower_scan_backward(cell, classify(cell))
    pairs = np.array(list(itertools.product(GATES, GATES)), dtype)
    ones = np.ones(len(pairs), dtype)
    inputs = {"W_f": pairs[:, 0], "W_i": pairs[:, 1], "W_h": ones / 2}
    found = lowered.coefficients.evaluate(inputs)
    new, kept = found["b_h"], found["a_h"]  # the candidate is 1/2, or 1
    gradients = backward.gradients.evaluate(inputs | {"previous_h": 0 * ones, "delta_h": ones})
    unit, least = np.finfo(dtype).eps / 2, np.finfo(dtype).smallest_normal
    candidate = {"min_lstm": 0.5, "min_lstm_log": 1.0}[name]
    for row, (f, i) in enumerate(pairs.astype(float)):
        exact_kept, exact_new = exact_shares(f, i)
        # The exponents' rounding counts where they are large, and where they are the exponentials are small.
        bound = (ROUNDINGS + min(abs(f), abs(i), abs(f - i))) * unit * float(exact_new) + least
        assert abs(new[row] / candidate - exact_new) <= bound, (f, i)
        assert abs(kept[row] - exact_kept) <= ROUNDINGS * unit, (f, i)
        with mpmath.workdps(30):
            slope = exact_new * exact_kept * candidate
            by_f, by_i = (-slope / (1 + mpmath.exp(f)), slope / (1 + mpmath.exp(i)))
        assert abs(gradients["gradient_W_f"][row] - by_f) <= 2 * bound + 4 * unit * float(exact_new), (f, i)
        assert abs(gradients["gradient_W_i"][row] - by_i) <= 2 * bound + 4 * unit * float(exact_new), (f, i)


@pytest.mark.parametrize(("name", "forward", "backward"), [("min_lstm", (14, 4), (24, 4)), ("min_lstm_log", (18, 6), (33, 6))])
def test_what_a_step_costs(name: str, forward: tuple[int, int], backward: tuple[int, int]) -> None:
    """(operations, special functions): a GPU has few of the latter, and min_lstm is bound by them first."""
    cell = built_in(name)
    scan, gradient = lower_scan(cell, classify(cell)), lower_scan_backward(cell, classify(cell)).gradients
    assert (scan.operation_count, scan.transcendental_count) == forward
    assert (gradient.operation_count, gradient.transcendental_count) == backward
