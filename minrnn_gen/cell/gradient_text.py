"""The derived gradient of one step, as equations for people."""

from __future__ import annotations

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import Quotient
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.lowering_steps import lower_steps_backward
from minrnn_gen.cell.printing import equation_text

# Names with a dot: the language has only those of W, R, S and X, so that none meets a name of the author's.
_PREFIXES = (
    ("adjoint_let_", "d.{0}"),
    ("adjoint_state_", "d.{0}[t]"),
    ("gradient_W_", "dW.{0}"),
    ("gradient_R_", "dR.{0}"),
    ("gradient_S_", "dS.{0}"),
    ("gradient_X_", "dX.{0}"),
    ("gradient_previous_", "d.{0}[t-1]"),
    ("gradient_parameter_", "d.{0}"),
    ("gradient_state_", "in.{0}[t]"),
    ("gradient_argument_", "in.argument.{0}"),
    ("gradient_", "in.{0}"),
    ("shared_", "shared.{0}"),
    ("let_", "{0}"),
    ("state_", "{0}[t]"),
    ("previous_", "{0}[t-1]"),
    ("parameter_", "{0}"),
    ("W_", "W.{0}"),
    ("R_", "R.{0}"),
    ("S_", "S.{0}"),
    ("X_", "X.{0}"),
)


def gradient_equations(cell: Cell) -> tuple[str, ...]:
    """Return the vector-Jacobian product of one step of `cell` as equations, each after the equations that it reads.

    `in.y` is the gradient of the output, `in.h[t]` the gradient that later steps pass to the state h, and `in.argument.0` the
    gradient that reaches the argument of the first round of products through R. The prefix `d.` marks the total gradient of a
    named value, a state or a parameter; `dW.`, `dR.`, `dS.` and `dX.` mark the gradients of pre-activations, products and
    inputs S.* (of one channel) and X.*. `d.h[t-1]` is the gradient that this step passes on. `shared.` marks unnamed values
    that are used more than once.
    """
    program = lower_steps_backward(cell, shows_means=True).backward
    lines = [f"{_shown(statement.name)} = {equation_text(_renamed(statement.expression))}" for statement in program.statements]
    lines += [f"{_shown(label)} = {_shown(name)}" for label, name in program.results if label != name]
    return tuple(lines)


def _shown(name: str) -> str:
    prefix, form = next(pair for pair in _PREFIXES if name.startswith(pair[0]))
    return form.format(name.removeprefix(prefix))


def _renamed(expression: Expr) -> Expr:
    if isinstance(expression, Symbol):
        return ex.named(_shown(expression.name))
    inner = [_renamed(operand) for operand in expression.args]
    return ex.divide(*inner) if isinstance(expression, Quotient) else ex.rebuilt(expression, inner)
