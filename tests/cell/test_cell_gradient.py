"""Gradients are those of the equations: exact differences, torch, and what is agreed at ties and kinks."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.cell_evaluation import COMPARISONS, EXACT, Tree, built_in, cell_of, tree_text, trees, value_of
from support.examples import examples
from support.one_step import lower_step, lower_step_backward
from support.patience import within

from minrnn_gen.cell.files import find_cell, library_names
from minrnn_gen.cell.language import Cell, parse_cell
from minrnn_gen.cell.printing import equation_text
from minrnn_gen.cell.program import Program

SYMBOLS = ("W.x", "W.y", "R.x", "R.y", "h[t-1]", "c[t-1]", "n[t-1]", "p", "q")
LEAVES = (*SYMBOLS, "early")
INPUTS = ("W_x", "W_y", "R_x", "R_y", "previous_h", "previous_c", "previous_n", "parameter_p", "parameter_q")


def random_cell(early: Tree, first: Tree, second: Tree) -> Cell:
    """A cell with every kind of name, several of each: the trees are a let and what two of three states are made of."""
    used = " + ".join(SYMBOLS)
    equations = (
        f"early = {tree_text(early)}\nc[t] = {tree_text(first)} + 0 * ({used})\nn[t] = min(c[t], n[t-1]) * p\n"
        f"h[t] = {tree_text(second)} * c[t] + early - n[t]"
    )
    return cell_of(equations, parameters=["p", "q"], gates=["x", "y"], states=["h", "c", "n"])


small_cells = st.builds(random_cell, trees(SYMBOLS, depth=3), trees(LEAVES, depth=3), trees(LEAVES, depth=2))
coordinates = st.integers(-300, 300).map(lambda hundredths: hundredths / 100)
points = st.lists(coordinates, min_size=len(INPUTS), max_size=len(INPUTS))


def loss_of(cell: Cell, values: Mapping[str, Any], weights: Mapping[str, Any], fixed: list[Any], *, replay: bool) -> Any:
    """Return the weighted sum of the next states and y, computed from the equations themselves.

    What is detached, and which branches are taken, is written to the list `fixed`, or with `replay` taken from it: a difference
    must not see it move.
    """
    recorded = iter(tuple(fixed))

    def fix(value: Any) -> Any:
        if replay:
            return next(recorded)
        fixed.append(value)
        return value

    def untied(name: str) -> Callable[[Any, Any], Any]:
        def chosen(a: Any, b: Any) -> Any:
            assume(replay or a != b)  # of two ties that undo each other, differences see nothing, and gradients each
            return EXACT[name](a, b)

        return chosen

    conditions = {name: lambda a, b, name=name: fix(EXACT[name](a, b)) for name in COMPARISONS}
    conditions |= {name: untied(name) for name in ("min", "max")}
    held = dict(values)
    functions = EXACT | conditions | {"detach": fix}
    for symbol, expression in cell.definitions:
        held[symbol.name] = value_of(expression, held, functions)
    y = value_of(cell.output, held, functions)
    return sum((weights[state] * held[f"{state}[t]"] for state in cell.states), weights["y"] * y)


def exactly(program: Program, values: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate a program in mpmath."""
    held = dict(values)
    for statement in program.statements:
        held[statement.name] = value_of(statement.expression, held, EXACT | {"detach": lambda x: x})
    return {label: held[name] for label, name in program.results}


@settings(max_examples=examples(150))
@given(small_cells, points, st.lists(st.integers(-3, 3), min_size=4, max_size=4))
def test_a_gradient_is_the_limit_of_differences(cell: Cell, point: list[float], incoming: list[int]) -> None:
    """In 400 digits a central difference is the derivative but for kinks, where the two sides differ."""
    weights = dict(zip(("h", "c", "n", "y"), incoming, strict=True))
    with mpmath.workdps(400):
        step = mpmath.mpf(10) ** -100
        at = {symbol: mpmath.mpf(value) for symbol, value in zip(SYMBOLS, point, strict=True)}
        inputs = {name: at[symbol] for name, symbol in zip(INPUTS, SYMBOLS, strict=True)}
        inputs |= {f"gradient_state_{state}": weights[state] for state in cell.states} | {"gradient_y": weights["y"]}
        fixed: list[Any] = []
        try:
            here = loss_of(cell, at, weights, fixed, replay=False)
            found = exactly(lower_step_backward(cell), inputs)
        except ZeroDivisionError:
            assume(False)
        for name, symbol in zip(INPUTS, SYMBOLS, strict=True):
            before, after = (
                loss_of(cell, at | {symbol: at[symbol] + shift}, weights, fixed, replay=True) for shift in (-step, step)
            )
            left, right = (here - before) / step, (after - here) / step
            if abs(left - right) <= 1e-30 * (1 + abs(left)):  # neither a kink nor a NaN
                assert abs(found[f"gradient_{name}"] - right) <= 1e-30 * (1 + abs(right)), name


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    """Torch, imported before the examples: several that end without it are a group of exceptions."""
    import torch

    return torch


