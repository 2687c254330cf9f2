"""Ranges of values: bounds on each value of a program, whatever its inputs, proved operation by operation."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell import functions as fn
from minrnn_gen.cell.expressions import Expr

# One proof may look at this many values again with what a condition adds, and one sum may have this many terms: no text,
# however hostile, takes longer than milliseconds.
REFINED_VALUES_LIMIT = 2_000
REFINED_DEPTH_LIMIT = 64
TERMS_LIMIT = 64
# The least value of x * sigmoid(x), rounded down.
SILU_LEAST = -0.2784646


@dataclass(frozen=True)
class Range:
    """Bounds of a real value, both included."""

    least: float = -math.inf
    greatest: float = math.inf

    def within(self, other: Range) -> Range:
        """Return the values in both ranges; if there are none, nothing is computed and either range will do."""
        least, greatest = max(self.least, other.least), min(self.greatest, other.greatest)
        return Range(least, greatest) if least <= greatest else self

    def lies_in(self, least: float, greatest: float) -> bool:
        """Whether every value is between the two."""
        return least <= self.least and self.greatest <= greatest


REALS, NONNEGATIVE, NOT_POSITIVE, SHARE = Range(), Range(least=0.0), Range(greatest=0.0), Range(0.0, 1.0)


class Ranges:
    """The range of each numbered value, inputs being any real numbers.

    `samples` and `operands` are the two growing lists of a `ProgramBuilder`: an expression with the same operation, and the
    numbers of the operands, all smaller. Interval arithmetic (Moore, Interval Analysis, 1966), and two facts that it misses
    because they relate values to each other: x - max(…, x, …) is not positive, so the exponentials of x - max(x, y, …), y -
    max(x, y, …), … are at most 1, and one of them is 1; and some terms of a sum without negative terms are at most the sum.
    Bounds are rounded float64 numbers; the values of a kernel may exceed them by the rounding of its arithmetic.
    """

    def __init__(self, samples: Sequence[Expr], operands: Sequence[tuple[int, ...]]) -> None:
        self._samples = samples
        self._operands = operands
        self._known: list[Range] = []
        self._refined_values = 0

    def of(self, number: int) -> Range:
        """Return the range of value `number`."""
        while len(self._known) <= number:
            self._known.append(self._range(len(self._known), self._known.__getitem__, {}, 0))
        return self._known[number]

    def _range(self, number: int, of: Callable[[int], Range], assumed: Mapping[int, Range], depth: int) -> Range:
        sample, operands = self._samples[number], self._operands[number]
        if ex.is_number(sample):
            return Range(float(sample), float(sample))
        if not operands or isinstance(sample, fn.Comparison):
            return REALS
        if isinstance(sample, fn.Where):
            condition, yes, no = operands
            return _hull(self._branch(condition, True, yes, assumed, depth), self._branch(condition, False, no, assumed, depth))
        return _RULES[sample.spelling](*map(of, operands)).within(self._related(sample.spelling, operands, of))

    def _branch(self, condition: int, outcome: bool, branch: int, assumed: Mapping[int, Range], depth: int) -> Range:
        """Return the range of `branch` where `condition` has the `outcome`."""
        left, right = self._operands[condition]
        relation = _RELATIONS[self._samples[condition].spelling, outcome]
        before_left, before_right = self._again(left, assumed, depth + 1), self._again(right, assumed, depth + 1)
        after_left, after_right = relation(before_left, before_right)
        return self._again(branch, {**assumed, left: after_left, right: after_right}, depth + 1)

    def _again(self, number: int, assumed: Mapping[int, Range], depth: int) -> Range:
        """Return the range of a value under the `assumed` ranges."""
        if number in assumed:
            return assumed[number]
        known = self._known[number]
        self._refined_values += 1
        if not assumed or depth > REFINED_DEPTH_LIMIT or self._refined_values > REFINED_VALUES_LIMIT:
            return known
        return known.within(self._range(number, lambda operand: self._again(operand, assumed, depth + 1), assumed, depth))

    def _related(self, name: str, operands: tuple[int, ...], of: Callable[[int], Range]) -> Range:
        """Return the bounds of the value that follow from the operands' relation."""
        if name == "subtract":
            return self._difference(*operands)
        if name == "multiply" and operands[0] == operands[1]:
            return NONNEGATIVE
        if name == "add":
            terms = list(self._terms(operands))
            if self._holds_a_one(terms) and all(of(term).least >= 0 for term in terms):
                return Range(least=1.0)
        if name in ("divide", "quotient"):
            whole = Counter(self._terms(operands[1:]))
            if Counter(self._terms(operands[:1])) <= whole and all(of(term).least >= 0 for term in whole):
                return SHARE
        return REALS

    def _difference(self, left: int, right: int) -> Range:
        result = REALS
        if right in self._chosen(left, fn.Minimum) or left in self._chosen(right, fn.Maximum):
            result = result.within(NOT_POSITIVE)
        if right in self._chosen(left, fn.Maximum) or left in self._chosen(right, fn.Minimum):
            result = result.within(NONNEGATIVE)
        return result

    def _holds_a_one(self, terms: Sequence[int]) -> bool:
        """Whether, for some minimum or maximum of several values, the exponentials of all distances are among `terms`."""
        met: dict[tuple[type[fn.CellFunction], int], set[str]] = {}
        for term in terms:
            if not isinstance(self._samples[term], fn.Exp):
                continue
            (exponent,) = self._operands[term]
            name, _ = ex.operation(self._samples[exponent])
            left: int | None = exponent
            right: int | None = None  # zero
            if name == "subtract":
                left, right = self._operands[exponent]
            elif name == "negate":
                left, right = None, self._operands[exponent][0]
            for chosen, other, choice in ((left, right, fn.Minimum), (right, left, fn.Maximum)):
                if chosen is not None:
                    met.setdefault((choice, chosen), set()).add(self._identity(other))
        return any(
            {self._identity(operand) for operand in self._chosen(chosen, choice)} <= others
            for (choice, chosen), others in met.items()
        )

    def _identity(self, number: int | None) -> str:
        """Return a key that is the same for equal values; None is zero."""
        sample = ex.ZERO if number is None else self._samples[number]
        return f"number {sample.value}" if ex.is_number(sample) else f"value {number}"

    def _chosen(self, number: int, choice: type[fn.CellFunction]) -> set[int]:
        """Return the values that `number` is the minimum or maximum of; itself if it is no such choice."""
        choices: set[int] = set()
        waiting = [number]
        while waiting and len(choices) < TERMS_LIMIT:
            term = waiting.pop()
            if isinstance(self._samples[term], (choice, fn.Detach)):
                waiting += self._operands[term]
            else:
                choices.add(term)
        return choices if not waiting else {number}

    def _terms(self, operands: Sequence[int]) -> Iterator[int]:
        """Yield the terms of a sum, those of the sums in it included; a part of too long a sum is a term."""
        waiting, count = list(operands), 0
        while waiting:
            term = waiting.pop()
            count += 1
            if count < TERMS_LIMIT and ex.operation(self._samples[term])[0] == "add":
                waiting += self._operands[term]
            else:
                yield term


