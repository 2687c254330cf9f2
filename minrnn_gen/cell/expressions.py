"""Expressions in the author's own form, and the one way to build them and to look at them.

Every sum and product here is binary and keeps its operands' order, so that a tree prints and computes as it was written, under
any hash seed. Only operations between two numbers are carried out, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TypeGuard

from minrnn_gen.cell.functions import CellFunction
from minrnn_gen.cell.tree import Add, Divide, Expr, Multiply, Negate, Number, OperationName, Power, Subtract, Symbol

__all__ = [
    "MINUS_ONE",
    "ONE",
    "ZERO",
    "Expr",
    "Number",
    "OperationName",
    "Symbol",
    "add",
    "current",
    "divide",
    "gate",
    "is_number",
    "multiply",
    "named",
    "negate",
    "number",
    "operation",
    "power",
    "power_exponent",
    "previous",
    "product",
    "rebuilt",
    "shared",
    "subtract",
    "symbols_of",
]


def number(value: int | float | str | Fraction) -> Number:
    """Return an exact number from a number or its text; raises ValueError for text that spells no number."""
    return Number(Fraction(value))


ZERO, ONE, MINUS_ONE = number(0), number(1), number(-1)


def named(text: str) -> Symbol:
    """Return the symbol spelled `text`."""
    return Symbol(text)


def gate(name: str) -> Symbol:
    """W.name, the input-side pre-activation of a gate."""
    return named(f"W.{name}")


def product(name: str) -> Symbol:
    """R.name, the recurrent product of a gate."""
    return named(f"R.{name}")


def shared(name: str) -> Symbol:
    """S.name, an input that all channels of a group share."""
    return named(f"S.{name}")


def channel_input(name: str) -> Symbol:
    """X.name, an input of each channel that is not projected."""
    return named(f"X.{name}")


def previous(state: str) -> Symbol:
    """state[t-1]."""
    return named(f"{state}[t-1]")


def current(state: str) -> Symbol:
    """state[t]."""
    return named(f"{state}[t]")


def is_number(expression: Expr) -> TypeGuard[Number]:
    """Whether `expression` is an exact rational number."""
    return isinstance(expression, Number)


def add(left: Expr, right: Expr) -> Expr:
    """left + right."""
    if isinstance(right, Number):
        if isinstance(left, Number):
            return Number(left.value + right.value)
        return Subtract(left, Number(-right.value)) if right.value < 0 else Add(left, right)
    return Subtract(left, right.args[0]) if isinstance(right, Negate) else Add(left, right)


def subtract(left: Expr, right: Expr) -> Expr:
    """left - right."""
    return add(left, negate(right))


def negate(operand: Expr) -> Expr:
    """-operand."""
    return Number(-operand.value) if isinstance(operand, Number) else Negate(operand)


def multiply(left: Expr, right: Expr) -> Expr:
    """left * right."""
    if isinstance(left, Number) and isinstance(right, Number):
        return Number(left.value * right.value)
    return Negate(right) if left == MINUS_ONE else Multiply(left, right)


def divide(left: Expr, right: Expr) -> Expr:
    """left / right."""
    if isinstance(left, Number) and isinstance(right, Number) and right != ZERO:
        return Number(left.value / right.value)
    return Divide(left, right)


def power(base: Expr, exponent: int) -> Expr:
    """base ** exponent; a negative exponent divides 1 by the positive power, and `base` is then not the number 0."""
    if exponent < 0:
        return divide(ONE, power(base, -exponent))
    if isinstance(base, Number):
        return Number(base.value**exponent)
    if exponent < 2:
        return base if exponent else ONE
    return Power(base, exponent)


def operation(expression: Expr) -> tuple[OperationName, tuple[Expr, ...]]:
    """Return what `expression` does and to which operands, in the author's order.

    A "power" has its base as the only operand; `power_exponent` returns the exponent. A "call" is a `CellFunction`.
    """
    return expression.operation, expression.args


def power_exponent(expression: Expr) -> int:
    """Return the exponent, at least 2, of a "power"."""
    assert isinstance(expression, Power)
    return expression.exponent


def rebuilt(expression: Expr, operands: Sequence[Expr]) -> Expr:
    """Return `expression` with other operands, in the order of `operation`."""
    if not expression.args:
        return expression
    if isinstance(expression, CellFunction):
        return type(expression)(*operands)
    if isinstance(expression, Power):
        return power(operands[0], expression.exponent)
    return _BUILDERS[expression.operation](*operands)


_BUILDERS: dict[OperationName, Callable[..., Expr]] = {
    "add": add,
    "subtract": subtract,
    "multiply": multiply,
    "divide": divide,
    "negate": negate,
}


def symbols_of(expression: Expr) -> Iterator[Symbol]:
    """Yield the symbols of `expression` from left to right, once per use."""
    if isinstance(expression, Symbol):
        yield expression
    for operand in operation(expression)[1]:
        yield from symbols_of(operand)
