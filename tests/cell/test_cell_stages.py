"""Programs with the axis n in stages, and the part of a step that is free of states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.cell_evaluation import built_in, source_of
from support.needed import needed

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.files import vector_library_names
from minrnn_gen.cell.language import Cell, parse_cell
from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward, lower_vectors, lower_vectors_backward
from minrnn_gen.cell.preparation import is_trivial, names_in
from minrnn_gen.cell.stages import is_constant_input, is_gate, statements_of

vector_cells = needed("support.vector_cells")
WRITTEN = {name: cell.file for name, cell in vector_cells.CELLS.items() if name != "selective"}
NAMES = (*vector_library_names(), *WRITTEN)


def cell_named(name: str) -> Cell:
    return parse_cell(source_of(**WRITTEN[name])) if name in WRITTEN else built_in(name)


def lowered_of(cell: Cell) -> LoweredVectors:
    return lower_vectors(cell, classify(cell))


def lowered_backward(cell: Cell) -> LoweredVectorsBackward:
    return lower_vectors_backward(cell, classify(cell))


def parts(expression: Any) -> Iterator[Any]:
    """Yield an expression and all that it is made of."""
    yield expression
    for operand in ex.operation(expression)[1]:
        yield from parts(operand)


def written_out(expression: Any, made: Mapping[str, Any]) -> Any:
    """Return `expression` with the expressions of the names that were `made` instead of these."""
    operands = ex.operation(expression)[1]
    if not operands:
        return made.get(str(expression), expression)
    return ex.rebuilt(expression, [written_out(operand, made) for operand in operands])


@pytest.mark.parametrize("name", NAMES)
def test_both_parts_are_the_operations_of_the_whole(name: str) -> None:
    """In the same order, on the same operands: the bits are the same."""
    lowered = lowered_of(cell_named(name))
    expected = {statement.name: statement.expression for stage in lowered.step.steps for statement in statements_of(stage)}
    preparation, steps = lowered.prepared.preparation, lowered.prepared.steps
    first, rest = (
        {statement.name: statement.expression for stage in part.steps for statement in statements_of(stage)}
        for part in (preparation, steps)
    )
    made = {name: expression for name, expression in first.items() if name not in expected}
    assert expected == {name: written_out(value, made) for name, value in (first | rest).items() if name not in made}
    assert steps.results == lowered.step.results and steps.constants == preparation.constants == lowered.step.constants


@pytest.mark.parametrize("name", NAMES)
def test_each_part_reads_what_is_there(name: str) -> None:
    cell = cell_named(name)
    forward, backward = lowered_of(cell), lowered_backward(cell)
    for prepared in (forward.prepared, backward.prepared):
        assert all(is_gate(name) or is_constant_input(name) for name in prepared.preparation.inputs)
        assert not any(is_gate(name) and name not in prepared.values for name in prepared.steps.inputs)
    parts = (forward.prepared.preparation, forward.prepared.steps, backward.prepared.preparation, backward.prepared.steps)
    for part in (*parts, backward.backward):
        known = {*part.inputs} | part.constant_names
        for stage in part.steps:
            for statement in statements_of(stage):
                assert known.issuperset(names_in(statement.expression)), statement
                known.add(statement.name)
        assert known.issuperset(name for _, name in part.results)


def test_a_step_back_reads_what_was_prepared_for_the_states() -> None:
    backward = lowered_backward(built_in("selective"))
    made = {statement.name for stage in backward.backward.steps for statement in statements_of(stage)}
    assert len(backward.prepared.values) == 2 and not made & {*backward.prepared.values}


@pytest.mark.parametrize("name", NAMES)
def test_a_step_leaves_nothing_that_could_be_prepared(name: str) -> None:
    """But for signs and conditions: whatever it computes of its channel takes a state, a sum or an input S.*."""
    prepared = lowered_of(cell_named(name)).prepared
    known = {*prepared.values} | (prepared.steps.constant_names - prepared.steps.wide)

    assert not {*prepared.values} & prepared.steps.wide
    for stage in prepared.steps.steps:
        for statement in statements_of(stage):
            for part in parts(statement.expression):
                names = names_in(part)
                is_free = names and known.issuperset(names) and ex.operation(part)[1]
                assert not is_free or is_trivial(part), (statement.name, part)


def test_a_selective_scan_prepares_four_values() -> None:
    """dt, dt * x, d * x and silu(z): a load of 16 bytes in fp32."""
    prepared = lowered_of(built_in("selective")).prepared
    (stage,) = prepared.preparation.steps
    assert len(prepared.values) == 4 and len(stage.narrow) == 4
    assert not any(is_gate(name) for name in prepared.values)


@pytest.mark.parametrize("name", NAMES)
def test_products_that_share_factors_read_what_is_before_them(name: str) -> None:
    """And none of three factors is left two of which another product has."""

    def factors(expression: Any) -> frozenset[str]:
        operation, operands = ex.operation(expression)
        if operation == "multiply":
            return frozenset().union(*map(factors, operands))
        return frozenset({str(expression)})

    for stage in lowered_backward(cell_named(name)).whole.steps:
        names = [statement.name for statement in stage.wide]
        for place, statement in enumerate(stage.wide):
            assert {*names_in(statement.expression)}.isdisjoint(names[place:])
        products = [factors(one.expression) for one in stage.wide if ex.operation(one.expression)[0] == "multiply"]
        assert not [(one, two) for one in products if len(one) == 3 for two in products if len(two) == 2 and two < one]


def test_a_selective_step_back_multiplies_by_what_the_state_before_it_gets() -> None:
    wide = {one.name: one.expression for stage in lowered_backward(built_in("selective")).whole.steps for one in stage.wide}
    products = [expression for expression in wide.values() if "gradient_previous_h" in names_in(expression)]
    assert [sorted(names_in(expression)) for expression in products] == [["gradient_previous_h", "previous_h"]]


@pytest.mark.parametrize(("name", "exponents"), [("selective", {"h": "let_dt"}), ("gated_linear", {}), ("s4d", {})])
def test_exponents_add_up_where_a_coefficient_is_a_constant_to_a_power(name: str, exponents: Mapping[str, str]) -> None:
    """Gate exponents, once a channel: not those that all channels share, nor coefficients that are no power of a variable."""
    lowered = lowered_of(built_in(name))
    assert {state: other for state, (_, other) in lowered.exponents.items()} == exponents
    for constant, other in lowered.exponents.values():
        assert constant in lowered.step.constant_names & lowered.step.wide
        assert other not in lowered.step.constant_names | lowered.step.wide
    kind = "exponent" if exponents else "coefficient"
    assert {label for label, _ in lowered.ends.results} == {"state_h", f"{kind}_h"}
