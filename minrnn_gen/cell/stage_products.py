"""Products in stages: powers whose exponents add up, and factors that several products share."""

from __future__ import annotations

from dataclasses import replace

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import Exp2
from minrnn_gen.cell.preparation import names_in
from minrnn_gen.cell.program import Statement
from minrnn_gen.cell.stages import Stage, StagedProgram


def exponent_of(program: StagedProgram, label: str) -> tuple[str, str] | None:
    """Return the factors of the exponent, (constant, other), if the result `label` is a power of 2 with n values, else None.

    The product of such results over several steps takes one power, whose exponent adds up the factors that a channel has once.
    """
    name = dict(program.results)[label]
    wide = (statement for stage in program.steps for statement in stage.wide)
    power = next((statement.expression for statement in wide if statement.name == name), None)
    if not isinstance(power, Exp2):
        return None
    operation, factors = ex.operation(power.args[0])
    if operation != "multiply" or any(ex.operation(factor)[1] for factor in factors):
        return None
    constants = set(program.constant_names)
    (first, second) = (names_in(factor) for factor in factors)
    for constant, other in ((first, second), (second, first)):
        if constants.issuperset(constant) and len(other) == len(constant) == 1 and other[0] not in constants | program.wide:
            return constant[0], other[0]
    return None


def with_shared_products(program: StagedProgram) -> StagedProgram:
    """Return `program` with a product of three wide values as a product of two, if a statement computes two of the three.

    The gradients of s and of the previous state share two of three factors where a coefficient is exp(s).
    """
    return replace(program, steps=tuple(_with_shared_products(stage) for stage in program.steps))


def _with_shared_products(stage: Stage) -> Stage:
    pairs = {frozenset(_factors(statement.expression)): statement for statement in stage.wide}
    wide = dict[str, Statement]()
    for statement in stage.wide:
        names = frozenset(_factors(statement.expression))
        left_over = (name for name in names if len(names) == 3 and names - {name} in pairs)
        if other := min(left_over, default=""):
            shared = pairs[names - {other}]
            # It reads nothing but factors of this one, so it may go first.
            wide.setdefault(shared.name, shared)
            statement = Statement(statement.name, ex.multiply(ex.named(shared.name), ex.named(other)))
        wide.setdefault(statement.name, statement)
    return replace(stage, wide=tuple(wide.values()))


def _factors(expression: Expr) -> tuple[str, ...]:
    """Return the names whose product `expression` is, each once; empty for any other expression."""
    if isinstance(expression, Symbol):
        return (expression.name,)
    operation, operands = ex.operation(expression)
    if operation != "multiply":
        return ()
    left, right = map(_factors, operands)
    return (*left, *right) if left and right and set(left).isdisjoint(right) else ()
