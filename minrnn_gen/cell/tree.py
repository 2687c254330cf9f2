"""Expressions as trees: numbers, symbols and operations, which never change and never evaluate themselves."""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar, Literal

OperationName = Literal["number", "symbol", "add", "subtract", "multiply", "divide", "negate", "power", "call"]


class Expr:
    """An operation on `args`; equal to another of the same class with equal operands in the same order."""

    __slots__ = ("_hash", "args")
    operation: ClassVar[OperationName]

    args: tuple[Expr, ...]

    def __init__(self, *args: Expr) -> None:
        self.args = args
        self._hash = hash((type(self).__name__, self._more, args))

    @property
    def spelling(self) -> str:
        """The operation in one word: its name, or the function's name for a call."""
        return self.operation

    @property
    def _more(self) -> object:
        """The part of its identity that is neither its class nor its operands."""
        return None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return type(self) is type(other) and self._is_same(other)

    def _is_same(self, other: Expr) -> bool:
        return self._hash == other._hash and self._more == other._more and self.args == other.args

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        shown = [] if self._more is None else [str(self._more)]
        return f"{type(self).__name__}({', '.join([*shown, *map(repr, self.args)])})"


class Symbol(Expr):
    """A name, which stands for a real number."""

    __slots__ = ("name",)
    operation = "symbol"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__()

    @property
    def _more(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name


class Number(Expr):
    """An exact rational number."""

    __slots__ = ("value",)
    operation = "number"

    def __init__(self, value: Fraction) -> None:
        self.value = value
        super().__init__()

    @property
    def _more(self) -> Fraction:
        return self.value

    def __str__(self) -> str:
        return str(self.value)

    def __float__(self) -> float:
        return float(self.value)


class Add(Expr):
    """left + right."""

    __slots__ = ()
    operation = "add"


class Subtract(Expr):
    """left - right."""

    __slots__ = ()
    operation = "subtract"


class Multiply(Expr):
    """left * right."""

    __slots__ = ()
    operation = "multiply"


class Divide(Expr):
    """left / right."""

    __slots__ = ()
    operation = "divide"


class Negate(Expr):
    """-operand."""

    __slots__ = ()
    operation = "negate"


class Power(Expr):
    """base ** exponent, of a whole exponent from 2 on."""

    __slots__ = ("exponent",)
    operation = "power"

    def __init__(self, base: Expr, exponent: int) -> None:
        self.exponent = exponent
        super().__init__(base)

    @property
    def _more(self) -> int:
        return self.exponent
