"""What kind of recurrence a cell is, with the proof: affine in its own previous value, merely diagonal, or dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sympy import Add, expand_mul  # type: ignore[import-untyped]

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import Comparison, Detach, Where
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.printing import equation_text

Kind = Literal[
    "affine-diagonal",
    "diagonal",
    "dense",
]

# Degrees above the first must cancel in an affine cell; a cell in which a fourth power cancels is already contrived.
DEGREE_LIMIT = 4
MONOMIAL_LIMIT = 64
# What one proof that a coefficient is zero may multiply out, so that no cell takes longer than a fraction of a second.
EXPANDED_TERM_LIMIT = 256
EXPANSION_BUDGET_TERMS = 20_000


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
    if cell.recurrent_gates:
        used = ", ".join(f"R.{gate}" for gate in cell.recurrent_gates)
        return Recurrence("dense", (), (), f"dense: it uses {used}, which mix the channels of the previous output.")
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
        self._zeros = _Zeros(self._free)
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
            if monomial in ((), (own,)) or self._zeros.is_zero(coefficient):
                continue
            if len(monomial) > 1:
                shown = " * ".join(symbol.name for symbol in monomial)
                raise _NotAffine(f"{state}[t] is not affine in {own}, because it contains the product {shown}")
            raise _NotAffine(f"{state}[t] depends on {monomial[0]}, another state's previous value")
        return value.get((own,), ex.ZERO), value.get((), ex.ZERO)

    def _reaches_state(self, expression: Expr) -> bool:
        return any(symbol in self._values for symbol in ex.symbols_of(expression))

    def _polynomial(self, expression: Expr) -> Polynomial:
        if not self._reaches_state(expression):
            return {(): expression}
        name, operands = ex.operation(expression)
        if name == "symbol":
            value = self._values[expression]
            if isinstance(value, _NotAffine):
                raise _NotAffine(str(value))
            return value
        if name == "call":
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

    def _call(self, expression: Expr, operands: tuple[Expr, ...]) -> Polynomial:
        if isinstance(expression, Where):
            condition = self._comparison(operands[0])
            if condition is None:
                raise _NotAffine(f"the condition {shown_equation(operands[0])} depends on the previous step")
            yes, no = self._polynomial(operands[1]), self._polynomial(operands[2])
            monomials = dict.fromkeys((*yes, *no))
            return {monomial: Where(condition, yes.get(monomial, ex.ZERO), no.get(monomial, ex.ZERO)) for monomial in monomials}
        free = [self._state_free(self._polynomial(operand)) for operand in operands]
        if any(operand is None for operand in free):
            if isinstance(expression, Detach):
                raise _NotAffine(
                    f"{shown_equation(expression)} hides from the gradient how the value depends on the previous step, so that "
                    "the gradient's recurrence is another one"
                )
            raise _NotAffine(
                f"{shown_equation(expression)} applies {expression.cell_name} to a value that depends on the previous step"
            )
        return {(): expression.func(*free)}

    def _comparison(self, condition: Comparison) -> Comparison | None:
        left, right = (self._state_free(self._polynomial(operand)) for operand in condition.args)
        return None if left is None or right is None else condition.func(left, right)

    def _state_free(self, value: Polynomial) -> Expr | None:
        """Return the constant term if every other coefficient is zero, else None."""
        if all(monomial == () or self._zeros.is_zero(coefficient) for monomial, coefficient in value.items()):
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


class _Zeros:
    """Proofs, within a budget, that an expression is zero for all real values of its symbols."""

    def __init__(self, lets: dict[Symbol, Expr]) -> None:
        self._lets = lets
        self._expanded_lets: dict[Symbol, Expr] = {}
        self._budget_terms = EXPANSION_BUDGET_TERMS

    def is_zero(self, expression: Expr) -> bool:
        """Whether `expression` was proved zero."""
        if ex.is_number(expression):
            return bool(expression == 0)
        try:
            return bool(self._expanded(expression) == 0)
        except _TooLarge:
            return False

    def _expanded(self, expression: Expr) -> Expr:
        """Return SymPy's own canonical form: a sum of products of symbols and of calls, equal terms collected."""
        self._spend(1)
        name, operands = ex.operation(expression)
        if name == "symbol":
            if expression in self._lets and expression not in self._expanded_lets:
                self._expanded_lets[expression] = self._expanded(self._lets[expression])
            return self._expanded_lets.get(expression, expression)
        if name == "number":
            return expression
        values = [self._expanded(operand) for operand in operands]
        if name == "call":
            return expression.func(*values)
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

    def _multiplied(self, left: Expr, right: Expr) -> Expr:
        terms = len(Add.make_args(left)) * len(Add.make_args(right))
        self._spend(terms)
        if terms > EXPANDED_TERM_LIMIT:
            raise _TooLarge
        return expand_mul(left * right, deep=False)

    def _spend(self, terms: int) -> None:
        self._budget_terms -= terms
        if self._budget_terms < 0:
            raise _TooLarge


class _TooLarge(Exception):
    """The proof would take longer than it is worth."""


def _sum(left: Polynomial, right: Polynomial) -> Polynomial:
    result = dict(left)
    for monomial, coefficient in right.items():
        result[monomial] = _plus(result.get(monomial, ex.ZERO), coefficient)
    return {monomial: coefficient for monomial, coefficient in result.items() if coefficient != 0}


def _scaled(value: Polynomial, factor: Expr) -> Polynomial:
    return {monomial: _times(coefficient, factor) for monomial, coefficient in value.items()}


def _plus(left: Expr, right: Expr) -> Expr:
    if left == 0:
        return right
    return left if right == 0 else ex.add(left, right)


def _times(left: Expr, right: Expr) -> Expr:
    for factor, other in ((left, right), (right, left)):
        if factor in (ex.ZERO, ex.ONE):
            return ex.ZERO if factor == ex.ZERO else other
        if factor == ex.MINUS_ONE:
            name, operands = ex.operation(other)
            return operands[0] if name == "negate" else ex.negate(other)
    return ex.multiply(left, right)


def _quotient(left: Expr, right: Expr) -> Expr:
    return left if left == 0 or right == 1 else ex.divide(left, right)
