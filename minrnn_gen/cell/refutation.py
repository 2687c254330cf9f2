"""Refutes that an expression is zero for all values of its symbols, by its value at a point."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Number, Symbol
from minrnn_gen.cell.functions import CellFunction

# A field of integers: sums and products are exact, and a quotient is a product.
PRIME = 2**61 - 1


class Point:
    """Values of symbols and of functions, as if drawn; `lets` are symbols with a definition.

    Functions are arbitrary here, as in algebra: equal at equal arguments, and no more. So an expression that algebra proves
    zero has the value 0 at every point, and one with another value is not zero.
    """

    def __init__(self, lets: Mapping[Symbol, Expr]) -> None:
        self._lets = lets
        self._values: dict[Symbol, int] = {}

    def refutes_zero(self, expression: Expr) -> bool:
        """Whether `expression` is nonzero here; False as well where it divides by 0."""
        try:
            return self._value(expression) != 0
        except ValueError:  # no inverse
            return False

    def _value(self, expression: Expr) -> int:
        if isinstance(expression, Symbol):
            if expression not in self._values:
                let = self._lets.get(expression)
                self._values[expression] = _drawn(expression.name) if let is None else self._value(let)
            return self._values[expression]
        if isinstance(expression, Number):
            return expression.value.numerator * pow(expression.value.denominator, -1, PRIME) % PRIME
        name, operands = ex.operation(expression)
        values = [self._value(operand) for operand in operands]
        if isinstance(expression, CellFunction):
            return _drawn(expression.cell_name, *values)
        if name == "power":
            return pow(values[0], ex.power_exponent(expression), PRIME)
        if name == "negate":
            return -values[0] % PRIME
        left, right = values
        if name == "divide":
            return left * pow(right, -1, PRIME) % PRIME
        return {"add": left + right, "subtract": left - right, "multiply": left * right}[name] % PRIME


def _drawn(*of: str | int) -> int:
    """Return a value of the field that depends on all arguments, and is the same in every process."""
    return int.from_bytes(blake2b(repr(of).encode(), digest_size=8).digest(), "big") % PRIME
