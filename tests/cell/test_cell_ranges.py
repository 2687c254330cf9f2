"""Ranges hold every value that a program takes, and are tight where something is built on them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cell_evaluation import EXACT, Tree, built_in, cell_of, tree_text, trees, value_of
from support.examples import examples
from support.one_step import lower_step_backward
from support.patience import within

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.functions import Comparison
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.ranges import Range
from minrnn_gen.cell.value_numbering import ProgramBuilder

LEAVES = ("W.x", "W.y", "p")


def builder_of(cell: Cell) -> ProgramBuilder:
    """Return a builder that has numbered every value of `cell`."""
    names = [*(f"W.{gate}" for gate in cell.gates), *(f"{state}[t-1]" for state in cell.states), *cell.parameters]
    builder = ProgramBuilder({ex.named(name): name for name in names})
    for symbol, expression in cell.definitions:
        builder.define(symbol, expression, symbol.name)
    return builder


def range_of(expression: str, lets: str = "") -> Range:
    """Return the range of an expression over gates."""
    return builder_of(cell_of(f"{lets}\nh[t] = {expression}")).range_of(ex.current("h"))


def parts_of(expression: ex.Expr) -> Iterator[ex.Expr]:
    if not isinstance(expression, Comparison):
        yield expression
    for operand in ex.operation(expression)[1]:
        yield from parts_of(operand)


@settings(max_examples=examples(300))
@given(trees(LEAVES, depth=4), st.lists(st.integers(-400, 400), min_size=3, max_size=3))
def test_a_value_lies_in_its_range(tree: Tree, point: list[int]) -> None:
    cell = cell_of(f"h[t] = {tree_text(tree)} + 0 * (W.x + W.y + p)", parameters=["p"])
    builder = builder_of(cell)
    ((_, whole),) = cell.definitions
    with mpmath.workdps(30):
        values = {name: mpmath.mpf(hundredths) / 100 for name, hundredths in zip(LEAVES, point, strict=True)}
        for part in parts_of(whole):
            try:
                value = value_of(part, values, EXACT | {"detach": lambda x: x})
            except ZeroDivisionError:
                continue
            bounds = builder.range_of(builder.value(part))
            if mpmath.isfinite(value):
                slack = 1e-12 * abs(value) + 1e-300  # bounds are rounded
                assert bounds.least - slack <= value <= bounds.greatest + slack, part


PROVED = {
    "sigmoid(W.x)": (0, 1),
    "1 - sigmoid(W.x)": (0, 1),
    "1 - tanh(W.x) ** 2": (0, 1),
    "exp(-8 * softplus(W.x) * sigmoid(W.y))": (0, 1),
    "-expm1(2 * min(W.x, 0))": (0, 1),
    "where(W.x >= 0, W.x + 0.5, sigmoid(W.x))": (0, math.inf),
    "where(W.x < 0, sigmoid(W.x), W.x + 0.5)": (0, math.inf),
    "where(-1 < W.x, W.x, 3) + 1": (0, math.inf),
    "where(W.x == 2, W.x, 5)": (2, 5),
    "where(W.x != 2, 5, W.x)": (2, 5),
    "where(W.x > 0, where(W.y > W.x, W.y, 1), 0)": (0, math.inf),
    "W.x * W.x": (0, math.inf),
    "(W.x - W.y) ** 2 + 1": (1, math.inf),
    "1 / (1 + exp(-W.x))": (0, 1),
    "relu(W.x) / (relu(W.x) + relu(W.y) + 1)": (0, 1),
    "(exp(W.x) + 1) / (3 + (1 + (exp(W.y) + exp(W.x))))": (0, 1),
    "W.x / W.y": (-math.inf, math.inf),
    "log(exp(min(W.x, 0)))": (-math.inf, 0),
    "max(W.x, W.y) - W.y": (0, math.inf),
    "W.y - max(max(W.x, W.y), 3)": (-math.inf, 0),
    "abs(W.x) - min(abs(W.x), 1)": (0, math.inf),
    "exp(W.x - max(W.x, W.y)) + exp(W.y - max(W.x, W.y))": (1, 2),
    "exp(W.x - max(W.x, 0)) + exp(-max(W.x, 0))": (1, 2),
    "exp(min(W.x, W.y) - W.x) + exp(W.x)": (0, math.inf),
    "silu(W.x) + 0.2784646": (0, math.inf),
}


@pytest.mark.parametrize("expression", PROVED)
def test_what_is_proved(expression: str) -> None:
    found = range_of(expression)
    assert (found.least, found.greatest) == PROVED[expression]


@pytest.mark.parametrize("name", ["min_lstm", "min_lstm_log"])
def test_the_divisor_of_min_lstm_is_never_below_one(name: str) -> None:
    """Its three exponentials cannot overflow, and one of them is 1."""
    builder = builder_of(built_in(name))
    assert builder.range_of(builder.value(ex.add(ex.named("p"), ex.named("q")))) == Range(1.0, 4.0)
    assert builder.range_of(builder.value(ex.named("new"))) == Range(0.0, 1.0)


def test_quotients_share_the_reciprocal_of_a_divisor_that_has_one() -> None:
    def calls(divisor: str) -> tuple[int, int, int]:
        program = lower_step_backward(cell_of(f"h[t] = W.x / ({divisor}) * h[t-1] + W.y / ({divisor})"))
        text = " ".join(statement.cuda for statement in program.statements)
        return text.count("fn_quotient("), text.count("fn_divide("), program.transcendental_count

    assert calls("1 + relu(min(W.d, 9))") == (4, 0, 1)
    assert calls("3") == (3, 0, 1)
    for divisor in ("W.d", "relu(W.d)", "1 + relu(W.d)", "1e-37"):  # 0, or so large or small that its reciprocal has no digits
        quotients, divisions, reciprocals = calls(divisor)
        assert quotients == 0 and divisions >= 3 and reciprocals == 1


HOSTILE = {
    "nested conditions": lambda: "\n".join(
        ["v0 = W.x", *(f"v{i + 1} = where(v{i} > {i}, W.x + 1, v{i} * W.x)" for i in range(9)), "h[t] = v9"]
    ),
    "long sums": lambda: "h[t] = " + " + ".join(["(exp(min(W.x, W.y) - W.x)"] * 90) + ")" * 90,
    "long choices": lambda: "m = " + "min(" * 90 + "W.x" + ", W.y)" * 90 + "\nh[t] = 1 / (exp(m - W.x) + exp(m - W.y))",
    "huge numbers": lambda: "h[t] = 1 / ((1e38 + W.x ** 2) ** 16 - (1e38 + W.y ** 2) ** 16) ** 2 + exp(W.x ** 2 + 1e38)",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_takes_long(name: str) -> None:
    cell = cell_of(HOSTILE[name]())
    started = time.process_time()
    builder = builder_of(cell)
    for symbol, _ in builder.operations:
        found = builder.range_of(symbol)
        assert found.least <= found.greatest
    assert time.process_time() - started < within(1.0)