def _hull(first: Range, second: Range) -> Range:
    return Range(min(first.least, second.least), max(first.greatest, second.greatest))


def _finite_ends(least: float, greatest: float) -> Range:
    """Return the range of real numbers: a bound that overflows to the wrong side becomes the largest number."""
    return Range(min(least, sys.float_info.max), max(greatest, -sys.float_info.max))


def _sum(left: Range, right: Range) -> Range:
    return _finite_ends(left.least + right.least, left.greatest + right.greatest)


def _negative(x: Range) -> Range:
    return Range(-x.greatest, -x.least)


def _product(left: Range, right: Range) -> Range:
    ends = [
        0.0 if 0.0 in (left_end, right_end) else left_end * right_end  # 0 * infinity: the bound is approached, never reached
        for left_end in (left.least, left.greatest)
        for right_end in (right.least, right.greatest)
    ]
    return _finite_ends(min(ends), max(ends))


def _quotient(left: Range, right: Range) -> Range:
    if right.greatest <= 0:
        left, right = _negative(left), _negative(right)
    if right.least < 0:
        return REALS
    return _product(left, _finite_ends(_inverse(right.greatest), _inverse(right.least)))


def _inverse(x: float) -> float:
    return 1 / x if x > 0 else math.inf


def _rising(function: Callable[[float], float], image: Range = REALS) -> Callable[[Range], Range]:
    """Return the rule of a function that never falls, with values in `image`; where it is undefined it is unbounded."""

    def at(x: float, otherwise: float) -> float:
        try:
            return function(x)
        except (ValueError, OverflowError):
            return otherwise

    return lambda x: Range(at(x.least, image.least), at(x.greatest, image.greatest)).within(image)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else 1 - 1 / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _silu(x: Range) -> Range:
    return Range(0.0 if x.least >= 0 else SILU_LEAST, max(x.greatest, 0.0))


