"""Gradients through a whole sequence on the CPU: against the step's gradient iterated backwards, and against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cell_evaluation import Tree, built_in, cell_of, reading, tree_text, trees
from support.examples import examples
from support.one_step import lower_step, lower_step_backward
from test_cell_lowering import SCANS, scan_cells

from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.lowering import lower_scan, lower_scan_backward
from minrnn_gen.cpu import call as host_call
from minrnn_gen.cpu.call import BackwardCall, ForwardCall
from minrnn_gen.cpu.scan import run_scan, run_scan_backward

Array = Any
Problem = dict[str, Any]
"""The arguments of a run, the incoming gradients among them."""


def drawn_problem(cell: Cell, seed: int, time: int, batch: int = 2, hidden: int = 3, scale: float = 1.0) -> Problem:
    random = np.random.default_rng(seed)
    return {
        "gates": scale * random.normal(size=(time, batch, len(cell.gates), hidden)),
        "bias": random.normal(size=(len(cell.gates), hidden)),
        "parameters": {name: random.normal(size=hidden) for name in cell.parameters},
        "initial": {name: random.normal(size=(batch, hidden)) for name in cell.states},
        "dy": random.normal(size=(time, batch, hidden)),
        "dfinal": {name: random.normal(size=(batch, hidden)) for name in cell.states},
    }


def forward(cell: Cell, problem: Problem, dtype: type, **how: Any) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Return y, the states after each step, and the final states."""
    y = np.empty(problem["dy"].shape, dtype)
    history = {name: np.empty(problem["dy"].shape, dtype) for name in cell.states}
    arguments = {key: problem[key] for key in ("gates", "bias", "parameters", "initial")}
    lowered = lower_scan(cell, classify(cell))
    final = run_scan(lowered, ForwardCall(**arguments, arithmetic=dtype, y=y, all_states=history), **how)
    return y, history, final


def gradients_by_scan(cell: Cell, problem: Problem, dtype: type = np.float64, **how: Any) -> dict[str, Array]:
    y, history, _ = forward(cell, problem, dtype, **how)
    backward = lower_scan_backward(cell, classify(cell))
    states = {name: y if name == backward.output_state else history[name] for name in backward.read_states}
    dx = np.full(problem["gates"].shape, np.nan, dtype)
    arriving = {**problem, "dfinal": problem["dfinal"] or {}}
    found = run_scan_backward(backward, BackwardCall(**arriving, states=states, arithmetic=dtype, dx=dx), **how)
    named = {f"initial {name}": value for name, value in found.initial.items()}
    return {"x": dx, "bias": found.bias, **named, **{f"parameter {name}": value for name, value in found.parameters.items()}}


def gradients_by_steps(cell: Cell, problem: Problem) -> dict[str, Array]:
    """Walk forward with the step and back with its vector-Jacobian product, in float64."""
    step, backward = lower_step(cell), lower_step_backward(cell)
    gates = problem["gates"] + (0 if problem["bias"] is None else problem["bias"])
    constants = {f"parameter_{name}": value for name, value in problem["parameters"].items()}
    before = [{f"previous_{name}": value for name, value in problem["initial"].items()}]
    inputs = [constants | {f"W_{gate}": gates[t, :, index] for index, gate in enumerate(cell.gates)} for t in range(len(gates))]
    for values in inputs:
        after = step.evaluate(values | before[-1])
        before.append({f"previous_{name}": after[f"state_{name}"] for name in cell.states})
    zeros = np.zeros(problem["dy"].shape[1:])
    incoming = {f"gradient_state_{name}": (problem["dfinal"] or {}).get(name, zeros) for name in cell.states}
    dx = np.empty(problem["gates"].shape)
    sums = {f"parameter {name}": np.zeros(zeros.shape[1]) for name in cell.parameters}
    for t in reversed(range(len(gates))):
        found = backward.evaluate(inputs[t] | before[t] | incoming | {"gradient_y": problem["dy"][t]})
        incoming = {f"gradient_state_{name}": found[f"gradient_previous_{name}"] for name in cell.states}
        for index, gate in enumerate(cell.gates):
            dx[t, :, index] = found[f"gradient_W_{gate}"]
        for name in cell.parameters:
            sums[f"parameter {name}"] += found[f"gradient_parameter_{name}"].sum(axis=0)
    initial = {f"initial {name}": incoming[f"gradient_state_{name}"] for name in cell.states}
    return {"x": dx, "bias": dx.sum(axis=(0, 1)), **initial, **sums}


