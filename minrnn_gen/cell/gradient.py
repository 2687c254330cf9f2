"""Reverse-mode differentiation: the vector-Jacobian product of values that a `ProgramBuilder` numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell import functions as fn
from minrnn_gen.cell.expressions import ONE, ZERO, Expr, Symbol
from minrnn_gen.cell.value_numbering import ProgramBuilder

Guard = tuple[tuple[Expr, bool], ...]
"""Conditions, outermost first, each with the outcome under which a gradient counts."""

Guarded = tuple[Guard, Expr]
"""A gradient that is 0 unless every condition of its guard has its outcome; its own value there is of no account."""


def vector_jacobian_product(
    builder: ProgramBuilder, incoming: Sequence[tuple[Expr, Expr]], inputs: Sequence[Symbol]
) -> dict[Symbol, Expr]:
    """Return the gradient of each of `inputs` from the incoming gradient of each result, (result, gradient).

    The gradients are over symbols of `builder`, which numbers every value on the way, so that the forward's values are used
    again and nothing is computed twice. The total gradient of a value called v is called `adjoint_v`. An input that reaches no
    result has the gradient 0. Where n values of a channel derive from one value, its gradient is the sum of their gradients.

    Selections (where, min, max, relu, abs) come last, when gradients of different conditions meet: the branch not taken has the
    gradient 0, whatever infinity or NaN it produces on the way. Ties and kinks: docs/cells.md. Source of the method: Griewank
    and Walther, Evaluating Derivatives, 2nd ed., section 3.2.
    """
    sources = {builder.value(symbol): symbol for symbol in inputs}
    arrived: dict[Symbol, list[Guarded]] = {}
    for result, gradient in incoming:
        value = builder.value(result)
        arrived.setdefault(value, []).append(_added_over_n(builder, value, value, ((), gradient)))
    operations = builder.operations  # before those of the gradient join them
    varying = _varying(operations, set(sources))
    gradients: dict[Symbol, Expr] = dict.fromkeys(inputs, ZERO)
    for value, expression in reversed(operations):
        if value not in arrived or value not in varying:
            continue
        guard, total = _merged(builder, arrived[value])
        if value in sources:
            gradients[sources[value]] = _selected(guard, total)
            continue
        if isinstance(expression, fn.Mean):
            (operand,) = expression.args
            if operand in varying:
                arrived.setdefault(builder.value(operand), []).append(_averaged(builder, type(expression), guard, total))
            continue
        name = builder.name_of(value)
        adjoint = builder.value(total, None if name is None else f"adjoint_{name}")
        for operand, (condition, gradient) in _pulled_back(builder, expression, value, adjoint):
            if isinstance(operand, Symbol) and operand in varying:
                inner = ((builder.value(operand), outcome) for operand, outcome in condition)
                passed = (tuple(dict.fromkeys((*guard, *inner))), gradient)
                arrived.setdefault(operand, []).append(_added_over_n(builder, operand, value, passed))
    return gradients


def _added_over_n(builder: ProgramBuilder, operand: Symbol, value: Symbol, passed: Guarded) -> Guarded:
    """Return the gradient `passed` to an operand of `value`, summed over the axis n if the operand is one value per channel."""
    guard, gradient = passed
    if builder.is_wide(operand):
        return passed
    of_n = tuple(pair for pair in guard if builder.is_wide(pair[0]))
    if not of_n and not builder.is_wide(gradient):
        # A wide value has a wide gradient, even where the n values of it are one: it was passed on by a sum.
        return (guard, fn.Sum(fn.Spread(gradient, value))) if builder.is_wide(value) else passed
    others = tuple(pair for pair in guard if pair not in of_n)
    if of_n:
        # The operand has no gradient unless some of its n uses have one.
        counts = builder.value(fn.NotEqual(fn.Sum(_selected(of_n, ONE)), ZERO))
        others = (*others, (counts, True))
    return others, fn.Sum(_selected(of_n, gradient))


def _averaged(builder: ProgramBuilder, mean: type[fn.Mean], guard: Guard, gradient: Expr) -> Guarded:
    """Return the gradient that a mean over units passes to each unit: the mean of all their gradients, each selected before."""
    averaged = builder.value(mean(_selected(guard, gradient)))
    if not guard:
        return (), averaged
    counts = builder.value(mean(_selected(guard, ONE)))
    return ((builder.value(fn.NotEqual(counts, ZERO)), True),), averaged


def _varying(operations: Sequence[tuple[Symbol, Expr]], sources: set[Symbol]) -> set[Symbol]:
    """Return the values that change, differentiably, with `sources`."""
    varying = set(sources)
    for value, expression in operations:
        operands = ex.operation(expression)[1]
        if isinstance(expression, fn.Surrogate):
            operands = operands[1:]
        if not isinstance(expression, fn.Comparison | fn.Detach | fn.Centre) and not varying.isdisjoint(operands):
            varying.add(value)
    return varying


def _pulled_back(builder: ProgramBuilder, expression: Expr, value: Symbol, gradient: Expr) -> Iterator[tuple[Expr, Guarded]]:
    """Yield (operand, its gradient) for each operand of one operation, from the `gradient` of its `value`."""
    name, operands = ex.operation(expression)
    if name == "call":
        yield from _pulled_back_through_call(builder, expression, value, gradient)
    elif name == "negate":
        yield operands[0], ((), ex.negate(gradient))
    elif name in ("add", "subtract"):
        yield operands[0], ((), gradient)
        yield operands[1], ((), gradient if name == "add" else ex.negate(gradient))
    elif name == "multiply":
        yield operands[0], ((), ex.multiply(gradient, operands[1]))
        yield operands[1], ((), ex.multiply(gradient, operands[0]))
    elif name == "divide":
        yield from _pulled_back_through_quotient(operands, value, gradient)


def _pulled_back_through_quotient(operands: Sequence[Expr], value: Symbol, gradient: Expr) -> Iterator[tuple[Expr, Guarded]]:
    share = ex.divide(gradient, operands[1])
    yield operands[0], ((), share)
    yield operands[1], ((), ex.negate(ex.multiply(share, value)))


def _pulled_back_through_call(
    builder: ProgramBuilder, expression: Expr, value: Symbol, gradient: Expr
) -> Iterator[tuple[Expr, Guarded]]:
    x, *others = expression.args
    function = type(expression)
    if function in SLOPES:
        yield x, ((), ex.multiply(gradient, SLOPES[function](x, value)))
    elif function in INVERSE_SLOPES:
        yield x, ((), ex.divide(gradient, INVERSE_SLOPES[function](x)))
    elif function is fn.Sum:
        yield x, ((), gradient)
    elif function is fn.Surrogate:
        yield others[0], ((), gradient)
    elif function is fn.Quotient:
        yield from _pulled_back_through_quotient(expression.args, value, gradient)
    elif function is fn.SquareRoot:
        share = ex.divide(gradient, ex.add(value, value))
        is_positive = isinstance(x, Symbol) and builder.range_of(x).least > 0
        yield x, (() if is_positive else ((fn.NotEqual(value, ZERO), True),), share)
    elif function is fn.Relu:
        yield x, (((fn.LessOrEqual(x, ZERO), False),), gradient)  # of NaN too
    elif function is fn.Absolute:
        of_negative = fn.Where(fn.Less(x, ZERO), ex.negate(gradient), ZERO)
        yield x, ((), fn.Where(fn.Greater(x, ZERO), gradient, of_negative))
    elif function in (fn.Minimum, fn.Maximum):
        condition, outcome = _first_is_taken(builder, function, x, others[0])
        yield x, (((condition, outcome),), gradient)
        yield others[0], (((condition, not outcome),), gradient)
    elif function is fn.Where:
        yield others[0], (((x, True),), gradient)
        yield others[1], (((x, False),), gradient)


def _first_is_taken(builder: ProgramBuilder, function: type[fn.CellFunction], first: Expr, second: Expr) -> tuple[Expr, bool]:
    """Return a condition, and its outcome where min or max takes the first argument: NaN before a number, the first at a tie.

    All comparisons form one condition, since a selection by several conditions cannot come last.
    """
    no_worse, better = (fn.LessOrEqual, fn.Less) if function is fn.Minimum else (fn.GreaterOrEqual, fn.Greater)
    if _is_number(builder, first):
        return no_worse(first, second), True
    if _is_number(builder, second):  # only the first may be NaN, of which every comparison is false
        return better(second, first), False
    first_chosen = fn.Where(fn.NotEqual(first, first), ONE, fn.Where(no_worse(first, second), ONE, ZERO))
    return fn.NotEqual(first_chosen, ZERO), True


def _is_number(builder: ProgramBuilder, value: Expr) -> bool:
    return isinstance(value, Symbol) and builder.is_number(value)


TWO_OVER_ROOT_PI = ex.number("1.1283791670955125738961589031215451716881012586580")
SLOPES: dict[type[fn.CellFunction], Callable[[Expr, Expr], Expr]] = {
    fn.Sigmoid: lambda _, value: ex.multiply(value, ex.subtract(ONE, value)),
    fn.Tanh: lambda _, value: ex.subtract(ONE, ex.multiply(value, value)),
    fn.Exp: lambda _, value: value,
    fn.Expm1: lambda _, value: ex.add(value, ONE),
    fn.LogSigmoid: lambda x, _: fn.Sigmoid(ex.negate(x)),
    fn.Softplus: lambda x, _: fn.Sigmoid(x),
    fn.ErrorFunction: lambda x, _: ex.multiply(TWO_OVER_ROOT_PI, fn.Exp(ex.negate(ex.multiply(x, x)))),
    fn.Sine: lambda x, _: fn.Cosine(x),
    fn.Cosine: lambda x, _: ex.negate(fn.Sine(x)),
    fn.Silu: lambda x, _: ex.multiply(fn.Sigmoid(x), ex.add(ONE, ex.multiply(x, ex.subtract(ONE, fn.Sigmoid(x))))),
}
"""f'(x), given x and f(x), in forms without overflow."""

