"""A value at a point refutes that an expression is zero, and never where algebra proves that it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Number, Symbol
from minrnn_gen.cell.functions import FUNCTIONS
from minrnn_gen.cell.refutation import Point

A, B = ex.named("a"), ex.named("b")
SYMBOLS = st.sampled_from([A, B, ex.gate("z")])
NUMBERS = st.fractions(-4, 4, max_denominator=8).map(Number)


def combined(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pairs = st.tuples(parts, parts)
    return st.one_of(
        pairs.map(lambda pair: ex.add(*pair)),
        pairs.map(lambda pair: ex.subtract(*pair)),
        pairs.map(lambda pair: ex.multiply(*pair)),
        parts.map(lambda part: FUNCTIONS["tanh"](part)),
        parts.map(ex.negate),
    )


EXPRESSIONS = st.recursive(st.one_of(SYMBOLS, NUMBERS), combined, max_leaves=12)


@given(EXPRESSIONS)
def test_what_algebra_proves_zero_is_never_refuted(expression: Expr) -> None:
    sympy = pytest.importorskip("sympy")
    assert sympy
    from minrnn_gen.cell.zeros import Zeros

    if Zeros({}).is_zero(expression):
        assert not Point({}).refutes_zero(expression)


@given(EXPRESSIONS, EXPRESSIONS)
def test_what_cancels_is_zero_everywhere(first: Expr, second: Expr) -> None:
    both = ex.subtract(ex.multiply(first, ex.add(first, second)), ex.add(ex.multiply(first, first), ex.multiply(second, first)))
    assert not Point({}).refutes_zero(both)


@pytest.mark.parametrize(
    "expression",
    [A, ex.subtract(A, B), ex.multiply(A, A), ex.divide(A, B), FUNCTIONS["tanh"](A), ex.subtract(FUNCTIONS["tanh"](A), A)],
    ids=str,
)
def test_what_is_not_zero_is_refuted(expression: Expr) -> None:
    assert Point({}).refutes_zero(expression)


def test_symbols_with_a_definition_have_its_value() -> None:
    lets: dict[Symbol, Expr] = {B: ex.subtract(ex.ONE, A)}
    assert not Point(lets).refutes_zero(ex.subtract(ex.add(A, B), ex.ONE))
    assert Point({}).refutes_zero(ex.subtract(ex.add(A, B), ex.ONE))


def test_a_division_by_zero_refutes_nothing() -> None:
    assert not Point({}).refutes_zero(ex.divide(A, ex.subtract(B, B)))
