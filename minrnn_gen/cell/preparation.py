"""Splits a program: the part that is free of some inputs is computed before these inputs are known."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import Comparison
from minrnn_gen.cell.program import Program, Statement


@dataclass(frozen=True)
class CutProgram:
    """A program in two parts: `preparation` is free of some inputs, and `rest` reads its results instead of other inputs."""

    preparation: Program
    rest: Program

    @property
    def values(self) -> tuple[str, ...]:
        """The names that the rest reads of the preparation's results, including inputs that are passed on."""
        return tuple(name for name, _ in self.preparation.results)


def cut(program: Program, late: Collection[str], prefix: str = "prepared") -> CutProgram:
    """Return `program` with all that is free of the inputs `late` computed first; parts get names that begin with `prefix`."""
    parts = PreparedParts((name for name in program.inputs if name not in late), prefix)
    statements = parts.rest(program.statements)
    read = [name for statement in statements for name in names_in(statement.expression)]
    read += [name for _, name in program.results]
    values = tuple(name for name in dict.fromkeys(read) if name in parts.free)
    needed = {name for statement in parts.statements for name in names_in(statement.expression)} | set(values)
    early = tuple(name for name in program.inputs if name in needed)
    late_inputs = tuple(name for name in program.inputs if name in late)
    return CutProgram(
        Program(early, tuple(parts.statements), tuple((name, name) for name in values)),
        Program((*late_inputs, *values), statements, program.results),
    )


class PreparedParts:
    """The statements that read only names in `free`, and such parts of other statements, as statements of their own.

    `free` grows by the names of `statements`, which stand in the order of execution. Parts get names that begin with `prefix`.
    """

    def __init__(self, free: Iterable[str], prefix: str = "prepared") -> None:
        self.free = set(free)
        self._prefix = prefix
        self.statements: list[Statement] = []
        self._parts: dict[Expr, Symbol] = {}

    def rest(self, statements: Iterable[Statement]) -> tuple[Statement, ...]:
        """Return the statements that stay, without the parts that the preparation computes."""
        rest = []
        for statement in statements:
            if self.free.issuperset(names_in(statement.expression)):
                self._prepare(statement)
            else:
                rest.append(Statement(statement.name, self.without_parts(statement.expression)))
        return tuple(rest)

    def without_parts(self, expression: Expr) -> Expr:
        """Return `expression` with names for its largest parts that read names of `free` alone."""
        operands = ex.operation(expression)[1]
        if not operands:
            return expression
        if is_trivial(expression) or not self.free.issuperset(names_in(expression)):
            return ex.rebuilt(expression, [self.without_parts(operand) for operand in operands])
        if not names_in(expression):
            return expression
        if expression not in self._parts:
            self._parts[expression] = ex.named(f"{self._prefix}_{len(self._parts)}")
            self._prepare(Statement(self._parts[expression].name, expression))
        return self._parts[expression]

    def _prepare(self, statement: Statement) -> None:
        self.free.add(statement.name)
        self.statements.append(statement)


def is_trivial(expression: Expr) -> bool:
    """Whether an expression is not worth a name of its own: a sign takes no time, and a condition has no name."""
    name, operands = ex.operation(expression)
    return isinstance(expression, Comparison) or (name == "negate" and not ex.operation(operands[0])[1])


def names_in(expression: Expr) -> list[str]:
    """Return the names that an expression reads."""
    return [symbol.name for symbol in ex.symbols_of(expression)]