def assert_close(found: dict[str, Array], expected: dict[str, Array], tolerance: float) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        size = np.abs(value[np.isfinite(value)]).max(initial=1)
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance * size, err_msg=name)


@pytest.mark.parametrize("time", [0, 1, 2, 17])
@pytest.mark.parametrize("name", scan_cells())
def test_the_backward_scan_is_the_steps_gradient_iterated(name: str, time: int) -> None:
    cell = scan_cells()[name]
    problem = drawn_problem(cell, 0, time)
    assert_close(gradients_by_scan(cell, problem), gradients_by_steps(cell, problem), 1e-12)


@settings(max_examples=examples(40))
@given(
    trees(("W.x", "W.y", "p"), depth=2),
    trees(("W.x", "W.y", "p", "early"), depth=2),
    trees(("W.x", "h[t-1]", "h[t]", "c[t-1]", "c[t]", "p", "early"), depth=3),
    st.integers(0, 2**32 - 1),
)
def test_of_any_scan_too(early: Tree, gated: Tree, output: Tree, seed: int) -> None:
    equations = (
        f"early = {tree_text(early)}\nc[t] = sigmoid(W.x) * c[t-1] + tanh({tree_text(gated)})\n"
        "h[t] = tanh(early) * h[t-1] + W.x * W.y * p"
    )
    read = reading(tree_text(output), "h[t]", "c[t]")
    cell = cell_of(equations, parameters=["p"], gates=["x", "y"], states=["h", "c"], output=read)
    problem = drawn_problem(cell, seed, 4)
    with np.errstate(all="ignore"):
        expected = gradients_by_steps(cell, problem)
    # Both are sums of the same products in another order; where those are huge or undefined there is nothing to compare.
    if all(np.isfinite(value).all() and np.abs(value).max(initial=0) < 1e4 for value in expected.values()):
        assert_close(gradients_by_scan(cell, problem), expected, 1e-9)


def loss_of(cell: Cell, problem: Problem) -> float:
    y, _, final = forward(cell, problem, np.float64)
    return float((y * problem["dy"]).sum() + sum((final[name] * problem["dfinal"][name]).sum() for name in cell.states))


@pytest.mark.parametrize("name", SCANS)
def test_gradients_are_differences_of_the_whole_sequence(name: str) -> None:
    """Along a random direction of each argument: the central difference of step h is off by h^2 and by roundoff / h."""
    cell = built_in(name)
    problem = drawn_problem(cell, 3, 40)
    found = gradients_by_scan(cell, problem)
    random = np.random.default_rng(4)
    step = 1e-5

    def moved(label: str, direction: Array, distance: float) -> Problem:
        kind, _, key = label.partition(" ")
        kind = {"x": "gates", "parameter": "parameters"}.get(kind, kind)
        at = problem[kind][key] if key else problem[kind]
        return problem | {kind: problem[kind] | {key: at + distance * direction} if key else at + distance * direction}

    for label, gradient in found.items():
        direction = random.normal(size=gradient.shape)
        difference = (loss_of(cell, moved(label, direction, step)) - loss_of(cell, moved(label, direction, -step))) / (2 * step)
        np.testing.assert_allclose((gradient * direction).sum(), difference, rtol=1e-6, atol=1e-6, err_msg=label)