def _absolute(x: Range) -> Range:
    return Range(max(x.least, -x.greatest, 0.0), max(-x.least, x.greatest))


_RULES: dict[str, Callable[..., Range]] = {
    "add": _sum,
    "subtract": lambda left, right: _sum(left, _negative(right)),
    "multiply": _product,
    "divide": _quotient,
    "quotient": _quotient,
    "negate": _negative,
    "sigmoid": _rising(_sigmoid, SHARE),
    "tanh": _rising(math.tanh, Range(-1.0, 1.0)),
    "exp": _rising(math.exp, NONNEGATIVE),
    "expm1": _rising(math.expm1, Range(least=-1.0)),
    "log": _rising(math.log),
    "log1p": _rising(math.log1p),
    "logsigmoid": _rising(lambda x: -_softplus(-x), NOT_POSITIVE),
    "softplus": _rising(_softplus, NONNEGATIVE),
    "silu": _silu,
    "relu": _rising(lambda x: max(x, 0.0)),
    "abs": _absolute,
    "atan": _rising(math.atan, Range(-2.0, 2.0)),
    "erf": _rising(math.erf, Range(-1.0, 1.0)),
    "sin": lambda _: Range(-1.0, 1.0),
    "cos": lambda _: Range(-1.0, 1.0),
    "log_of_sum": lambda *_: REALS,
    "surrogate": lambda value, _: value,
    "sqrt": _rising(math.sqrt, NONNEGATIVE),
    "min": lambda a, b: Range(min(a.least, b.least), min(a.greatest, b.greatest)),
    "max": lambda a, b: Range(max(a.least, b.least), max(a.greatest, b.greatest)),
    "detach": lambda x: x,
    "mean": lambda x: x,
    "centre": lambda x: x,
    # Of one to any number of values.
    "sum": lambda x: Range(x.least if x.least >= 0 else -math.inf, x.greatest if x.greatest <= 0 else math.inf),
    "spread": lambda x, _: x,
}


def _ordered(left: Range, right: Range) -> tuple[Range, Range]:
    """left <= right."""
    return left.within(Range(greatest=right.greatest)), right.within(Range(least=left.least))


def _reverse_ordered(left: Range, right: Range) -> tuple[Range, Range]:
    """left >= right."""
    right, left = _ordered(right, left)
    return left, right


def _equal(left: Range, right: Range) -> tuple[Range, Range]:
    return left.within(right), right.within(left)


def _unrelated(left: Range, right: Range) -> tuple[Range, Range]:
    return left, right


_RELATIONS: dict[tuple[str, bool], Callable[[Range, Range], tuple[Range, Range]]] = {
    ("<", True): _ordered,
    ("<", False): _reverse_ordered,
    ("<=", True): _ordered,
    ("<=", False): _reverse_ordered,
    (">", True): _reverse_ordered,
    (">", False): _ordered,
    (">=", True): _reverse_ordered,
    (">=", False): _ordered,
    ("==", True): _equal,
    ("==", False): _unrelated,
    ("!=", True): _unrelated,
    ("!=", False): _equal,
}
"""What a comparison's outcome says of its two sides; NaN aside, which no bound holds."""