@settings(max_examples=examples(150))
@given(small_cells, points)
def test_a_gradient_is_torchs(torch: ModuleType, cell: Cell, point: list[float]) -> None:
    of_torch = ("sigmoid", "tanh", "exp", "expm1", "log", "log1p", "abs", "sqrt", "relu", "atan", "erf", "sin", "cos")
    unary = {name: getattr(torch, name) for name in of_torch}
    functions = {
        **EXACT,
        **unary,
        "number": lambda number: torch.tensor(float(number), dtype=torch.float64),
        **{name: getattr(torch.nn.functional, name) for name in ("logsigmoid", "softplus", "silu", "softsign", "gelu")},
        # The slope of torch's own is 1 / 6 in float32.
        "hard_sigmoid": lambda x: torch.where(x <= -3, 0.0, torch.where(x >= 3, 1.0, x / 6 + 0.5)),
        # torch's own minimum and maximum share the gradient at a tie.
        "min": lambda a, b: torch.where((a <= b) | a.isnan(), a, b),
        "max": lambda a, b: torch.where((a >= b) | a.isnan(), a, b),
        "where": torch.where,
        "detach": lambda x: x.detach(),
    }
    tensors = {
        symbol: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for symbol, value in zip(SYMBOLS, point, strict=True)
    }
    held = dict(tensors)
    for symbol, expression in cell.definitions:
        held[symbol.name] = value_of(expression, held, functions)
    loss = 2 * held["h[t]"] - held["c[t]"] + 3 * held["n[t]"] + held["h[t]"]
    assume(loss.isfinite())
    loss.backward()

    inputs = dict(zip(INPUTS, np.array(point), strict=True))
    weights = {"gradient_state_h": 2.0, "gradient_state_c": -1.0, "gradient_state_n": 3.0, "gradient_y": 1.0}
    inputs |= {name: np.array(weight) for name, weight in weights.items()}
    program = lower_step_backward(cell)
    everything = tuple((statement.name, statement.name) for statement in program.statements)
    inner = dataclasses.replace(program, results=everything).evaluate(inputs)
    # Beyond this, rounding in the middle shows in the results.
    assume(all(abs(value) < 1e4 for value in inner.values() if np.isfinite(value)))
    found = program.evaluate(inputs)
    for name, symbol in zip(INPUTS, SYMBOLS, strict=True):
        gradient = tensors[symbol].grad
        expected = 0.0 if gradient is None else gradient.item()
        if np.isfinite(expected):  # torch lets a branch that is not taken pass on its NaN
            np.testing.assert_allclose(found[f"gradient_{name}"], expected, rtol=1e-8, atol=1e-8)


