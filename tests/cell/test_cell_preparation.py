"""Programs cut in two: what is free of late inputs is computed first, and the values stay the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cell_evaluation import built_in, cell_of
from support.one_step import lower_step, lower_step_backward

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.functions import Sigmoid, SigmoidOfSum
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.late import bias_name, step_behind_sums, sum_name
from minrnn_gen.cell.preparation import CutProgram, cut, is_trivial, names_in
from minrnn_gen.cell.program import Program

# Beside the dense cells of the library one that reads products, states and their functions in other ways.
WRITTEN = (
    "r = sigmoid(R.r + W.r + h[t-1])\nu = tanh(W.u) * sigmoid(W.r)\nh[t] = r * u + (1 - r) * tanh(R.u * u + W.u) + sigmoid(R.r)"
)
CELLS = {name: built_in(name) for name in ("lstm", "gru", "slstm", "elman")} | {"written": cell_of(WRITTEN)}
EVERY_CELL = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
SEEDS = st.integers(0, 2**32 - 1)
Arrays = Mapping[str, Any]


def arrays_of(names: tuple[str, ...], seed: int) -> dict[str, Any]:
    values = np.random.default_rng(seed).uniform(0.5, 2, (len(names), 3))
    return dict(zip(names, values, strict=True))


def in_two_parts(program: CutProgram, inputs: Arrays) -> dict[str, Any]:
    return program.rest.evaluate({**inputs, **program.preparation.evaluate(inputs)})


def operations_of(program: Program) -> Iterator[Any]:
    """Yield every operation of a program, those within others too."""
    pending = [statement.expression for statement in program.statements]
    while pending:
        expression = pending.pop()
        operands = ex.operation(expression)[1]
        pending += operands
        if operands:
            yield expression


def behind_sums(cell: Cell) -> CutProgram:
    return step_behind_sums(lower_step(cell), cell.recurrent_gates, cell.states)


@EVERY_CELL
@given(seed=SEEDS)
def test_both_parts_give_the_bits_of_the_whole(cell: Cell, seed: int) -> None:
    program = lower_step_backward(cell)
    late = [name for name in program.inputs if name.startswith("gradient_")]
    inputs = arrays_of(program.inputs, seed)
    expected, found = program.evaluate(inputs), in_two_parts(cut(program, late), inputs)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(found[label], expected[label]) for label in expected)


@EVERY_CELL
def test_the_rest_leaves_nothing_that_could_be_prepared(cell: Cell) -> None:
    program = lower_step_backward(cell)
    late = {name for name in program.inputs if name.startswith("gradient_")}
    made = cut(program, late)
    assert late.isdisjoint(made.preparation.inputs)
    assert set(made.rest.inputs) <= {*late, *made.values}
    is_late = set(late)
    for statement in made.rest.statements:
        assert not is_late.isdisjoint(names_in(statement.expression)), statement
        is_late.add(statement.name)
    for expression in operations_of(made.rest):
        names = names_in(expression)
        assert is_trivial(expression) or not names or not is_late.isdisjoint(names), expression


@EVERY_CELL
@given(seed=SEEDS)
def test_a_step_behind_sums_is_the_step(cell: Cell, seed: int) -> None:
    """Sums are added up in another order, so up to rounding in float64."""
    step, made = lower_step(cell), behind_sums(cell)
    inputs = arrays_of(step.inputs, seed)
    biases = arrays_of(cell.recurrent_gates, seed + 1)
    with_biases = inputs | {f"R_{gate}": inputs[f"R_{gate}"] + biases[gate] for gate in cell.recurrent_gates}
    apart = {sum_name(gate): inputs[f"R_{gate}"] for gate in cell.recurrent_gates}
    apart |= {bias_name(gate): bias for gate, bias in biases.items()}
    expected, found = step.evaluate(with_biases), in_two_parts(made, inputs | apart)
    assert expected.keys() == found.keys()
    for label, array in expected.items():
        np.testing.assert_allclose(found[label], array, rtol=64 * np.finfo(np.float64).eps)


@EVERY_CELL
def test_behind_sums_the_chain_is_short(cell: Cell) -> None:
    made = behind_sums(cell)
    late = {f"previous_{state}" for state in cell.states} | {sum_name(gate) for gate in cell.recurrent_gates}
    assert late.isdisjoint(made.preparation.inputs)
    assert set(made.rest.inputs) <= {*late, *made.values}
    for statement in made.rest.statements:
        late.add(statement.name)
    for expression in operations_of(made.rest):
        if isinstance(expression, Sigmoid) and ex.operation(expression.args[0])[0] == "add":
            early = [late.isdisjoint(names_in(addend)) for addend in ex.operation(expression.args[0])[1]]
            assert early != [True, False], expression


def test_an_lstm_has_three_sigmoids_of_sums() -> None:
    operations = list(operations_of(behind_sums(CELLS["lstm"]).rest))
    assert sum(isinstance(one, SigmoidOfSum) for one in operations) == 3
    assert behind_sums(CELLS["lstm"]).values == ("prepared_0", "prepared_1", "prepared_2", "prepared_3")
