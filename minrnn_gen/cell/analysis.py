"""What kind of recurrence a cell is, with the proof: affine in its own previous value, merely diagonal, or dense."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import CellFunction, Comparison, Detach, Where
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.printing import equation_text
from minrnn_gen.cell.refutation import Point

if TYPE_CHECKING:  # sympy is imported only where something has to be proved zero
    from minrnn_gen.cell.zeros import Zeros

Kind = Literal[
    "affine-diagonal",
    "diagonal",
    "dense",
]

# Degrees above the first must cancel in an affine cell; a cell in which a fourth power cancels is already contrived.
DEGREE_LIMIT = 4
MONOMIAL_LIMIT = 64


@dataclass(frozen=True)
class Recurrence:
    """The class of a cell: design section 3.

    For "affine-diagonal", state[t] = a * state[t-1] + b for each (state, a) of `a` and (state, b) of `b`, in the order of the
    cell's states; a and b are over gates, parameters and lets that no previous state reaches. Otherwise both are empty.
    `proof` says why, for people.
    """

    kind: Kind
    a: tuple[tuple[str, Expr], ...]
    b: tuple[tuple[str, Expr], ...]
    proof: str

    @property
    def is_scan(self) -> bool:
        """Whether each step is an affine map of each state, so that steps are composed in any grouping."""
        return self.kind == "affine-diagonal"


def classify(cell: Cell) -> Recurrence:
    """Return the class of `cell`.

    The decomposition follows the author's form, so that (1 - z) * h[t-1] + z * W.h gives a = 1 - z and b = z * W.h as written;
    what must vanish is proved zero by expansion over the reals. A cell whose proof fails is "diagonal": never an error.
    """
    if cell.recurrent_gates or cell.norms:
        return Recurrence("dense", (), (), _why_dense(cell))
    polynomials = _Polynomials(cell)
    try:
        pairs = {state: polynomials.affine(state) for state in cell.states}
    except _NotAffine as reason:
        return Recurrence("diagonal", (), (), f"not a scan: {reason}.")
    equations = (
        f"{s}[t] = a * {s}[t-1] + b with a = {shown_equation(a)} and b = {shown_equation(b)}" for s, (a, b) in pairs.items()
    )
    return Recurrence(
        "affine-diagonal",
        tuple((state, a) for state, (a, _) in pairs.items()),
        tuple((state, b) for state, (_, b) in pairs.items()),
        f"affine: {'; '.join(equations)}, free of every previous state.",
    )


def _why_dense(cell: Cell) -> str:
    arguments = dict(cell.arguments)
    of_output = ", ".join(f"R.{gate}" for gate in cell.recurrent_gates if gate not in arguments)
    norms = "; ".join(map(shown_equation, cell.norms))
    of_norms = f" Values over units within a step: {norms}." if norms else ""
    if not cell.recurrent_gates:
        return f"dense: values over units mix the channels within a step: {norms}."
    if not arguments:
        return f"dense: it uses {of_output}, which mix the channels of the previous output.{of_norms}"
    rounds = [of_output] if of_output else []
    rounds += [
        ", ".join(f"R.{gate}({shown_equation(together.argument)})" for gate in together.gates) for together in cell.rounds
    ]
    plural = "round" if len(rounds) == 1 else "rounds"
    return f"dense, {len(rounds)} {plural} of products a step, one after the other: {'; then '.join(rounds)}.{of_norms}"


def shown_equation(expression: Expr) -> str:
    """Return `expression` in the equation language, cut where it is long."""
    text = equation_text(expression)
    return text if len(text) <= 160 else f"{text[:157]}..."


class _NotAffine(Exception):
    """A clause that says what is not affine."""


Monomial = tuple[Symbol, ...]
"""Previous states, multiplied; in the order of the cell's states, repeated for powers. The empty one is 1."""

Polynomial = dict[Monomial, Expr]
"""Coefficients, free of previous states, by monomial."""