X, H = "W.x", "h[t-1]"
AT_KINKS = [
    ("min(W.x, h[t-1])", (2, 2), (1, 0)),
    ("min(h[t-1], W.x)", (2, 2), (0, 1)),
    ("max(W.x, h[t-1])", (2, 2), (1, 0)),
    ("max(h[t-1], W.x)", (2, 2), (0, 1)),
    ("max(h[t-1], W.x)", (-np.inf, -np.inf), (0, 1)),
    ("max(W.x, h[t-1])", (1, 2), (0, 1)),
    ("min(W.x, h[t-1])", (1, 2), (1, 0)),
    ("relu(W.x) + h[t-1]", (0, 1), (0, 1)),
    ("relu(W.x) + h[t-1]", (1e-300, 1), (1, 1)),
    ("relu(W.x) + h[t-1]", (np.nan, 1), (1, 1)),
    ("max(W.x, 1) + h[t-1]", (np.nan, 1), (1, 1)),
    ("min(1, W.x) + h[t-1]", (np.nan, 1), (1, 1)),
    ("abs(W.x) + h[t-1]", (np.nan, 1), (0, 1)),
    ("abs(W.x) * h[t-1]", (0, 3), (0, 0)),
    ("abs(W.x) * h[t-1]", (-2, 3), (-3, 2)),
    ("sqrt(W.x) * h[t-1]", (0, 3), (0, 0)),
    ("sqrt(W.x) * h[t-1]", (4, 3), (0.75, 2)),
    ("sqrt(W.x * W.x) + h[t-1]", (0, 3), (0, 1)),
    ("detach(W.x) * W.x + h[t-1]", (3, 1), (3, 1)),
    ("where(W.x >= h[t-1], W.x * 2, h[t-1] * 5)", (1, 1), (2, 0)),
    ("where(W.x > h[t-1], W.x * 2, h[t-1] * 5)", (1, 1), (0, 5)),
    ("W.x ** 3 * h[t-1] ** 0", (2, 5), (12, 0)),
    ("W.x ** -2 + h[t-1]", (2, 5), (-0.25, 1)),
]


def gradients_of(expression: str, x: Any, h: Any, incoming: float = 1.0) -> tuple[Any, Any]:
    program = lower_step_backward(cell_of(f"h[t] = {expression}"))
    # y is h[t]: half of the gradient comes through each.
    values = {"W_x": x, "previous_h": h, "gradient_state_h": incoming / 2, "gradient_y": incoming / 2}
    found = program.evaluate({name: np.asarray(value, np.float64) for name, value in values.items()})
    return found["gradient_W_x"], found["gradient_previous_h"]


def value_at(expression: str, x: Any, h: Any) -> Any:
    program = lower_step(cell_of(f"h[t] = {expression}"))
    return program.evaluate({"W_x": np.asarray(x, np.float64), "previous_h": np.asarray(h, np.float64)})["state_h"]


@pytest.mark.parametrize(("expression", "point", "expected"), AT_KINKS, ids=[f"{each[0]} at {each[1]}" for each in AT_KINKS])
def test_ties_and_kinks(expression: str, point: tuple[float, float], expected: tuple[float, float]) -> None:
    assert gradients_of(expression, *point) == expected


SPECIAL = st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1.0, -2.5]) | st.floats()


@given(st.sampled_from(["min", "max"]), SPECIAL, SPECIAL, st.sampled_from(["W.x, h[t-1]", "h[t-1], W.x", "W.x, 1", "1, W.x"]))
@example("min", np.nan, 1.0, "W.x, h[t-1]")
@example("max", 1.0, np.nan, "W.x, h[t-1]")
@example("max", np.nan, np.nan, "h[t-1], W.x")
def test_the_argument_that_is_taken_gets_the_whole_gradient(name: str, x: float, h: float, order: str) -> None:
    """Whatever the two are: a NaN is taken before a number, and the first of two NaN or of two equals."""
    x_place = order.split(", ").index("W.x")
    values = {"W.x": x, "h[t-1]": h, "1": 1.0}
    a, b = (values[argument] for argument in order.split(", "))
    taken = 0 if np.isnan(a) else 1 if np.isnan(b) else int(b < a if name == "min" else b > a)
    # Every state has to be read; a branch that is not taken adds nothing.
    expression = f"{name}({order})" + (" + where(1 < 0, h[t-1], 0)" if "1" in order.split(", ") else "")
    dx, dh = gradients_of(expression, x, h)
    assert dx == (taken == x_place)
    assert dh == (taken != x_place and "h[t-1]" in order.split(", "))
    np.testing.assert_array_equal(value_at(expression, x, h), (a, b)[taken])


@given(SPECIAL)
@example(np.nan)
def test_the_gradients_of_relu_and_abs_are_torchs(x: float) -> None:
    import torch

    for name in ("relu", "abs"):
        tensor = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        value = getattr(torch, name)(tensor)
        value.backward()
        expression = f"{name}(W.x) + where(1 < 0, h[t-1], 0)"
        assert tensor.grad is not None and gradients_of(expression, x, 0.0)[0] == tensor.grad.item(), name
        np.testing.assert_array_equal(value_at(expression, x, 0.0), value.item())


