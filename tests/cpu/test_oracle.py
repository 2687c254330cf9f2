"""The oracle before anything is held against it: right, never too strict, and never so loose that a wrong kernel passes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernel_inputs import (
    GATE_KINDS,
    RAW_KINDS,
    arranged,
    by_time,
    drawn_coefficients,
    drawn_gates,
    drawn_parameters,
    drawn_state,
    laid_out,
)
from support.oracle import CELLS, Arithmetic, Expected, assert_within, oracle, raw_gradients
from support.uncompiled_kernels import host_kernel

from minrnn_gen.call.array import numpy_dtype
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


@pytest.mark.parametrize("precision", PRECISION_NAMES)
@given(kind=st.sampled_from(RAW_KINDS), seed=st.integers(0, 2**32 - 1))
def test_gradients_of_the_host_are_within_the_bound(precision: str, kind: str, seed: int) -> None:
    random, row = np.random.default_rng(seed), precision_of(precision)
    time = int(random.integers(1, 90))
    kernel = host_kernel("raw", 3, precision)
    gates, h0 = drawn_coefficients(kind, seed, (time, 2, 3)), drawn_state("raw", seed, 2, 3)["h"]
    storage = numpy_dtype(row.storage_dtype)
    a, b, dy = (one.astype(storage) for one in (gates["a"], gates["b"], random.normal(size=(time, 2, 3))))
    h0, dfinal = (one.astype(row.arithmetic_dtype) for one in (h0, random.normal(size=(2, 3))))
    _, _, saved = kernel.forward(arranged(np, {"a": a, "b": b}, "BTD"), state={"h": h0})
    found = kernel.backward(saved, np.ascontiguousarray(laid_out(dy, "BTD")), {"h": dfinal})
    expected = raw_gradients(np, *(one.astype(np.float64) for one in (a, b, h0, dy, dfinal)), row)
    for index, name in enumerate(("a", "b")):
        assert_within(*expected[name], by_time(found["x"][:, :, index], "BTD"))
    assert_within(*expected["initial"], found["state"]["h"])


def test_gradients_by_hand() -> None:
    """h[1] = 2 * 3 + 1, h[2] = 5 h[1]: with y[2] alone counted, all of it follows from the two slopes."""
    a, b, h0 = np.array([2.0, 5.0]).reshape(2, 1, 1), np.array([1.0, 0.0]).reshape(2, 1, 1), np.full((1, 1), 3.0)
    dy, dfinal = np.array([0.0, 1.0]).reshape(2, 1, 1), np.zeros((1, 1))
    found = {name: value.ravel().tolist() for name, (value, _) in raw_gradients(np, a, b, h0, dy, dfinal, FP32).items()}
    assert found == {"a": [15.0, 7.0], "b": [5.0, 1.0], "initial": [10.0]}