class _Polynomials:
    """The values of a cell as polynomials in its previous states."""

    def __init__(self, cell: Cell) -> None:
        self._previous = {ex.previous(state): position for position, state in enumerate(cell.states)}
        self._free: dict[Symbol, Expr] = {}
        self._values: dict[Symbol, Polynomial | _NotAffine] = {symbol: {(symbol,): ex.ONE} for symbol in self._previous}
        for symbol, expression in cell.definitions:
            if self._reaches_state(expression):
                try:
                    self._values[symbol] = self._polynomial(expression)
                except _NotAffine as reason:
                    self._values[symbol] = _NotAffine(str(reason))  # without its frames, which hold what called
            else:
                self._free[symbol] = expression
        self._states = dict(cell.next_states)

    def affine(self, state: str) -> tuple[Expr, Expr]:
        """Return a and b of `state`, or raise `_NotAffine`."""
        own, value = ex.previous(state), self._values.get(ex.current(state))
        if value is None:
            return ex.ZERO, self._states[state]
        if isinstance(value, _NotAffine):
            raise _NotAffine(f"{state}[t] is not affine in {own}, because {value}")
        for monomial, coefficient in value.items():
            if monomial in ((), (own,)) or self._is_zero(coefficient):
                continue
            if len(monomial) > 1:
                shown = " * ".join(symbol.name for symbol in monomial)
                raise _NotAffine(f"{state}[t] is not affine in {own}, because it contains the product {shown}")
            raise _NotAffine(f"{state}[t] depends on {monomial[0].name}, another state's previous value")
        return value.get((own,), ex.ZERO), value.get((), ex.ZERO)

    @cached_property
    def _point(self) -> Point:
        return Point(self._free)

    @cached_property
    def _zeros(self) -> Zeros:
        from minrnn_gen.cell.zeros import Zeros

        return Zeros(self._free)

    def _is_zero(self, coefficient: Expr) -> bool:
        if ex.is_number(coefficient):
            return coefficient == ex.ZERO
        return not self._point.refutes_zero(coefficient) and self._zeros.is_zero(coefficient)

    def _reaches_state(self, expression: Expr) -> bool:
        return any(symbol in self._values for symbol in ex.symbols_of(expression))

    def _polynomial(self, expression: Expr) -> Polynomial:
        if not self._reaches_state(expression):
            return {(): expression}
        name, operands = ex.operation(expression)
        if isinstance(expression, Symbol):
            value = self._values[expression]
            if isinstance(value, _NotAffine):
                raise _NotAffine(str(value))
            return value
        if isinstance(expression, CellFunction):
            return self._call(expression, operands)
        values = [self._polynomial(operand) for operand in operands]
        if name == "add":
            return _sum(values[0], values[1])
        if name == "subtract":
            return _sum(values[0], _scaled(values[1], ex.MINUS_ONE))
        if name == "negate":
            return _scaled(values[0], ex.MINUS_ONE)
        if name == "multiply":
            return self._product(values[0], values[1])
        if name == "divide":
            divisor = self._state_free(values[1])
            if divisor is None:
                raise _NotAffine(f"{shown_equation(expression)} divides by a value that depends on the previous step")
            return {monomial: _quotient(coefficient, divisor) for monomial, coefficient in values[0].items()}
        result = values[0]
        for _ in range(ex.power_exponent(expression) - 1):
            result = self._product(result, values[0])
        return result

    def _call(self, expression: CellFunction, operands: tuple[Expr, ...]) -> Polynomial:
        if isinstance(expression, Where):
            asked = operands[0]
            condition = self._comparison(asked) if isinstance(asked, Comparison) else None
            if condition is None:
                raise _NotAffine(f"the condition {shown_equation(asked)} depends on the previous step")
            yes, no = self._polynomial(operands[1]), self._polynomial(operands[2])
            monomials = dict.fromkeys((*yes, *no))
            return {monomial: Where(condition, yes.get(monomial, ex.ZERO), no.get(monomial, ex.ZERO)) for monomial in monomials}
        values = [self._state_free(self._polynomial(operand)) for operand in operands]
        free = [value for value in values if value is not None]
        if len(free) < len(values):
            if isinstance(expression, Detach):
                raise _NotAffine(
                    f"{shown_equation(expression)} hides from the gradient how the value depends on the previous step, so that "
                    "the gradient's recurrence is another one"
                )
            raise _NotAffine(
                f"{shown_equation(expression)} applies {expression.cell_name} to a value that depends on the previous step"
            )
        return {(): type(expression)(*free)}

    def _comparison(self, condition: Comparison) -> Comparison | None:
        left, right = (self._state_free(self._polynomial(operand)) for operand in condition.args)
        return None if left is None or right is None else type(condition)(left, right)

    def _state_free(self, value: Polynomial) -> Expr | None:
        """Return the constant term if every other coefficient is zero, else None."""
        if all(monomial == () or self._is_zero(coefficient) for monomial, coefficient in value.items()):
            return value.get((), ex.ZERO)
        return None

    def _product(self, left: Polynomial, right: Polynomial) -> Polynomial:
        result: Polynomial = {}
        for left_monomial, left_coefficient in left.items():
            for right_monomial, right_coefficient in right.items():
                monomial = tuple(sorted((*left_monomial, *right_monomial), key=self._previous.__getitem__))
                if len(monomial) > DEGREE_LIMIT or len(result) > MONOMIAL_LIMIT:
                    raise _NotAffine(f"it contains a product of more than {DEGREE_LIMIT} previous values")
                result = _sum(result, {monomial: _times(left_coefficient, right_coefficient)})
        return result


def _sum(left: Polynomial, right: Polynomial) -> Polynomial:
    result = dict(left)
    for monomial, coefficient in right.items():
        result[monomial] = _plus(result.get(monomial, ex.ZERO), coefficient)
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient != ex.ZERO}


def _scaled(value: Polynomial, factor: Expr) -> Polynomial:
    return {monomial: _times(coefficient, factor) for monomial, coefficient in value.items()}


def _plus(left: Expr, right: Expr) -> Expr:
    if left == ex.ZERO:
        return right
    return left if right == ex.ZERO else ex.add(left, right)


def _times(left: Expr, right: Expr) -> Expr:
    for factor, other in ((left, right), (right, left)):
        if factor in (ex.ZERO, ex.ONE):
            return ex.ZERO if factor == ex.ZERO else other
        if factor == ex.MINUS_ONE:
            name, operands = ex.operation(other)
            return operands[0] if name == "negate" else ex.negate(other)
    return ex.multiply(left, right)


def _quotient(left: Expr, right: Expr) -> Expr:
    return left if left == ex.ZERO or right == ex.ONE else ex.divide(left, right)
