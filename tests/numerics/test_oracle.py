"""The oracle before anything is held against it: right, never too strict, and never so loose that a wrong kernel passes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inputs import GATE_KINDS, RAW_KINDS, drawn_coefficients, drawn_gates, drawn_parameters, drawn_state
from oracle import CELLS, Arithmetic, Expected, assert_within, oracle

from minrnn_gen.precision import PRECISION_NAMES, precision_of

BUILT_IN = tuple(name for name in CELLS if name != "raw")
FP32 = precision_of("fp32")


Case = tuple[dict[str, Any], dict[str, Any], Expected]


def expected(cell: str, kind: str, shape: tuple[int, int, int] = (400, 2, 3), precision: str = "fp32", seed: int = 0) -> Case:
    gates = drawn_coefficients(kind, seed, shape) if cell == "raw" else drawn_gates(cell, kind, seed, shape)
    state, parameters = drawn_state(cell, seed, *shape[1:]), drawn_parameters(cell, seed, shape[2])
    return gates, state, oracle(np, cell, gates, state, parameters, precision_of(precision))


@pytest.mark.parametrize("cell", BUILT_IN)
def test_one_step_by_hand(cell: str) -> None:
    # Every gate 0: sigmoid is 1/2, tanh and silu 0, softplus log 2, and g is 1/2.
    gates = {name: np.zeros((1, 1, 1)) for name in CELLS[cell].gates}
    decay = {name: np.zeros(1) for name in CELLS[cell].parameters}
    initial = {CELLS[cell].state: np.full((1, 1), 2.0)}
    by_hand = {
        "min_gru": 1.0,
        "min_gru_log": 1.25,
        "min_gru_tanh": 1.0,
        "min_lstm": 1.0,
        "min_lstm_log": 1.25,
        "hgrn": 1.0,
        "qrnn": 0.5,  # half of c = 1
        "rg_lru": 2 * 2.0**-4,  # exp(-8 log(2) / 2)
    }
    assert oracle(np, cell, gates, initial, decay, FP32).y.item() == pytest.approx(by_hand[cell], rel=1e-15)


def test_a_state_that_is_kept_adds_up() -> None:
    gates, state, result = expected("raw", "one")
    assert np.allclose(result.y, np.cumsum(gates["b"], axis=0) + state["h"], rtol=1e-13)


@given(kind=st.sampled_from(RAW_KINDS), seed=st.integers(0, 2**32 - 1), tile=st.integers(2, 70))
def test_a_tiled_scan_in_fp32_is_within_the_bound(kind: str, seed: int, tile: int) -> None:
    """The order a GPU works in: compose each tile's steps, carry the state over tiles, then walk each tile."""
    gates, state, result = expected("raw", kind, (200, 1, 4), seed=seed)
    a, b = (gates[name].astype(np.float32) for name in "ab")
    result = oracle(np, "raw", {"a": a, "b": b}, {"h": state["h"].astype(np.float32)}, {}, FP32)
    carry, y = state["h"].astype(np.float32), np.empty_like(a)
    for start in range(0, len(a), tile):
        steps = [(a[t], b[t]) for t in range(start, min(start + tile, len(a)))]
        walked = carry
        for offset, (factor, addend) in enumerate(steps):
            walked = factor * walked + addend
            y[start + offset] = walked
        factor, addend = functools.reduce(lambda first, then: (then[0] * first[0], then[0] * first[1] + then[1]), steps)
        carry = factor * carry + addend
    assert_within(result.y, result.y_bound, y)
    assert_within(result.states["h"], result.state_bounds["h"], carry)


@pytest.mark.parametrize("kind", ["slow", "slower", "saturated"])
@pytest.mark.parametrize("cell", BUILT_IN)
def test_a_lost_carry_is_caught(cell: str, kind: str) -> None:
    """Where the state is kept, forgetting it at a tile's edge shows, in every precision, far beyond the bound."""
    tile = 64
    for precision in PRECISION_NAMES:
        gates, _, result = expected(cell, kind, (2 * tile, 2, 8), precision)
        parameters = drawn_parameters(cell, 0, 8)
        second = {name: value[tile:] for name, value in gates.items()}
        forgotten = oracle(np, cell, second, {CELLS[cell].state: np.zeros((2, 8))}, parameters, FP32)
        off = np.abs(forgotten.y[0] - result.y[tile])
        assert np.median(off / result.y_bound[tile]) > 30, precision


@pytest.mark.parametrize("precision", PRECISION_NAMES)
@pytest.mark.parametrize("cell", BUILT_IN)
def test_exchanged_gates_are_caught(cell: str, precision: str) -> None:
    gates, state, result = expected(cell, "ordinary", (40, 2, 8), precision)
    names = list(gates)
    for first, second in zip(names, names[1:] + names[:1], strict=True):
        wrong = gates | {first: gates[second], second: gates[first]}
        other = oracle(np, cell, wrong, state, drawn_parameters(cell, 0, 8), precision_of(precision))
        assert np.median(np.abs(other.y - result.y) / result.y_bound) > 10


@pytest.mark.parametrize("kind", GATE_KINDS)
@pytest.mark.parametrize("cell", BUILT_IN)
def test_bounds_stay_small(cell: str, kind: str) -> None:
    """Against the magnitude of what has been added up, not of y, in which terms may cancel."""
    gates, _, result = expected(cell, kind, (1000, 1, 8))
    u, steps = Arithmetic.of(np, FP32).u, len(next(iter(gates.values())))
    largest = 2 + max(np.abs(value).max() for value in gates.values())
    assert np.all(np.isfinite(result.y_bound))
    # What is kept for ever is charged with each step; what a gate's own error costs, with 8 + |x| ulp, likewise.
    assert result.y_bound.max() <= 8 * (8 + largest) * largest * u * steps


def test_the_assertion_compares() -> None:
    y, bound = np.zeros((2, 3)), np.full((2, 3), 0.5)
    assert_within(y, bound, y + 0.5)
    for wrong in (y + 0.6, np.where(np.arange(3) == 1, np.nan, y), y[:1]):
        with pytest.raises(AssertionError):
            assert_within(y, bound, wrong)
    with pytest.raises(AssertionError):
        assert_within(np.full((2, 3), np.nan), bound, y)
