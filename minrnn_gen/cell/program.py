"""Straight-line programs: one list of statements that is printed as CUDA and evaluated with NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from minrnn_gen.cell.expressions import Expr, Number, Symbol, operation, symbols_of
from minrnn_gen.cell.functions import CellFunction, Quotient
from minrnn_gen.cell.printing import c_text, cuda_text

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Statement:
    """`name` = `expression`, over inputs and names of earlier statements; it has no powers."""

    name: str
    expression: Expr

    @property
    def cuda(self) -> str:
        """The expression as C++ over the type `compute_t`: names with their prefix, functions called `fn_<name>`."""
        return cuda_text(self.expression)

    @property
    def c(self) -> str:
        """The expression as C over vectors of the arithmetic type, named as `cuda` names them."""
        return c_text(self.expression)


@dataclass(frozen=True)
class Program:
    """Statements in the order of execution; `results` maps each label to the statement or input that holds its value."""

    inputs: tuple[str, ...]
    statements: tuple[Statement, ...]
    results: tuple[tuple[str, str], ...]

    @property
    def operation_count(self) -> int:
        """Arithmetic operations, comparisons, selections and calls per element."""
        return sum(_count(statement.expression, lambda _: 1) for statement in self.statements)

    @property
    def transcendental_count(self) -> int:
        """Results of a GPU's special-function unit per element: exponentials, logarithms, roots, one reciprocal per divisor."""
        calls = sum(_count(statement.expression, _transcendentals) for statement in self.statements)
        return calls + len({divisor for statement in self.statements for divisor in _divisors(statement.expression)})

    def restricted(self, labels: Collection[str]) -> Program:
        """Return the program of the results of these labels alone."""
        results = tuple((label, name) for label, name in self.results if label in labels)
        needed, kept = {name for _, name in results}, list[Statement]()
        for statement in reversed(self.statements):
            if statement.name in needed:
                kept.insert(0, statement)
                needed.update(symbol.name for symbol in symbols_of(statement.expression))
        return Program(tuple(name for name in self.inputs if name in needed), tuple(kept), results)

    def reads_sums_alone(self, pairs: Iterable[tuple[str, str]]) -> bool:
        """Say whether both inputs of each pair are seen to count as their sum alone, in conditions and detached values too.

        Each value is a function of the sums plus multiples of second inputs, whose factors are followed: a first input is its
        sum less the second one. Anything but a sum or a multiple has to be of the sums alone.
        """
        factors: dict[str, _Factors | None] = {}
        for first, second in pairs:
            factors[first], factors[second] = {second: Fraction(-1)}, {second: Fraction(1)}
        for statement in self.statements:
            factors[statement.name] = _factors(statement.expression, factors)
        return all(factors.get(name, {}) == {} for _, name in self.results)

    def evaluate(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Return {label: array} for arrays of the inputs by name.

        Shapes broadcast against each other, and every result has the common shape. All is computed in the inputs' common dtype.
        Infinities and NaN follow IEEE 754 without warnings, as on a GPU. A result may be a read-only view, or an input itself.
        Without inputs the results are float64 numbers.
        """
        arrays = [np.asarray(values[name]) for name in self.inputs]
        dtype = np.result_type(*arrays) if arrays else np.dtype(np.float64)
        held = {name: array.astype(dtype, copy=False) for name, array in zip(self.inputs, arrays, strict=True)}
        with np.errstate(all="ignore"):
            for name, value in self._evaluations:
                held[name] = np.asarray(value(held, dtype))
        shape = np.broadcast_shapes(*(array.shape for array in arrays))
        results = {label: held[name] for label, name in self.results}
        return {label: value if value.shape == shape else np.broadcast_to(value, shape) for label, value in results.items()}

    @cached_property
    def _evaluations(self) -> tuple[tuple[str, _Evaluation], ...]:
        # Made once: a program that is evaluated step by step would spend most of its time on looking at expressions.
        return tuple((statement.name, _evaluation(statement.expression)) for statement in self.statements)


def _count(expression: Expr, weight: Callable[[Expr], int]) -> int:
    operands = operation(expression)[1]
    return weight(expression) + sum(_count(operand, weight) for operand in operands) if operands else 0


def _transcendentals(expression: Expr) -> int:
    return expression.transcendental_count if isinstance(expression, CellFunction) else 0


def _divisors(expression: Expr) -> Iterator[Expr]:
    name, operands = operation(expression)
    if name == "divide" or isinstance(expression, Quotient):
        yield operands[1]
    for operand in operands:
        yield from _divisors(operand)


_Factors = dict[str, Fraction]
"""Of each second input that a value has in addition to sums."""


def _factors(expression: Expr, known: Mapping[str, _Factors | None]) -> _Factors | None:
    """Return the factors of second inputs in `expression`; None where it is no such sum."""
    if isinstance(expression, Symbol):
        return known.get(expression.name, {})
    name, operands = operation(expression)
    of_operands = [_factors(operand, known) for operand in operands]
    if not any(of_operands) and None not in of_operands:
        return {}
    numbers = [operand.value for operand in operands if isinstance(operand, Number)]
    match name, expression.spelling, of_operands, numbers:
        case ("add" | "subtract", _, [dict() as left, dict() as right], _):
            sign = 1 if name == "add" else -1
            total = {second: left.get(second, 0) + sign * right.get(second, Fraction()) for second in left | right}
            return {second: factor for second, factor in total.items() if factor}
        case ("negate", _, [dict() as inner], _):
            return {second: -factor for second, factor in inner.items()}
        case ("multiply", _, [dict() as left, dict() as right], [number]):
            return {second: factor * number for second, factor in (left | right).items()}
        case (_, "detach", [dict() as inner], _):
            return inner
    return None


_Evaluation = Callable[[Mapping[str, Array], np.dtype[Any]], Array]


def _evaluation(expression: Expr) -> _Evaluation:
    """Return a function that computes `expression` from the values held so far, in their dtype."""
    if isinstance(expression, Number):
        number = float(expression)
        return lambda _, dtype: np.asarray(number, dtype)
    if isinstance(expression, Symbol):
        symbol = expression.name
        return lambda held, _: held[symbol]
    function = _NUMPY[expression.spelling]
    inner = tuple(_evaluation(operand) for operand in expression.args)
    return lambda held, dtype: function(*[evaluate(held, dtype) for evaluate in inner])


def _sigmoid(x: Array) -> Array:
    unit, small = x.dtype.type(1), np.exp(-np.abs(x))
    value: Array = np.where(x >= 0, unit, small) / (unit + small)
    return value


def _log1p_exp(x: Array) -> Array:
    value: Array = np.log1p(np.exp(-np.abs(x)))
    return value


def _erf(x: Array) -> Array:
    # NumPy has none; the C library's, one element at a time.
    value: Array = np.vectorize(math.erf, otypes=[x.dtype])(x)
    return value


def _relu(x: Array) -> Array:
    return np.where(x < 0, x.dtype.type(0), x)


def _minimum(a: Array, b: Array) -> Array:
    return np.where((a <= b) | np.isnan(a), a, b)


def _maximum(a: Array, b: Array) -> Array:
    return np.where((a >= b) | np.isnan(a), a, b)


_NUMPY: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "quotient": np.divide,
    "reciprocal_root": lambda x: 1 / np.sqrt(x),
    "sigmoid_part": lambda x: x,
    "sigmoid_of_sum": lambda part, x: _sigmoid(part + x),
    "log_of_sum": np.logaddexp,
    "negate": np.negative,
    "sigmoid": _sigmoid,
    "tanh": np.tanh,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "logsigmoid": lambda x: np.minimum(x, x.dtype.type(0)) - _log1p_exp(x),
    "softplus": lambda x: np.maximum(x, x.dtype.type(0)) + _log1p_exp(x),
    "silu": lambda x: x * _sigmoid(x),
    "relu": _relu,
    "abs": np.abs,
    "atan": np.arctan,
    "erf": _erf,
    "sin": np.sin,
    "cos": np.cos,
    "sqrt": np.sqrt,
    "min": _minimum,
    "max": _maximum,
    "where": np.where,
    "detach": lambda x: x,
    "sum": lambda x: np.add.reduce(x, axis=-1, keepdims=True),
    "spread": lambda x, like: np.broadcast_to(x, like.shape),
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