NOT_TAKEN = [
    ("where(W.x > 0, log(W.x), h[t-1])", (0, 1), (0, 1)),
    ("where(W.x > 0, log(W.x), h[t-1])", (-1, 1), (0, 1)),
    ("where(W.x > 0, h[t-1] / W.x, W.x + h[t-1])", (0, 0), (1, 1)),
    ("where(W.x > 0, sqrt(W.x), h[t-1] * 3)", (-4, 1), (0, 3)),
    ("where(W.x < 9, W.x + h[t-1], exp(exp(W.x)) * h[t-1])", (8, 1), (1, 1)),
    ("relu(log(W.x)) + h[t-1]", (0, 1), (0, 1)),
    ("max(log(W.x), h[t-1])", (0, 1), (0, 1)),
    ("max(h[t-1], log(W.x))", (0, 1), (0, 1)),
    ("max(log(W.x), h[t-1]) + max(log(W.x), 2)", (0, 1), (0, 1)),
    ("max(log(W.x), h[t-1]) + relu(log(W.x)) + where(W.x > 0, log(W.x), 0)", (0, 1), (0, 1)),
    ("min(1 / W.x, h[t-1])", (0, 1), (0, 1)),
    ("min(1 / W.x, 1) + h[t-1]", (0, 1), (0, 1)),
    ("max(-1, log(W.x)) + h[t-1]", (0, 1), (0, 1)),
    ("min(h[t-1], 1 / W.x)", (0, 1), (0, 1)),
    ("where(W.x > 0, where(h[t-1] > 0, log(W.x) * log(h[t-1]), W.x), W.x + h[t-1])", (0, 0), (1, 1)),
    ("where(W.x > 0, log(W.x) ** 2 * h[t-1], 1) + W.x * h[t-1]", (0, 5), (5, 0)),
]


@pytest.mark.parametrize(("expression", "point", "expected"), NOT_TAKEN, ids=[f"{each[0]} at {each[1]}" for each in NOT_TAKEN])
def test_a_branch_that_is_not_taken_passes_nothing_on(
    expression: str, point: tuple[float, float], expected: tuple[float, float]
) -> None:
    assert gradients_of(expression, *point) == expected


def test_an_input_that_reaches_no_result_has_the_gradient_zero() -> None:
    cell = cell_of("h[t] = where(W.gate > 0, detach(W.x * R.x), p) + 0 * c[t-1]\nc[t] = h[t-1] - h[t-1]", parameters=["p"])
    program = lower_step_backward(cell)
    found = program.evaluate({name: np.ones(3) for name in program.inputs})
    assert [label for label, _ in program.results] == [f"gradient_{name}" for name in lower_step(cell).inputs]
    assert program.inputs == (*lower_step(cell).inputs, "gradient_state_h", "gradient_state_c", "gradient_y")
    assert {label: value.tolist() for label, value in found.items()} == {label: [0.0, 0.0, 0.0] for label in found}, (
        "p's branch is not taken where W.gate > 0"
    )


EXTREMES = (-1e4, -1e3, -104.0, -88.8, -20.0, -1.0, -1e-4, 0.0, 1e-4, 1.0, 20.0, 88.8, 104.0, 1e3, 1e4)
DRAWN, REACHED_STEPS = 2000, 8


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", library_names())
def test_no_preactivation_gives_nan_or_infinity(name: str, dtype: type) -> None:
    """From states that the cell itself reaches: every pair of gates at every pair of extremes, the others drawn, and all drawn.

    Of the drawn every magnitude is as likely as another.
    """
    cell = built_in(name)
    step, backward = lower_step(cell), lower_step_backward(cell)
    random = np.random.default_rng(0)
    pairs = np.array(list(itertools.product(EXTREMES, EXTREMES)))
    gates = [each for each in step.inputs if each.startswith(("W_", "R_"))]
    rows = []
    for first, second in itertools.combinations(range(max(2, len(gates))), 2):
        drawn = random.choice(EXTREMES, (len(pairs), max(2, len(gates))))
        drawn[:, first], drawn[:, second] = pairs.T
        rows.append(drawn)
    shape = (DRAWN, max(2, len(gates)))
    rows.append(random.choice([-1, 1], shape) * np.minimum(10 ** random.uniform(-6, 4, shape), 1e4))
    drawn = np.concatenate(rows).astype(dtype)
    count = len(drawn)
    constants = {f"parameter_{key}": random.normal(size=count).astype(dtype) for key in cell.parameters}
    states = {f"previous_{state}": np.zeros(count, dtype) for state in cell.states}
    for _ in range(REACHED_STEPS):
        values = {gate: drawn[:, index] for index, gate in enumerate(gates)} | constants | states
        incoming = {key: np.ones(count, dtype) for key in backward.inputs if key.startswith("gradient_")}
        after, gradients = step.evaluate(values), backward.evaluate(values | incoming)
        for label, value in (after | gradients).items():
            assert value.dtype == dtype and np.isfinite(value).all(), label
        states = {f"previous_{state}": after[f"state_{state}"] for state in cell.states}
        drawn = random.permutation(drawn)


