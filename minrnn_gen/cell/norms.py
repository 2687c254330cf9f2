"""Norms and means over the units of a step: how they are written, and how they are composed of means."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell import functions as fn
from minrnn_gen.cell.expressions import Expr, Symbol

# The longest chain of norms and means: a language bound, like the bound on products.
NORM_LEVELS_MOST = 8

_FORMS = {
    "mean": "mean(x, head) or mean(x, all)",
    "rms_norm": "rms_norm(x, head, 1e-5) or rms_norm(x, all, 1e-5)",
    "layer_norm": "layer_norm(x, head, 1e-5), or layer_norm(x, [x, y], head, 1e-5) for the statistics of a list",
}


@dataclass(frozen=True)
class Written:
    """A call of a function over units: the normalised values, the values of the statistics, the units and eps."""

    normalised: tuple[ast.expr, ...]
    of: tuple[ast.expr, ...]
    over: str
    epsilon: ast.expr | None


def norm_written(node: ast.Call, name: str) -> Written | str:
    """Return the parts of a call of a function over units, or why it is not written correctly."""
    needs_units = f"{name} needs the units that it is over; write {_FORMS[name]}"
    places = [place for place, value in enumerate(node.args) if isinstance(value, ast.Name) and value.id in ("head", "all")]
    if node.keywords or not places or places[-1] == 0:
        return needs_units
    values, behind, units = node.args[: places[-1]], node.args[places[-1] + 1 :], node.args[places[-1]]
    assert isinstance(units, ast.Name)
    if name != "mean" and not behind:
        return f"{name} needs a number above 0 that is added under its root; write {_FORMS[name]}"
    listed = tuple(values[-1].elts) if isinstance(values[-1], ast.List) else ()
    alone = tuple(values[:-1] if listed else values)
    wanted = {"mean": (0 if listed else 1,), "rms_norm": (1,), "layer_norm": (1,)}[name]
    if len(alone) not in wanted or (listed and name == "rms_norm") or len(behind) != (name != "mean"):
        return f"{name} is not written like this; write {_FORMS[name]}"
    if name == "mean":
        return Written((), listed or alone, units.id, None)
    return Written(alone, listed or (alone if name == "layer_norm" else ()), units.id, behind[0])


@dataclass(frozen=True)
class Counted:
    """The units that a mean includes: all, or one in `of`, at which `within` keeps the value.

    `within` sets a value to 0 at all other units, and `named` names a value that is used more than once.
    """

    of: Fraction = Fraction(1)
    within: Callable[[Expr], Expr] = lambda value: value
    named: Callable[[Expr], Expr] = lambda value: value


def composed(expression: fn.OverUnits, counted: Counted | None = None) -> Expr:
    """Return a norm, or a mean of several values, by means of one value each; a mean of one value is itself.

    A variance is the mean of squares of differences from the mean, never a difference of two means, so nothing cancels.
    `counted`: the units that the means include, if not all.
    """
    if counted is None:
        if isinstance(expression, fn.Mean) and len(expression.args) == 1:
            return expression
        counted = Counted()
    units = counted

    def mean(values: Sequence[Expr]) -> Expr:
        over = fn.OVER_UNITS["mean", expression.over](average(values))
        return over if units.of == 1 else ex.multiply(ex.number(units.of), over)

    def root(squares: Sequence[Expr]) -> Expr:
        return fn.SquareRoot(ex.add(mean(squares), epsilon))

    if isinstance(expression, fn.Mean):
        return mean([*map(units.within, expression.args)])
    epsilon, *values = expression.args
    x, *of = map(units.named, values)
    if isinstance(expression, fn.RmsNorm):
        return ex.divide(x, root([ex.power(units.within(x), 2)]))
    centre = units.named(mean([*map(units.within, of)]))
    return ex.divide(
        ex.subtract(x, centre), root([ex.power(units.within(ex.subtract(value, fn.Centre(centre))), 2) for value in of])
    )


def average(values: Sequence[Expr]) -> Expr:
    """Return the average of values."""
    total = reduce(ex.add, values)
    return total if len(values) == 1 else ex.multiply(ex.number(Fraction(1, len(values))), total)


def norms_in(expressions: Iterable[Expr]) -> Iterator[fn.OverUnits]:
    """Yield the norms and means of expressions, inner ones first, once per use."""
    for expression in expressions:
        yield from norms_in(expression.args)
        if isinstance(expression, fn.OverUnits):
            yield expression


def norm_levels(expression: Expr, definitions: Mapping[Symbol, int]) -> int:
    """Return how many norms and means in a chain lead to a value; `definitions` has the number for each defined symbol."""
    if isinstance(expression, Symbol):
        return definitions.get(expression, 0)
    below = max((norm_levels(operand, definitions) for operand in expression.args), default=0)
    return below + isinstance(expression, fn.OverUnits)


def arguments_of(expression: fn.OverUnits) -> tuple[Expr | None, Expr | None, tuple[Expr, ...]]:
    """Return eps, the normalised value and the values of the statistics; None for an argument that a function lacks."""
    if isinstance(expression, fn.Mean):
        return None, None, expression.args
    epsilon, x, *of = expression.args
    return epsilon, x, tuple(of) or (x,)
