"""Value numbering: expressions to a `Program` in which every common subexpression is computed once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell import functions as fn
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import Centre, Comparison, Mean, OverUnits, Quotient, Sum, Surrogate
from minrnn_gen.cell.levels import Level, Statistic, WholeProgram
from minrnn_gen.cell.norms import average, composed
from minrnn_gen.cell.program import Program, Statement
from minrnn_gen.cell.ranges import Range, Ranges

Key = tuple[object, ...]

# Values nest in one statement at most this deep; C++ compilers stop at 256 brackets, Python at 1,000 calls.
NESTING_LIMIT = 32
# A divisor proved to lie between these has a reciprocal without overflow or denormals in every arithmetic (fp32: 2^-126 and
# 2^127, IEEE 754-2019, table 3.5), rounding of the divisor included.
RECIPROCAL_DIVISORS = (2.0**-120, 2.0**120)
ONE_OVER_ROOT_TWO = ex.number("0.70710678118654752440084436210484903928483593768847")


class ProgramBuilder:
    """Numbers the values of expressions; equal operations on equal values have one number.

    `inputs` gives the program's name of each input symbol, `wide` those names that have the axis n. A value becomes a statement
    if it has a name, is used more than once or nests too deep, and only if a result needs it. A mean over units is an input of
    programs, `mean_<number>`, which `levels` give; unless `shows_means`, for people.
    """

    def __init__(self, inputs: Mapping[Symbol, str], wide: Collection[str] = (), *, shows_means: bool = False) -> None:
        self._inputs = tuple(inputs.values())
        self._shows_means = shows_means
        self._means: dict[int, str] = {}
        self._wide_inputs = frozenset(wide)
        self._wide: list[bool] = []
        self._numbers: dict[Key, int] = {}
        self._samples: list[Expr] = []  # per value: an expression with the same operation, and its operands' numbers
        self._operands: list[tuple[int, ...]] = []
        self._ranges = Ranges(self._samples, self._operands)
        # For each value, the first value computed alike; the operand of a `Centre` counts as the value itself.
        self._alike: list[int] = []
        self._first_alike: dict[Key, int] = {}
        self._names: dict[int, str] = {}
        self._symbols: dict[Symbol, int] = {}
        for symbol, name in inputs.items():
            self._symbols[symbol] = self._value(("input", name), ex.named(name), ())

    def define(self, symbol: Symbol, expression: Expr, name: str) -> None:
        """Let `symbol` stand for `expression`, and call its value `name` unless it has a name already."""
        self._symbols[symbol] = self._named(expression, name)

    def value(self, expression: Expr, name: str | None = None) -> Symbol:
        """Return a symbol that stands for the value of `expression`; call the value `name` unless it has a name already."""
        return self._symbol(self._number(expression) if name is None else self._named(expression, name))

    def name_of(self, value: Symbol) -> str | None:
        """Return the name of the value of a symbol, if it was named; an input has none."""
        return self._names.get(self._alike[self._symbols[value]])

    def is_number(self, value: Symbol) -> bool:
        """Whether the value of a symbol is a number of the text, the same whatever the inputs."""
        return bool(ex.is_number(self._samples[self._symbols[value]]))

    def range_of(self, value: Symbol) -> Range:
        """Return bounds on the value of a symbol, for any real inputs."""
        return self._ranges.of(self._symbols[value])

    def is_wide(self, expression: Expr) -> bool:
        """Whether `expression`, over symbols of this builder, has the axis n: n values per channel."""
        if isinstance(expression, Symbol):
            return self._wide[self._symbols[expression]]
        return not isinstance(expression, Sum) and any(map(self.is_wide, expression.args))

    @property
    def operations(self) -> tuple[tuple[Symbol, Expr], ...]:
        """Every value so far, operands first: the symbol that stands for it, and its operation on such symbols."""
        symbols = [self._symbol(number) for number in range(len(self._samples))]
        operands = ([symbols[operand] for operand in numbers] for numbers in self._operands)
        return tuple(zip(symbols, map(ex.rebuilt, self._samples, operands), strict=True))

    def program(self, results: Mapping[str, Expr], *, needed_inputs_only: bool = False) -> Program:
        """Return the program that computes `results`, by label; a value without a name takes its label."""
        numbers = {label: self._alike[self._named(expression, label)] for label, expression in results.items()}
        uses = self._uses(list(numbers.values()))
        written: dict[int, Symbol] = {}
        statements: list[Statement] = []
        nesting = [0] * len(self._samples)
        # What an earlier program calls its result may be a part of what this one calls so.
        used: set[str] = set()
        shared = 0
        for number, sample in enumerate(self._samples):
            if number in self._means:
                sample = ex.named(self._means[number])
            if isinstance(sample, Symbol):
                written[number] = sample
                continue
            name = self._names.get(number)
            nesting[number] = 1 + max((nesting[operand] for operand in self._computed_from(number)), default=0)
            if uses[number] == 0 or (ex.is_number(sample) and name is None) or isinstance(sample, Comparison):
                continue
            if name is None and (uses[number] > 1 or nesting[number] > NESTING_LIMIT):
                name, shared = f"shared_{shared}", shared + 1
            if name is not None:
                name = _unlike(name, used)
                used.add(name)
                statements.append(Statement(name, self._expression(number, written)))
                written[number] = ex.named(name)
                nesting[number] = 0
        of_means = (name for number, name in self._means.items() if uses[number])
        return Program(
            inputs=(
                *(name for number, name in enumerate(self._inputs) if uses[number] or not needed_inputs_only),
                *of_means,
            ),
            statements=tuple(statements),
            results=tuple((label, written[number].name) for label, number in numbers.items()),
        )

    def levels(self, results: Mapping[str, Expr]) -> tuple[Level, ...]:
        """Return the means over units that a program of `results` takes, in the order in which they can be computed."""
        needed = self._needed_by(results)
        by_level: dict[int, list[int]] = {}
        levels = [0] * len(needed)
        for number, operands in enumerate(self._operands[: len(needed)]):
            levels[number] = max((levels[self._alike[operand]] for operand in operands), default=0)
            if number in self._means and needed[number]:
                by_level.setdefault(levels[number], []).append(number)
            levels[number] += number in self._means
        return tuple(self._level(by_level[level]) for level in sorted(by_level))

    def whole(self, results: Mapping[str, Expr], known: Collection[str] = ()) -> WholeProgram:
        """Return the program of `results` and of the values whose means over units it takes, except the `known` means."""
        needed = self._needed_by(results)
        means = [number for number, name in self._means.items() if needed[number] and name not in known]
        squares = {centre: number for number in means for centre in self._centres_of(number) if centre in means}
        statistics, labels = [], dict(results)
        for number in means:
            if number in squares.values():
                continue
            sample, values = self._samples[number], self._averaged(self._operands[number][0])
            assert isinstance(sample, Mean)
            of_squares = self._means[squares[number]] if number in squares else ""
            statistic = Statistic(self._means[number], of_squares, sample.over, bool(of_squares) and len(values) > 1)
            value = self._symbol(self._operands[number][0])
            labels[statistic.value_label] = value
            if statistic.is_of_list:
                apart = [ex.power(ex.subtract(self._symbol(of_list), value), 2) for of_list in values]
                labels[statistic.within_label] = average(apart)
            statistics.append(statistic)
        return WholeProgram(self.program(labels, needed_inputs_only=True), tuple(statistics))

    def _needed_by(self, results: Mapping[str, Expr]) -> list[bool]:
        """Return for each value whether results are computed from it, directly or through means."""
        if not self._means:
            return [False] * len(self._samples)
        numbers = {self._alike[self._number(expression)] for expression in results.values()}
        needed = [number in numbers for number in range(len(self._samples))]
        for number in reversed(range(len(needed))):
            for operand in self._operands[number] if needed[number] else ():
                needed[self._alike[operand]] = True
        return needed

    def _averaged(self, number: int) -> tuple[int, ...]:
        """Return the values that a value is the average of: the values of a list, or itself."""
        number = self._alike[number]
        operands = [self._alike[operand] for operand in self._operands[number]]
        if ex.operation(self._samples[number])[0] != "multiply" or not ex.is_number(factor := self._samples[operands[0]]):
            return (number,)
        # A list is added up from its first value on; a value may be a sum, too.
        first, rest = operands[1], list[int]()
        while (len(rest) + 1) * factor.value < 1 and ex.operation(self._samples[first])[0] == "add":
            first, added = (self._alike[operand] for operand in self._operands[first])
            rest.insert(0, added)
        return (first, *rest) if rest and (len(rest) + 1) * factor.value == 1 else (number,)

    def _centres_of(self, number: int) -> tuple[int, ...]:
        """Return the centre if a mean averages squared differences from that centre, itself a mean; else nothing."""
        values, centres = [], set[int]()
        for square in self._averaged(self._operands[number][0]):
            root = {self._alike[operand] for operand in self._operands[square]}
            if ex.operation(self._samples[square])[0] != "multiply" or len(root) > 1:
                return ()
            (difference,) = root
            if ex.operation(self._samples[difference])[0] != "subtract":
                return ()
            value, centre = (self._alike[operand] for operand in self._operands[difference])
            values.append(value)
            centres.add(centre)
        (centre, *others) = centres
        is_mean = not others and centre in self._means and type(self._samples[centre]) is type(self._samples[number])
        return (centre,) if is_mean and self._averaged(self._operands[centre][0]) == tuple(values) else ()

    def means_without(self, inputs: Collection[str]) -> tuple[str, ...]:
        """Return the names of the means that read none of these inputs."""
        names = [sample.name if isinstance(sample, Symbol) else "" for sample in self._samples]
        takes = [name in inputs for name in names]
        for number, operands in enumerate(self._operands):
            takes[number] = takes[number] or any(takes[operand] for operand in operands)
        return tuple(name for number, name in self._means.items() if not takes[number])

    def _level(self, means: Sequence[int]) -> Level:
        summands = {f"summand_of_{self._means[number]}": self._symbol(self._operands[number][0]) for number in means}
        samples = [self._samples[number] for number in means]
        return Level(
            tuple(
                (self._means[number], sample.over)
                for number, sample in zip(means, samples, strict=True)
                if isinstance(sample, Mean)
            ),
            self.program(summands, needed_inputs_only=True),
        )

    def _named(self, expression: Expr, name: str) -> int:
        # A number that has a name is kept apart from the same number inside other expressions.
        key: Key = ("constant", name)
        number = self._value(key, expression, ()) if ex.is_number(expression) else self._number(expression)
        if not isinstance(self._samples[number], Symbol):
            self._names.setdefault(self._alike[number], name)
        return number

    def _symbol(self, number: int) -> Symbol:
        symbol = ex.named(f"value {number}")  # no name of the language has a space
        self._symbols[symbol] = number
        return symbol

    def _number(self, expression: Expr) -> int:
        if isinstance(expression, Symbol):
            return self._symbols[expression]
        name, operands = ex.operation(expression)
        if name == "number":
            return self._value(("number", expression), expression, ())
        if isinstance(expression, OverUnits) and (parts := composed(expression)) is not expression:
            return self._number(parts)
        if isinstance(expression, fn.CellFunction) and type(expression) in COMPOSED:
            return self._number(COMPOSED[type(expression)](*operands))
        numbers = tuple(self._number(operand) for operand in operands)
        if name == "power":
            return self._powered(numbers[0], ex.power_exponent(expression))
        if name == "divide" and self._ranges.of(numbers[1]).lies_in(*RECIPROCAL_DIVISORS):
            return self._value((name, *numbers), _QUOTIENT, numbers)
        return self._value((type(expression) if name == "call" else name, *numbers), expression, numbers)

    def _powered(self, base: int, exponent: int) -> int:
        """Return base ** exponent by squaring."""
        if exponent == 1:
            return base
        half = self._powered(base, exponent // 2)
        square = self._value(("multiply", half, half), _PRODUCT, (half, half))
        return self._value(("multiply", square, base), _PRODUCT, (square, base)) if exponent % 2 else square

    def _value(self, key: Key, sample: Expr, operands: tuple[int, ...]) -> int:
        number = self._numbers.setdefault(key, len(self._samples))
        if number == len(self._samples):
            self._samples.append(sample)
            self._operands.append(operands)
            alike = (key[0], *(self._alike[operand] for operand in operands)) if operands else key
            is_centre = isinstance(sample, Centre)
            self._alike.append(self._alike[operands[0]] if is_centre else self._first_alike.setdefault(alike, number))
            if isinstance(sample, Mean) and not self._shows_means:
                self._means[number] = f"mean_{len(self._means)}"
            of_operands = any(self._wide[operand] for operand in operands) and not isinstance(sample, Sum)
            self._wide.append(of_operands or (isinstance(sample, Symbol) and sample.name in self._wide_inputs))
        return number

    def _uses(self, results: Sequence[int]) -> list[int]:
        uses = [0] * len(self._samples)
        for number in results:
            uses[number] += 1
        for number in reversed(range(len(uses))):  # operands have smaller numbers than what uses them
            # A condition is no `real` and cannot be named: it is written out at each of its uses.
            written = uses[number] if isinstance(self._samples[number], Comparison) else min(uses[number], 1)
            for operand in self._computed_from(number):
                uses[operand] += written
        return uses

    def _computed_from(self, number: int) -> tuple[int, ...]:
        """Return the operands that a value is computed from: the first of a surrogate, none of a mean."""
        operands = () if number in self._means else tuple(self._alike[operand] for operand in self._operands[number])
        return operands[:1] if isinstance(self._samples[number], Surrogate) else operands

    def _expression(self, number: int, written: Mapping[int, Symbol]) -> Expr:
        if number in written:
            return written[number]
        if isinstance(self._samples[number], Surrogate):
            return self._expression(self._alike[self._operands[number][0]], written)
        operands = [self._expression(self._alike[operand], written) for operand in self._operands[number]]
        return ex.rebuilt(self._samples[number], operands)


def _unlike(name: str, used: Collection[str]) -> str:
    """Return an unused name: `name` itself if possible."""
    names = (name, *(f"{name}_{number}" for number in range(1, len(used) + 1)))
    return next(name for name in names if name not in used)


_PRODUCT = ex.multiply(ex.named("left"), ex.named("right"))
_QUOTIENT = Quotient(ex.named("left"), ex.named("right"))


def _softsign(x: Expr) -> Expr:
    return ex.divide(x, ex.add(ex.ONE, fn.Absolute(x)))


def _hard_sigmoid(x: Expr) -> Expr:
    line = ex.add(ex.multiply(ex.number(Fraction(1, 6)), x), ex.number(Fraction(1, 2)))
    below_one = fn.Where(fn.GreaterOrEqual(line, ex.ONE), ex.ONE, line)
    return fn.Where(fn.LessOrEqual(line, ex.ZERO), ex.ZERO, below_one)


def _gelu(x: Expr) -> Expr:
    share = ex.add(ex.ONE, fn.ErrorFunction(ex.multiply(ONE_OVER_ROOT_TWO, x)))
    return ex.multiply(ex.multiply(ex.number(Fraction(1, 2)), x), share)


# Functions that programs compute by others: no target has one of their names.
COMPOSED: dict[type[fn.CellFunction], Callable[[Expr], Expr]] = {
    fn.Softsign: _softsign,
    fn.HardSigmoid: _hard_sigmoid,
    fn.Gelu: _gelu,
}
