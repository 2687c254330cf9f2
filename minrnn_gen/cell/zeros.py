"""Proofs, by SymPy, that an author's expression is zero: the only use of algebra in a cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy  # type: ignore[import-untyped]

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Number, Symbol
from minrnn_gen.cell.functions import CellFunction

# Limits on the terms that a proof of a zero coefficient multiplies out, so that no cell takes longer than a fraction of a
# second.
EXPANDED_TERM_LIMIT = 256
EXPANSION_BUDGET_TERMS = 20_000


class Zeros:
    """Proofs, within a budget, that an expression is zero for all real values of its symbols, of which `lets` defines some."""

    def __init__(self, lets: Mapping[Symbol, Expr]) -> None:
        self._lets = lets
        self._expanded_lets: dict[Symbol, Any] = {}
        self._budget_terms = EXPANSION_BUDGET_TERMS

    def is_zero(self, expression: Expr) -> bool:
        """Whether `expression` was proved zero."""
        try:
            return bool(self._expanded(expression) == 0)
        except _TooLarge:
            return False

    def _expanded(self, expression: Expr) -> Any:
        """Return SymPy's own canonical form: a sum of products of symbols and of calls, equal terms collected."""
        self._spend(1)
        if isinstance(expression, Symbol):
            return self._expanded_symbol(expression)
        if isinstance(expression, Number):
            return sympy.Rational(expression.value.numerator, expression.value.denominator)
        name, operands = ex.operation(expression)
        values = [self._expanded(operand) for operand in operands]
        if isinstance(expression, CellFunction):
            # A function of which SymPy knows nothing: its own of the same name would be rewritten.
            return sympy.Function(f"cell {expression.cell_name}")(*values)
        if name == "add":
            return values[0] + values[1]
        if name == "subtract":
            return values[0] - values[1]
        if name == "negate":
            return -values[0]
        if name == "multiply":
            return self._multiplied(values[0], values[1])
        if name == "divide":
            if values[1] == 0:
                raise _TooLarge
            return self._multiplied(values[0], values[1] ** -1)
        result = values[0]
        for _ in range(ex.power_exponent(expression) - 1):
            result = self._multiplied(result, values[0])
        return result

    def _expanded_symbol(self, symbol: Symbol) -> Any:
        if symbol not in self._expanded_lets:
            let = self._lets.get(symbol)
            self._expanded_lets[symbol] = sympy.Symbol(symbol.name, real=True) if let is None else self._expanded(let)
        return self._expanded_lets[symbol]

    def _multiplied(self, left: Any, right: Any) -> Any:
        terms = len(sympy.Add.make_args(left)) * len(sympy.Add.make_args(right))
        self._spend(terms)
        if terms > EXPANDED_TERM_LIMIT:
            raise _TooLarge
        return sympy.expand_mul(left * right, deep=False)

    def _spend(self, terms: int) -> None:
        self._budget_terms -= terms
        if self._budget_terms < 0:
            raise _TooLarge


class _TooLarge(Exception):
    """The proof would take longer than it is worth."""
