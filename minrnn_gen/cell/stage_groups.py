"""Parts of staged programs that depend on inputs S.* alone: computed once for all channels of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minrnn_gen.cell.preparation import PreparedParts
from minrnn_gen.cell.program import Statement
from minrnn_gen.cell.stages import Stage, StagedProgram


@dataclass(frozen=True)
class GroupedPrograms:
    """`statements` that read inputs S.* alone, with n values per step of a group, and programs that read their results."""

    statements: tuple[Statement, ...]
    programs: tuple[StagedProgram, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the values that are computed once for a group."""
        return tuple(statement.name for statement in self.statements)


def grouped(programs: Sequence[StagedProgram], shared: Sequence[str]) -> GroupedPrograms:
    """Return `programs` without the parts of their steps that read the inputs S.* named `shared` alone."""
    parts = PreparedParts((f"S_{name}" for name in shared), "group")
    without = [[_without_parts(stage, parts) for stage in program.steps] for program in programs]
    statements = {statement.name: statement for statement in parts.statements}
    return GroupedPrograms(
        tuple(statements.values()),
        tuple(
            replace(program, steps=tuple(steps), wide=program.wide | {*statements})
            for program, steps in zip(programs, without, strict=True)
        ),
    )


def _without_parts(stage: Stage, parts: PreparedParts) -> Stage:
    wide = parts.rest(stage.wide)
    return replace(
        stage, wide=wide, sums=tuple(Statement(added.name, parts.without_parts(added.expression)) for added in stage.sums)
    )
