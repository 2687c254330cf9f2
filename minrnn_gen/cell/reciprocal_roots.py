"""Quotients by the roots of norms as products: one function gives 1 over a root, and is free of what is divided."""

from __future__ import annotations

from fractions import Fraction

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import Quotient, ReciprocalRoot, SquareRoot
from minrnn_gen.cell.program import Program, Statement

_HALF = ex.number(Fraction(1, 2))


def with_reciprocal_roots(program: Program) -> Program:
    """Return `program` with x / sqrt(y) as x * reciprocal_root(y), and with x / (sqrt(y) + sqrt(y)) likewise.

    The roots are those of norms, of a square's mean and a number above 0: neither they nor their reciprocals overflow.
    """
    roots: dict[str, Symbol] = {}
    statements: list[Statement] = []
    for statement in program.statements:
        expression = _rewritten(statement.expression, roots)
        statements.append(Statement(statement.name, expression))
        if isinstance(expression, SquareRoot):
            roots[statement.name] = ex.named(f"reciprocal_of_{statement.name}")
            statements.append(Statement(roots[statement.name].name, ReciprocalRoot(*expression.args)))
    whole = Program(program.inputs, tuple(statements), program.results)
    return whole.restricted([label for label, _ in program.results])


def _rewritten(expression: Expr, roots: dict[str, Symbol]) -> Expr:
    name, operands = ex.operation(expression)
    if not operands:
        return expression
    operands = tuple(_rewritten(operand, roots) for operand in operands)
    if name == "divide" or isinstance(expression, Quotient):
        reciprocal = _reciprocal(operands[1], roots)
        if reciprocal is not None:
            return ex.multiply(operands[0], reciprocal)
    return ex.rebuilt(expression, operands)


def _reciprocal(divisor: Expr, roots: dict[str, Symbol]) -> Expr | None:
    if isinstance(divisor, SquareRoot):
        return ReciprocalRoot(*divisor.args)
    if isinstance(divisor, Symbol):
        return roots.get(divisor.name)
    name, operands = ex.operation(divisor)
    if name == "add" and operands[0] == operands[1]:
        reciprocal = _reciprocal(operands[0], roots)
        return None if reciprocal is None else ex.multiply(_HALF, reciprocal)
    return None
