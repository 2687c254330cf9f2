"""Expressions in the author's own form: SymPy trees built without evaluation, and the one way to look at them.

Every sum and product here is binary and keeps its operands' order, so that a tree prints and computes as it was written, under
any hash seed. Only operations between two numbers are carried out, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from sympy import Add, Expr, Integer, Mul, Number, Pow, Symbol  # type: ignore[import-untyped]

from minrnn_gen.cell.functions import CellFunction

__all__ = [
    "MINUS_ONE",
    "ONE",
    "ZERO",
    "Expr",
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

ZERO, ONE, MINUS_ONE = Integer(0), Integer(1), Integer(-1)

OperationName = Literal["number", "symbol", "add", "subtract", "multiply", "divide", "negate", "power", "call"]


def named(text: str) -> Symbol:
    """Return the real symbol spelled `text`."""
    return Symbol(text, real=True)


def gate(name: str) -> Symbol:
    """W.name, the input-side pre-activation of a gate."""
    return named(f"W.{name}")


def product(name: str) -> Symbol:
    """R.name, the recurrent product of a gate."""
    return named(f"R.{name}")


def shared(name: str) -> Symbol:
    """S.name, an input that all channels of a group share."""
    return named(f"S.{name}")


def previous(state: str) -> Symbol:
    """state[t-1]."""
    return named(f"{state}[t-1]")


def current(state: str) -> Symbol:
    """state[t]."""
    return named(f"{state}[t]")


def is_number(expression: Expr) -> bool:
    """Whether `expression` is an exact rational number."""
    return isinstance(expression, Number)


def add(left: Expr, right: Expr) -> Expr:
    """left + right."""
    if is_number(left) and is_number(right):
        return left + right
    return Add(left, right, evaluate=False)


def subtract(left: Expr, right: Expr) -> Expr:
    """left - right."""
    return add(left, negate(right))


def negate(operand: Expr) -> Expr:
    """-operand."""
    return -operand if is_number(operand) else Mul(MINUS_ONE, operand, evaluate=False)


def multiply(left: Expr, right: Expr) -> Expr:
    """left * right."""
    if is_number(left) and is_number(right):
        return left * right
    return Mul(left, right, evaluate=False)


def divide(left: Expr, right: Expr) -> Expr:
    """left / right."""
    if is_number(left) and is_number(right) and right != 0:
        return left / right
    return Mul(left, Pow(right, MINUS_ONE, evaluate=False), evaluate=False)


def power(base: Expr, exponent: int) -> Expr:
    """base ** exponent; a negative exponent divides 1 by the positive power, and `base` is then not the number 0."""
    if exponent < 0:
        return divide(ONE, power(base, -exponent))
    if is_number(base) or exponent < 2:
        return base**exponent
    return Pow(base, Integer(exponent), evaluate=False)


def operation(expression: Expr) -> tuple[OperationName, tuple[Expr, ...]]:
    """Return what `expression` does and to which operands, in the author's order.

    A difference, a quotient and a negation, which SymPy stores as sums and products, come back as themselves. The operands of
    "power" are the base alone: `power_exponent` has the rest. A "call" is a `CellFunction`.
    """
    if isinstance(expression, Symbol):
        return "symbol", ()
    if isinstance(expression, Number):
        return "number", ()
    if isinstance(expression, CellFunction):
        return "call", expression.args
    if isinstance(expression, Pow):
        return "power", (expression.args[0],)
    left, right = expression.args
    if isinstance(expression, Add):
        if isinstance(right, Number) and right.is_negative:
            return "subtract", (left, -right)
        name, operands = operation(right)
        return ("subtract", (left, *operands)) if name == "negate" else ("add", (left, right))
    if isinstance(right, Pow) and right.args[1] == MINUS_ONE:
        return "divide", (left, right.args[0])
    return ("negate", (right,)) if left == MINUS_ONE else ("multiply", (left, right))


def power_exponent(expression: Expr) -> int:
    """Return the exponent, at least 2, of a "power"."""
    return int(expression.args[1])


def rebuilt(expression: Expr, operands: Sequence[Expr]) -> Expr:
    """Return `expression` with other operands, in the order of `operation`."""
    name, own_operands = operation(expression)
    if not own_operands:
        return expression
    if name == "call":
        return expression.func(*operands)
    if name == "power":
        return power(operands[0], power_exponent(expression))
    return _BUILDERS[name](*operands)


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
