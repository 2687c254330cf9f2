"""A step with the shortest chain of operations after late inputs, for kernels that wait for these inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import reduce

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import Sigmoid, SigmoidOfSum, SigmoidPart
from minrnn_gen.cell.preparation import CutProgram, cut, names_in
from minrnn_gen.cell.program import Program, Statement


def sum_name(gate: str) -> str:
    """Return the name of a recurrent product without its bias."""
    return f"sum_{gate}"


def bias_name(gate: str) -> str:
    """Return the name of a recurrent product's bias."""
    return f"recurrent_bias_{gate}"


def step_behind_sums(step: Program, gates: Collection[str], states: Collection[str]) -> CutProgram:
    """Return one time step in two parts; only `rest` reads the recurrent sums and the previous states.

    The inputs `sum_<gate>` and `recurrent_bias_<gate>` replace each `R_<gate>`.
    """
    late = late_names(step, gates, states)
    return cut(by_sums(step, gates, late), late)


def late_names(step: Program, gates: Collection[str], states: Collection[str]) -> tuple[str, ...]:
    """Return the names of the recurrent sums that a step reads, and of the previous states."""
    return (*(sum_name(gate) for gate in gates if f"R_{gate}" in step.inputs), *(f"previous_{state}" for state in states))


def by_sums(step: Program, gates: Collection[str], late: Collection[str]) -> Program:
    """Return a step in terms of recurrent sums and biases, in the form that reads the names `late` last."""
    read = {f"R_{gate}": gate for gate in gates if f"R_{gate}" in step.inputs}
    inputs = [name for name in step.inputs if name not in read]
    inputs += [name(gate) for gate in read.values() for name in (sum_name, bias_name)]
    # A result that is a product itself has no statement to be rewritten.
    whole = {f"R_{gate}": f"product_{gate}" for gate in read.values() if f"R_{gate}" in dict(step.results).values()}
    named = tuple(Statement(whole[name], ex.named(name)) for name in read if name in whole)
    rewritten = Program(step.inputs, (*step.statements, *named), step.results)
    results = tuple((label, whole.get(name, name)) for label, name in step.results)
    return Program(tuple(inputs), tuple(_Rewriting(rewritten, read, late).statements()), results)


class _Rewriting:
    """The statements of a step, rewritten."""

    def __init__(self, step: Program, products: Mapping[str, str], late: Collection[str]) -> None:
        self._step = step
        self._products = products
        self._late = set(late)

    def statements(self) -> Iterator[Statement]:
        for statement in self._step.statements:
            rewritten = Statement(statement.name, self._rewritten(statement.expression))
            if self._is_late(rewritten.expression):
                self._late.add(rewritten.name)
            yield rewritten

    def _is_late(self, expression: Expr) -> bool:
        return not self._late.isdisjoint(names_in(expression))

    def _rewritten(self, expression: Expr) -> Expr:
        name, operands = ex.operation(expression)
        if isinstance(expression, Symbol) and expression.name in self._products:
            gate = self._products[expression.name]
            return ex.add(ex.named(bias_name(gate)), ex.named(sum_name(gate)))
        if not operands:
            return expression
        rewritten = ex.rebuilt(expression, [self._rewritten(operand) for operand in operands])
        if name == "add":
            return self._late_last(rewritten)
        if isinstance(rewritten, Sigmoid):
            name, addends = ex.operation(rewritten.args[0])
            if name == "add" and [self._is_late(addend) for addend in addends] == [False, True]:
                return SigmoidOfSum(SigmoidPart(addends[0]), addends[1])
        return rewritten

    def _late_last(self, expression: Expr) -> Expr:
        """Return a sum whose early addends are added up first."""
        addends = list(_addends(expression))
        parts = [[addend for addend in addends if self._is_late(addend) == is_late] for is_late in (False, True)]
        return reduce(ex.add, [reduce(ex.add, part) for part in parts if part])


def _addends(expression: Expr) -> Iterator[Expr]:
    name, operands = ex.operation(expression)
    if name != "add":
        yield expression
        return
    for operand in operands:
        yield from _addends(operand)