INVERSE_SLOPES: dict[type[fn.CellFunction], Callable[[Expr], Expr]] = {
    fn.Log: lambda x: x,
    fn.Log1p: lambda x: ex.add(ONE, x),
    fn.Arctangent: lambda x: ex.add(ONE, ex.multiply(x, x)),
}
"""1 / f'(x), given x."""


def _merged(builder: ProgramBuilder, gradients: Sequence[Guarded]) -> Guarded:
    """Return the sum of gradients, under their common conditions and, if each has further conditions, under any of these."""
    guards = [guard for guard, _ in gradients]
    common = tuple(row[0] for row in takewhile(lambda row: len(set(row)) == 1, zip(*guards, strict=False)))
    own = [guard[len(common) :] for guard in guards]
    total = _sum([(guard, gradient) for guard, (_, gradient) in zip(own, gradients, strict=True)])
    if len(own) == 1 or not all(own) or _covers(own):
        return common, total
    counts = _sum([(guard, ONE) for guard in own])
    return (*common, (builder.value(fn.NotEqual(counts, ZERO)), True)), total


def _covers(guards: Sequence[Guard]) -> bool:
    """Whether some guard always holds: both outcomes of one condition are guards by themselves."""
    single = {guard[0] for guard in guards if len(guard) == 1}
    return any((condition, not outcome) in single for condition, outcome in single)


def _sum(gradients: Sequence[Guarded]) -> Expr:
    """Return the sum, with one selection for all gradients that share their outermost condition."""
    terms: list[Expr] = []
    branches: dict[Expr, dict[bool, list[Guarded]]] = {}
    for guard, gradient in gradients:
        if guard:
            (condition, outcome), *rest = guard
            branches.setdefault(condition, {True: [], False: []})[outcome].append((tuple(rest), gradient))
        else:
            terms.append(gradient)
    terms += [fn.Where(condition, _sum(branch[True]), _sum(branch[False])) for condition, branch in branches.items()]
    if not terms:
        return ZERO
    total = terms[0]
    for term in terms[1:]:
        total = _plus(total, term)
    return total


def _plus(left: Expr, right: Expr) -> Expr:
    name, operands = ex.operation(left)
    return ex.subtract(right, operands[0]) if name == "negate" else ex.add(left, right)


def _selected(guard: Guard, gradient: Expr) -> Expr:
    """Return `gradient` where the guard holds, else 0."""
    return _sum([(guard, gradient)])