def test_what_the_forward_computes_is_used_again() -> None:
    program = lower_step_backward(cell_of("s = sigmoid(W.x)\nh[t] = s * h[t-1] + tanh(W.y) ** 2"))
    assert [f"{statement.name} = {equation_text(statement.expression)}" for statement in program.statements] == [
        "let_s = sigmoid(W_x)",
        "shared_0 = tanh(W_y)",
        "adjoint_state_h = gradient_state_h + gradient_y",
        "shared_1 = adjoint_state_h * shared_0",
        "adjoint_let_s = adjoint_state_h * previous_h",
        "gradient_W_x = adjoint_let_s * (let_s * (1 - let_s))",
        "gradient_W_y = (shared_1 + shared_1) * (1 - shared_0 * shared_0)",
        "gradient_previous_h = adjoint_state_h * let_s",
    ]


CHAINS = {
    "relu": "relu({0} + W.x)",
    "min": "min({0}, W.x) * 2",
    "where": "where(W.x > 0.25, {0} * W.x, W.x)",
    "tanh": "tanh({0})",
    "abs": "abs(-{0})",
    "quotient": "1 / ({0} + W.x)",
}


@pytest.mark.parametrize("step", CHAINS)
@pytest.mark.parametrize("named", [True, False])
def test_long_chains_have_gradients_in_short_statements(step: str, named: bool) -> None:
    """As deep as the language allows: 150 levels over all, 100 in one expression."""
    if named:
        chain = "v0 = h[t-1] * W.x\n" + "".join(f"v{i + 1} = {CHAINS[step].format(f'v{i}')}\n" for i in range(46))
        equations = f"{chain}h[t] = v46"
    else:
        value = "(h[t-1] * W.x)"
        for _ in range(30):
            value = CHAINS[step].format(value)
        equations = f"h[t] = {value}"
    started = time.process_time()
    program = lower_step_backward(cell_of(equations))
    assert time.process_time() - started < within(5)
    assert all(len(statement.cuda) < 10_000 for statement in program.statements)
    found = program.evaluate({name: np.array([0.5]) for name in program.inputs})
    assert np.isfinite(found["gradient_previous_h"]).all()


def test_the_front_end_with_gradients_takes_less_than_a_second() -> None:
    def once() -> float:
        started = time.process_time()
        cell = parse_cell(find_cell("slstm", Path("."), "<test>"))
        lower_step(cell)
        lower_step_backward(cell)
        return time.process_time() - started

    assert min(once() for _ in range(3)) < within(0.4)


COLD = """
import time
from pathlib import Path
from minrnn_gen.cell.files import find_cell
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.cell.lowering_steps import lower_steps, lower_steps_backward
cell = parse_cell(find_cell("slstm", Path("."), "<test>"))
lower_steps(cell), lower_steps_backward(cell)
print(time.process_time())
"""
# A process takes 0.2 s of a processor; the target is 0.4 s. Beside other tests a processor is slower.
COLD_SECONDS_MOST = 1.0


def test_a_cold_process_has_the_forward_and_the_gradient_of_slstm_in_less_than_a_second() -> None:
    answer = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, check=True)
    assert float(answer.stdout) < within(COLD_SECONDS_MOST)
