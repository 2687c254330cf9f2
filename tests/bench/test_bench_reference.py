"""Float64 reference of the benchmark against plain loops, the tests' own oracle, and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.oracle import oracle

from benchmarks.reference.scan_reference import CELL_REFERENCES, relative_error, scan, scan_gradients
from minrnn_gen.precision import precision_of

CELLS = sorted(CELL_REFERENCES)
STEP = 1e-6


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@given(st.integers(0, 70), st.integers(0, 2**32 - 1))
def test_a_scan_is_its_recurrence(time: int, seed: int) -> None:
    a, b = random(seed, 2, time, 3)
    h, expected = np.zeros(3), np.empty((time, 3))
    for t in range(time):
        h = a[t] * h + b[t]
        expected[t] = h
    np.testing.assert_allclose(scan(np, a, b), expected, rtol=1e-12, atol=1e-12 * (1 + abs(expected).max(initial=0)))


@given(st.integers(1, 300))
def test_with_a_of_one_a_scan_is_a_cumulative_sum(time: int) -> None:
    b = np.random.default_rng(time).integers(-9, 10, (time, 2)).astype(float)
    assert np.array_equal(scan(np, np.ones_like(b), b), b.cumsum(axis=0))


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_gradients_are_those_of_the_sum(time: int, seed: int) -> None:
    a, b, dy = random(seed, 3, time, 2)
    da, db = scan_gradients(np, a, scan(np, a, b), dy)

    def loss(a: np.ndarray, b: np.ndarray) -> float:
        return float((dy * scan(np, a, b)).sum())

    _, direction = random(seed + 1, 2, time, 2)
    for gradient, ahead, behind in (
        (da, loss(a + STEP * direction, b), loss(a - STEP * direction, b)),
        (db, loss(a, b + STEP * direction), loss(a, b - STEP * direction)),
    ):
        scale = 1 + abs(gradient).max()
        assert (ahead - behind) / (2 * STEP) == pytest.approx((gradient * direction).sum(), rel=1e-5, abs=1e-6 * scale)


@pytest.mark.parametrize("name", CELLS)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(20))
def test_cells_are_those_of_the_oracle(name: str, time: int, seed: int) -> None:
    cell = CELL_REFERENCES[name]
    gates = 2 * random(seed, len(cell.gates), time, 2, 3)
    named = dict(zip(cell.gates, gates, strict=True))
    expected = oracle(np, name, named, {"h": np.zeros((2, 3))}, {}, precision_of("fp64"))
    assert (abs(cell.run(np, gates) - expected.y) <= expected.y_bound + 1e-14).all()


@pytest.mark.parametrize("name", CELLS)
@given(st.integers(1, 8), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(20))
def test_gradients_of_cells_are_differences(name: str, time: int, seed: int) -> None:
    cell = CELL_REFERENCES[name]
    gates = random(seed, len(cell.gates), time, 3)
    # Away from the kink of the log-space model's candidate at 0.
    gates[-1] += np.where(abs(gates[-1]) < 0.01, 0.1, 0)
    dy = random(seed + 1, time, 3)
    for index, gradient in enumerate(cell.gradients(np, gates, dy)):
        direction = np.zeros_like(gates)
        direction[index] = random(seed + 2, time, 3)
        ahead, behind = ((dy * cell.run(np, gates + sign * STEP * direction)).sum() for sign in (1, -1))
        assert (ahead - behind) / (2 * STEP) == pytest.approx((gradient * direction[index]).sum(), rel=1e-5, abs=1e-6)


def test_an_error_is_relative_and_nan_where_a_result_is() -> None:
    exact = np.array([3.0, 4.0])
    assert relative_error(exact, exact) == 0
    assert relative_error(np.array([3.0, 4.5]), exact) == pytest.approx(0.1)
    assert np.isnan(relative_error(np.array([3.0, np.nan]), exact))