@pytest.mark.parametrize("method", ["sequential", "parallel"])
@pytest.mark.parametrize("block", [1, 30, 61, 1 << 20])
@pytest.mark.parametrize("name", ["min_gru", "qrnn", "rg_lru", "looks back", "same-step state", "two states"])
def test_blocks_and_methods_make_no_difference(name: str, block: int, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = scan_cells()[name]
    problem = drawn_problem(cell, 1, 33)
    expected = gradients_by_steps(cell, problem)
    monkeypatch.setattr(host_call, "BLOCK_ELEMENTS", block)
    assert_close(gradients_by_scan(cell, problem, method=method), expected, 1e-11)


def test_what_is_not_given_is_zero() -> None:
    cell = scan_cells()["two states"]
    problem = drawn_problem(cell, 1, 9)
    partly = problem | {"dfinal": {"n": problem["dfinal"]["n"]}}
    assert_close(gradients_by_scan(cell, partly), gradients_by_steps(cell, partly), 1e-12)
    for dfinal in (None, {}):
        nothing = problem | {"dfinal": dfinal, "bias": None}
        assert_close(gradients_by_scan(cell, nothing), gradients_by_steps(cell, nothing), 1e-12)


@pytest.mark.parametrize(("time", "batch"), [(0, 2), (5, 0), (0, 0)])
def test_without_time_or_batch(time: int, batch: int) -> None:
    cell = built_in("min_lstm")
    problem = drawn_problem(cell, 1, time, batch)
    found = gradients_by_scan(cell, problem)
    assert np.array_equal(found["initial h"], problem["dfinal"]["h"])
    assert found["x"].shape == (time, batch, 3, 3) and not found["bias"].any()


def dtype_of(label: str) -> type:
    """Precision of a gradient computed in float32: sums over batch and time are wider."""
    return np.float64 if label.startswith(("bias", "parameter")) else np.float32


@pytest.mark.parametrize("name", SCANS)
def test_no_preactivation_gives_nan_or_infinity(name: str) -> None:
    cell = built_in(name)
    for seed in range(3):
        problem = drawn_problem(cell, seed, 30, 4, 8)
        problem["gates"] = np.random.default_rng(seed).choice([-1e4, -100, -1, 0, 1, 100, 1e4], problem["gates"].shape)
        problem["bias"] = None
        for label, value in gradients_by_scan(cell, problem, np.float32).items():
            assert value.dtype == dtype_of(label) and np.isfinite(value).all(), label


@pytest.mark.parametrize("name", SCANS)
def test_float32_is_within_its_roundoff_of_float64(name: str) -> None:
    """300 steps: the parallel scan of the sizes' own choice."""
    cell = built_in(name)
    problem = drawn_problem(cell, 5, 300)
    found, expected = (gradients_by_scan(cell, problem, dtype) for dtype in (np.float32, np.float64))
    for label, value in expected.items():
        assert found[label].dtype == dtype_of(label)
        assert np.abs(found[label] - value).max() <= 1e-4 * np.abs(value).max(), label


def test_nan_stays_in_its_own_sequence_and_channel() -> None:
    cell = built_in("min_lstm")
    problem = drawn_problem(cell, 0, 300)
    problem["bias"] = None
    clean = gradients_by_scan(cell, problem)
    poisoned = problem | {"gates": problem["gates"].copy()}
    poisoned["gates"][150, 1, 0, 2] = np.nan
    found = gradients_by_scan(cell, poisoned)
    touched = np.zeros((2, 3), bool)
    touched[1, 2] = True
    assert np.array_equal(found["x"][:, ~touched[:, None].repeat(3, 1)], clean["x"][:, ~touched[:, None].repeat(3, 1)])
    assert np.array_equal(found["initial h"][~touched], clean["initial h"][~touched])
    assert np.isnan(found["x"][150, 1, :, 2]).any()
