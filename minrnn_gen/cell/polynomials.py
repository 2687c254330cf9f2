"""The values of a cell as polynomials in previous states, with coefficients as the author wrote them."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import CellFunction, Comparison, Detach, Where
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.printing import shown_equation
from minrnn_gen.cell.refutation import Point

if TYPE_CHECKING:  # sympy is imported only where something has to be proved zero
    from minrnn_gen.cell.zeros import Zeros

# Degrees above the first must cancel in an affine cell; a cell in which a fourth power cancels is already contrived.
DEGREE_LIMIT = 4
MONOMIAL_LIMIT = 64


class NotAffine(Exception):
    """A clause that says what is not affine."""


Monomial = tuple[Symbol, ...]
"""Previous states, multiplied; in the order of the cell's states, repeated for powers. The empty one is 1."""

Polynomial = dict[Monomial, Expr]
"""Coefficients, free of previous states, by monomial."""


class Polynomials:
    """The values of a cell as polynomials in the previous values of some of its `states`.

    Next values of the states `known` are symbols; `lets` are the definitions that no previous value of `states` reaches.
    """

    def __init__(self, cell: Cell, states: tuple[str, ...], known: Collection[str] = ()) -> None:
        self._previous = {ex.previous(state): position for position, state in enumerate(states)}
        self.lets: dict[Symbol, Expr] = {}
        self._values: dict[Symbol, Polynomial | NotAffine] = {symbol: {(symbol,): ex.ONE} for symbol in self._previous}
        for symbol, expression in cell.definitions:
            if symbol in map(ex.current, known):
                continue
            if self._reaches_state(expression):
                try:
                    self._values[symbol] = self._polynomial(expression)
                except NotAffine as reason:
                    self._values[symbol] = NotAffine(str(reason))  # without its frames, which hold what called
            else:
                self.lets[symbol] = expression
        self._states = dict(cell.next_states)

    def affine(self, state: str, block: tuple[str, ...]) -> tuple[tuple[Expr, ...], Expr]:
        """Return the next value of a block's `state` as coefficients of the block's previous values, and the rest.

        Raises `NotAffine` if `state` depends on other previous values, or not linearly on the block's.
        """
        previous = tuple(map(ex.previous, block))
        own, value = " and ".join(symbol.name for symbol in previous), self._values.get(ex.current(state))
        if value is None:
            return (ex.ZERO,) * len(block), self._states[state]
        if isinstance(value, NotAffine):
            raise NotAffine(f"{state}[t] is not affine in {own}, because {value}")
        for monomial, coefficient in value.items():
            if (len(monomial) < 2 and set(monomial) <= {*previous}) or self.is_zero(coefficient):
                continue
            if len(monomial) > 1:
                shown = " * ".join(symbol.name for symbol in monomial)
                raise NotAffine(f"{state}[t] is not affine in {own}, because it contains the product {shown}")
            raise NotAffine(f"{state}[t] depends on {monomial[0].name}, another state's previous value")
        return tuple(value.get((symbol,), ex.ZERO) for symbol in previous), value.get((), ex.ZERO)

    @cached_property
    def _point(self) -> Point:
        return Point(self.lets)

    @cached_property
    def _zeros(self) -> Zeros:
        from minrnn_gen.cell.zeros import Zeros

        return Zeros(self.lets)

    def is_zero(self, coefficient: Expr) -> bool:
        """Whether an expression free of these previous values is proved zero."""
        if ex.is_number(coefficient):
            return coefficient == ex.ZERO
        return not self._point.refutes_zero(coefficient) and self._zeros.is_zero(coefficient)

    def _reaches_state(self, expression: Expr) -> bool:
        return any(symbol in self._values for symbol in ex.symbols_of(expression))

    def _polynomial(self, expression: Expr) -> Polynomial:
        if not self._reaches_state(expression):
            return {(): expression}
        name, operands = ex.operation(expression)
        if isinstance(expression, Symbol):
            value = self._values[expression]
            if isinstance(value, NotAffine):
                raise NotAffine(str(value))
            return value
        if isinstance(expression, CellFunction):
            return self._call(expression, operands)
        values = [self._polynomial(operand) for operand in operands]
        if name == "add":
            return _sum(values[0], values[1])
        if name == "subtract":
            return _sum(values[0], _scaled(values[1], ex.MINUS_ONE))
        if name == "negate":
            return _scaled(values[0], ex.MINUS_ONE)
        if name == "multiply":
            return self._product(values[0], values[1])
        if name == "divide":
            divisor = self._state_free(values[1])
            if divisor is None:
                raise NotAffine(f"{shown_equation(expression)} divides by a value that depends on the previous step")
            return {monomial: _quotient(coefficient, divisor) for monomial, coefficient in values[0].items()}
        result = values[0]
        for _ in range(ex.power_exponent(expression) - 1):
            result = self._product(result, values[0])
        return result

    def _call(self, expression: CellFunction, operands: tuple[Expr, ...]) -> Polynomial:
        if isinstance(expression, Where):
            asked = operands[0]
            condition = self._comparison(asked) if isinstance(asked, Comparison) else None
            if condition is None:
                raise NotAffine(f"the condition {shown_equation(asked)} depends on the previous step")
            yes, no = self._polynomial(operands[1]), self._polynomial(operands[2])
            monomials = dict.fromkeys((*yes, *no))
            return {monomial: Where(condition, yes.get(monomial, ex.ZERO), no.get(monomial, ex.ZERO)) for monomial in monomials}
        values = [self._state_free(self._polynomial(operand)) for operand in operands]
        free = [value for value in values if value is not None]
        if len(free) < len(values):
            if isinstance(expression, Detach):
                raise NotAffine(
                    f"{shown_equation(expression)} hides from the gradient how the value depends on the previous step, so that "
                    "the gradient's recurrence is another one"
                )
            raise NotAffine(
                f"{shown_equation(expression)} applies {expression.cell_name} to a value that depends on the previous step"
            )
        return {(): type(expression)(*free)}

    def _comparison(self, condition: Comparison) -> Comparison | None:
        left, right = (self._state_free(self._polynomial(operand)) for operand in condition.args)
        return None if left is None or right is None else type(condition)(left, right)

    def _state_free(self, value: Polynomial) -> Expr | None:
        """Return the constant term if every other coefficient is zero, else None."""
        if all(monomial == () or self.is_zero(coefficient) for monomial, coefficient in value.items()):
            return value.get((), ex.ZERO)
        return None

    def _product(self, left: Polynomial, right: Polynomial) -> Polynomial:
        result: Polynomial = {}
        for left_monomial, left_coefficient in left.items():
            for right_monomial, right_coefficient in right.items():
                monomial = tuple(sorted((*left_monomial, *right_monomial), key=self._previous.__getitem__))
                if len(monomial) > DEGREE_LIMIT or len(result) > MONOMIAL_LIMIT:
                    raise NotAffine(f"it contains a product of more than {DEGREE_LIMIT} previous values")
                result = _sum(result, {monomial: _times(left_coefficient, right_coefficient)})
        return result


def _sum(left: Polynomial, right: Polynomial) -> Polynomial:
    result = dict(left)
    for monomial, coefficient in right.items():
        result[monomial] = plus(result.get(monomial, ex.ZERO), coefficient)
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient != ex.ZERO}


def _scaled(value: Polynomial, factor: Expr) -> Polynomial:
    return {monomial: _times(coefficient, factor) for monomial, coefficient in value.items()}


def plus(left: Expr, right: Expr) -> Expr:
    """Return left + right, without a summand that is 0."""
    if left == ex.ZERO:
        return right
    return left if right == ex.ZERO else ex.add(left, right)


def _times(left: Expr, right: Expr) -> Expr:
    for factor, other in ((left, right), (right, left)):
        if factor in (ex.ZERO, ex.ONE):
            return ex.ZERO if factor == ex.ZERO else other
        if factor == ex.MINUS_ONE:
            name, operands = ex.operation(other)
            return operands[0] if name == "negate" else ex.negate(other)
    return ex.multiply(left, right)


def _quotient(left: Expr, right: Expr) -> Expr:
    return left if left == ex.ZERO or right == ex.ONE else ex.divide(left, right)
