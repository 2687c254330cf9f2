"""Levels of a step: where it needs means over units, and a program goes on only when all units have given their summands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from minrnn_gen.cell.program import Program


@dataclass(frozen=True)
class Level:
    """Means that are computed at once: (name, the units that it is over) of each, as later programs take it.

    `program` gives their summands in the order of `means`. It takes what a step does, and the means of earlier levels.
    """

    means: tuple[tuple[str, Literal["head", "all"]], ...]
    program: Program

    @property
    def summands(self) -> tuple[str, ...]:
        """The names that hold the summands, in the order of `means`."""
        return tuple(name for _, name in self.program.results)


def inputs_of(program: Program, levels: Sequence[Level]) -> tuple[str, ...]:
    """Return what a program takes together with the levels before it, means aside."""
    means = {name for level in levels for name, _ in level.means}
    programs = (*(level.program for level in levels), program)
    read = (name for part in programs for name in part.inputs)
    return tuple(name for name in dict.fromkeys(read) if name not in means)
