"""`scan_arithmetic: log`: the same states from logarithms, for cells whose a and b are proved never to be negative."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.kernel_inputs import GATE_KINDS, arranged, by_time, drawn_gates
from support.oracle import CELLS, FUNCTION_ROUNDINGS, Arithmetic, assert_within
from support.uncompiled_kernels import compiled_for_host, host_kernel

from minrnn_gen.cpu.recurrence import scan, scan_in_logarithms
from minrnn_gen.errors import BadInput
from minrnn_gen.precision import precision_of

LOG_CELLS = ("min_gru_log", "min_lstm_log")
seeds = st.integers(0, 2**32 - 1)


def expected_states(cell: str, gates: dict[str, Any], initial: Any, u: float) -> tuple[Any, Any]:
    """Return the states [T, B, H] in float64, one step after the other, and how far logarithms of roundoff u may be off.

    A logarithm l is off by u |l| and a few u, and its exponential by as much of itself. So each step adds, to what came in
    and to the errors of a and b, this of each of the two terms of a h + b and of their sum.
    """

    def through_log(value: Any) -> Any:
        logs = np.abs(np.log(np.where(value > 0, value, 1)))
        return u * value * (2 * FUNCTION_ROUNDINGS + 2 * logs)

    arithmetic = Arithmetic(np, u, 2.0**-149, 2.0**-126, approximate=False)
    a, b = CELLS[cell].step({name: arithmetic.exact(gate) for name, gate in gates.items()}, {})
    states, bounds = np.empty_like(a.value), np.empty_like(a.value)
    state, bound = initial.astype(np.float64), 0.0
    for t in range(len(states)):
        kept = a.value[t] * state
        bound = a.value[t] * bound + a.error[t] * state + b.error[t]
        bound = bound + through_log(kept) + kept * u * np.abs(np.log(np.where(state > 0, state, 1))) + through_log(b.value[t])
        state = kept + b.value[t]
        bound = bound + through_log(state) + arithmetic.flushed
        states[t], bounds[t] = state, bound
    return states, bounds


@settings(max_examples=examples(60))
@given(
    cell=st.sampled_from(LOG_CELLS),
    kind=st.sampled_from(GATE_KINDS),
    seed=seeds,
    time=st.sampled_from((0, 1, 2, 3, 31, 64, 65, 300)),
    zeros=st.booleans(),
)
def test_states_are_those_of_the_equations(cell: str, kind: str, seed: int, time: int, zeros: bool) -> None:
    """From 300 steps on the host composes steps as a tree, which adds no more errors per step than the walk does."""
    gates = {name: gate.astype(np.float32) for name, gate in drawn_gates(cell, kind, seed, (time, 2, 5)).items()}
    initial = np.zeros((2, 5), np.float32) if zeros else np.random.default_rng(seed).uniform(0.1, 3, (2, 5)).astype(np.float32)
    states, bounds = expected_states(cell, gates, initial, precision_of("fp32").arithmetic_roundoff)
    kernel = host_kernel(cell, 5, "fp32", scan_arithmetic="log")
    y, final = kernel(arranged(np, gates, "BTD"), state={"h": initial})
    assert_within(states, 2 * bounds, by_time(y, "BTD"))
    assert np.array_equal(final["h"], by_time(y, "BTD")[-1] if time else initial)


@given(seed=seeds, method=st.sampled_from(("sequential", "parallel")), time=st.integers(0, 70))
def test_zeros_cuts_and_idle_steps_are_exact(seed: int, method: Any, time: int) -> None:
    """log(0) is -infinity, and what is computed with it is 0; where nothing happens the state stays what it is."""
    random = np.random.default_rng(seed)
    a = random.choice([0.0, 1.0, 0.5], (time, 6))
    b = random.choice([0.0, 0.0, 2.0], (time, 6))
    a[:, 0], b[:, 0] = 1, 0
    initial, cuts = random.choice([0.0, 0.3, 7.0], 6), random.random((time, 6)) < 0.2
    cuts[:, 0] = False
    found = scan_in_logarithms(a, b, initial, method, cuts)
    np.testing.assert_allclose(found, scan(a, b, initial, method, cuts), rtol=1e-13, atol=0)
    assert (found[:, 0] == initial[0]).all() and np.array_equal(found[0], initial)


def test_nan_stays_where_it_is_and_ends_at_a_cut() -> None:
    a, b = np.full((40, 3), 0.5), np.ones((40, 3))
    a[7, 1] = np.nan
    cuts = np.zeros((40, 3), bool)
    cuts[20] = True
    for method in ("sequential", "parallel"):
        found = scan_in_logarithms(a, b, np.array([1.0, 1.0, -1.0]), method, cuts)  # type: ignore[arg-type]
        assert np.isnan(found[8:21, 1]).all() and np.isfinite(found[21:, 1]).all()
        assert np.isfinite(found[:, 0]).all()
        assert np.isnan(found[1:21, 2]).all(), "a negative state has no logarithm"


def test_gradients_are_those_of_the_linear_recurrence() -> None:
    x = np.random.default_rng(0).normal(size=(2, 50, 2, 5)).astype(np.float32)
    dy = np.random.default_rng(1).normal(size=(2, 50, 5)).astype(np.float32)
    found = []
    for arithmetic in ("linear", "log"):
        kernel = host_kernel("min_gru_log", 5, "fp32", scan_arithmetic=arithmetic)
        _, _, saved = kernel.forward(x)
        found.append(kernel.backward(saved, dy)["x"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)  # states differ by rounding


REFUSED = ("min_gru", "min_gru_tanh", "min_lstm", "hgrn", "qrnn", "rg_lru")


@pytest.mark.parametrize("cell", REFUSED)
def test_a_cell_that_may_be_negative_is_refused(cell: str) -> None:
    with pytest.raises(BadInput) as refused:
        compiled_for_host({"model": cell, "hidden_size": 4, "scan_arithmetic": "log"})
    text = str(refused.value)
    assert text.startswith("<dict>: scan_arithmetic: 'log' needs ") and "min_gru_log" in text and "\n" not in text
    assert f"{CELLS[cell].state}[t]" in text and f"the cell {cell};" in text


OWN = {
    "h[t] = sigmoid(W.f) * h[t-1] + exp(W.i)": True,
    "h[t] = sigmoid(W.f) * h[t-1] + relu(W.i)": True,
    "h[t] = exp(-softplus(W.f)) * h[t-1] + W.i ** 2": True,
    "h[t] = where(W.f > 1, W.f - 1, 0) * h[t-1] + max(W.i, 0)": True,
    "h[t] = (1 - sigmoid(W.f)) * h[t-1] + 2": True,
    "h[t] = tanh(W.f) * h[t-1] + 1": False,
    "h[t] = sigmoid(W.f) * h[t-1] + where(W.i >= -1, W.i, 1)": False,
    "h[t] = (0.9 - sigmoid(W.f)) * h[t-1] + 1": False,
    "h[t] = sigmoid(W.f) * h[t-1] + 1\nc[t] = c[t-1] + W.i": False,
}


@pytest.mark.parametrize("equations", OWN)
def test_ones_own_cell_is_taken_if_its_signs_are_proved(equations: str) -> None:
    output = "h[t] - c[t]" if "c[t]" in equations else "h"
    model = {"name": "own", "equations": equations, "output": output}
    spec = {"model": model, "hidden_size": 4, "scan_arithmetic": "log"}
    if OWN[equations]:
        compiled_for_host(spec)
    else:
        with pytest.raises(BadInput, match="never negative"):
            compiled_for_host(spec)
