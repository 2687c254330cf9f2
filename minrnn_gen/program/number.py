"""Numbers of a program: integers, or expressions of sizes that are not known yet, by the same arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar, cast

# To a type checker an expression is an int: the same code computes sizes, grids and offsets with either.
Number = int

Loop = Callable[..., Iterable[Number]]
"""A `range` whose ends may be expressions, as recorders have it."""

UNBOUNDED = 1 << 62
# Larger powers of two that divide a number are not tracked.
_DIVISOR_MOST = 1 << 30
_CONDITIONS = ("<", "==", "not")
# Newton's, from the greater of two numbers to the root of their sum of third powers, at most 26 % beyond it: to the last digit.
ROOT_STEPS = 6
ResultT = TypeVar("ResultT")
Decisions = tuple[tuple[Any, bool], ...]
"""Conditions, and whether each holds."""


class Undecided(ArithmeticError):
    """A condition on unknown sizes that their bounds do not decide."""


class Expr:
    """An operator and its operands; `low` and `high` bound its value, `divisor` is a power of two that divides it.

    `operator` is "symbol" with a name as the only operand, one of + * // up min max overlapped, or a condition: < == not.
    "up" divides and rounds up. As a condition an expression is true or false where bounds decide it, and raises Undecided
    elsewhere.
    """

    __slots__ = ("divisor", "high", "low", "operands", "operator")

    def __init__(self, operator: str, operands: tuple[Any, ...], low: int, high: int, divisor: int = 1) -> None:
        self.operator, self.operands = operator, operands
        self.low, self.high, self.divisor = max(low, -UNBOUNDED), min(high, UNBOUNDED), divisor

    def __add__(self, other: Any) -> Any:
        return _sum(self, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        return _product(self, other)

    __rmul__ = __mul__

    def __sub__(self, other: Any) -> Any:
        return _sum(self, _product(-1, other))

    def __rsub__(self, other: Any) -> Any:
        return _sum(other, _product(-1, self))

    def __neg__(self) -> Any:
        if self.operator == "//" and bounds(self.operands[0])[1] <= 0:  # as in -(-a // b)
            return divided_up(_product(-1, self.operands[0]), self.operands[1])
        return _product(-1, self)

    def __floordiv__(self, other: Any) -> Any:
        return _quotient(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _quotient(other, self)

    def __lt__(self, other: Any) -> Any:
        return _condition("<", self, other)

    def __gt__(self, other: Any) -> Any:
        return _condition("<", other, self)

    def __le__(self, other: Any) -> Any:
        return _negated(_condition("<", other, self))

    def __ge__(self, other: Any) -> Any:
        return _negated(_condition("<", self, other))

    def __eq__(self, other: object) -> Any:
        return _condition("==", self, other)

    def __ne__(self, other: object) -> Any:
        return _negated(_condition("==", self, other))

    def __hash__(self) -> int:
        return hash((self.operator, self.operands))

    def __bool__(self) -> bool:
        condition = self if self.operator in _CONDITIONS else _negated(_condition("==", self, 0))
        if isinstance(condition, Expr):
            decided = _DECIDED.get()
            if decided is not None:
                return _decide(condition, decided)
            raise Undecided(f"whether {text(condition)} depends on sizes that are not known here; give sizes as integers")
        return bool(condition)

    def __repr__(self) -> str:
        return text(self)


# Conditions that bounds leave open, as far as they are decided, while `paths` calls a function.
_DECIDED: ContextVar[list[tuple[Expr, bool]] | None] = ContextVar("decided", default=None)


def paths(describe: Callable[[], ResultT]) -> Iterator[tuple[Decisions, ResultT]]:
    """Yield the result of a function for each way to decide the conditions that bounds leave open, with these decisions.

    All ways decide the same condition first, and ways with equal decisions so far decide the same condition next. A condition
    holds first.
    """
    open_paths: list[Decisions] = [()]
    while open_paths:
        path = open_paths.pop()
        decided = list(path)
        token = _DECIDED.set(decided)
        try:
            result = describe()
        finally:
            _DECIDED.reset(token)
        yield tuple(decided), result
        open_paths += [(*decided[:at], (decided[at][0], False)) for at in range(len(path), len(decided))]


def _decide(condition: Expr, decided: list[tuple[Expr, bool]]) -> bool:
    is_negated = condition.operator == "not"
    positive = condition.operands[0] if is_negated else condition
    known = [holds for other, holds in decided if same(other, positive)]
    if not known:
        decided.append((positive, True))
    return (known or [True])[0] != is_negated


def symbol(name: str, low: int = 0, high: int = UNBOUNDED, divisor: int = 1) -> Number:
    """Return a size that is not known yet, within bounds, and a multiple of the power of two `divisor`."""
    return cast(Number, Expr("symbol", (name,), low, high, divisor))


def bounds(number: Number) -> tuple[int, int]:
    """Return the least and the greatest value that a number may have."""
    return (number.low, number.high) if isinstance(number, Expr) else (int(number), int(number))


def divisor_of(number: Number) -> int:
    """Return a power of two that divides a number, the greatest one where it is an integer."""
    if isinstance(number, Expr):
        return number.divisor
    return int(number) & -int(number) or _DIVISOR_MOST


def least(*numbers: Number) -> Number:
    """Return the least of numbers."""
    return cast(Number, _extreme("min", min, numbers))


def most(*numbers: Number) -> Number:
    """Return the greatest of numbers."""
    return cast(Number, _extreme("max", max, numbers))


def divided_up(number: Number, by: Number) -> Number:
    """Return a quotient of positive numbers, rounded up."""
    if not isinstance(number, Expr) and not isinstance(by, Expr):
        return -(-number // by)
    (low, high), (by_low, by_high) = bounds(number), bounds(by)
    assert low >= 0 and by_low >= 1, "quotients are of sizes"
    return cast(Number, Expr("up", (number, by), -(-low // by_high), -(-high // by_low) if high < UNBOUNDED else UNBOUNDED))


def overlapped(first: Number, second: Number) -> Number:
    """Return the third root of the sum of third powers of two numbers that are not negative, rounded down.

    Cost models combine partly overlapping times in this way. C computes it by the same operations, in `export/numbers.c.j2`.
    """
    if not isinstance(first, Expr) and not isinstance(second, Expr):
        a, b = float(first), float(second)
        total, root = a * a * a + b * b * b, max(a, b)
        for _ in range(ROOT_STEPS):
            root -= (root - total / (root * root)) / 3 if root else 0.0
        return int(root)
    (low, high), (other_low, other_high) = bounds(first), bounds(second)
    assert low >= 0 and other_low >= 0, "times are not negative"
    return cast(Number, Expr("overlapped", (first, second), 0, high + other_high))


def value(number: Any, sizes: Mapping[str, int]) -> Any:
    """Return a number, or anything else as it is, where symbols have these values."""
    if not isinstance(number, Expr):
        return number
    if number.operator == "symbol":
        return sizes[number.operands[0]]
    return _EVALUATE[number.operator](*(value(operand, sizes) for operand in number.operands))


def text(number: Any) -> str:
    """Print a number for people."""
    if not isinstance(number, Expr):
        return str(number)
    if number.operator == "symbol":
        return str(number.operands[0])
    operands = [text(operand) for operand in number.operands]
    match number.operator:
        case "not":
            return f"not ({operands[0]})"
        case "up":
            return f"divided_up({', '.join(operands)})"
        case "overlapped":
            return f"overlapped({', '.join(operands)})"
        case "min" | "max":
            return f"{'least' if number.operator == 'min' else 'most'}({', '.join(operands)})"
    return f"({operands[0]} {number.operator} {operands[1]})"


def same(first: Any, second: Any) -> bool:
    """Say whether two numbers are the same expression."""
    if not isinstance(first, Expr) or not isinstance(second, Expr):
        return not isinstance(first, Expr) and not isinstance(second, Expr) and bool(first == second)
    if (first.operator, len(first.operands)) != (second.operator, len(second.operands)):
        return False
    return all(same(*pair) for pair in zip(first.operands, second.operands, strict=True))


_EVALUATE: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "up": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
    "overlapped": overlapped,
    "<": lambda a, b: a < b,
    "==": lambda a, b: a == b,
    "not": lambda a: not a,
}


def _sum(first: Any, second: Any) -> Any:
    if not isinstance(first, Expr) and not isinstance(second, Expr):
        return first + second
    if not isinstance(first, Expr) and first == 0:
        return second
    if not isinstance(second, Expr) and second == 0:
        return first
    (low, high), (other_low, other_high) = bounds(first), bounds(second)
    divisor = min(divisor_of(first), divisor_of(second))
    return Expr("+", (first, second), low + other_low, high + other_high, divisor)


def _product(first: Any, second: Any) -> Any:
    if not isinstance(first, Expr) and not isinstance(second, Expr):
        return first * second
    if not isinstance(second, Expr):
        first, second = second, first  # an integer comes first
    if not isinstance(first, Expr):
        if first in (0, 1):
            return second if first else 0
        if second.operator == "*" and not isinstance(second.operands[0], Expr):
            return _product(first * second.operands[0], second.operands[1])
    corners = [low * high for low in bounds(first) for high in bounds(second)]
    divisor = min(divisor_of(first) * divisor_of(second), _DIVISOR_MOST)
    return Expr("*", (first, second), min(corners), max(corners), divisor)


def _quotient(number: Any, by: Any) -> Any:
    if not isinstance(by, Expr):
        if by == 1:
            return number
        if number.operator == "*" and not isinstance(number.operands[0], Expr) and number.operands[0] % by == 0:
            return _product(number.operands[0] // by, number.operands[1])
    (low, high), (by_low, by_high) = bounds(number), bounds(by)
    assert by_low >= 1, "a divisor is positive"
    least_value = low // by_high if low >= 0 else low // by_low
    most_value = UNBOUNDED if high >= UNBOUNDED else high // by_low if high >= 0 else high // by_high
    return Expr("//", (number, by), least_value, most_value)


def _extreme(operator: str, choose: Callable[..., int], numbers: tuple[Any, ...]) -> Any:
    chosen, *others = numbers
    for other in others:
        if not isinstance(chosen, Expr) and not isinstance(other, Expr):
            chosen = choose(chosen, other)
            continue
        (low, high), (other_low, other_high) = bounds(chosen), bounds(other)
        below, above = high <= other_low, low >= other_high
        if below or above:
            chosen = chosen if below == (operator == "min") else other
            continue
        divisor = min(divisor_of(chosen), divisor_of(other))
        chosen = Expr(operator, (chosen, other), choose(low, other_low), choose(high, other_high), divisor)
    return chosen


def _condition(operator: str, first: Any, second: Any) -> Any:
    if not all(isinstance(number, int | Expr) for number in (first, second)):
        return False  # nothing else equals a number
    if same(first, second):
        return operator == "=="
    if operator == "==" and not isinstance(second, Expr) and second == 0 and isinstance(first, Expr) and first.operator == "*":
        # A product is 0 where one factor is.
        left, right = first.operands
        if bounds(left)[0] > 0:
            return _condition("==", right, 0)
        if bounds(right)[0] > 0:
            return _condition("==", left, 0)
    (low, high), (other_low, other_high) = bounds(first), bounds(second)
    if high < other_low:
        return operator == "<"
    if (low >= other_high and operator == "<") or low > other_high:
        return False
    return Expr(operator, (first, second), 0, 1)


def _negated(condition: Any) -> Any:
    if not isinstance(condition, Expr):
        return not condition
    return condition.operands[0] if condition.operator == "not" else Expr("not", (condition,), 0, 1)
