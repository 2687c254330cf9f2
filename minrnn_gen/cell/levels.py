"""Levels of a step: a program needs means over units, and goes on only when all units have supplied their summands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from minrnn_gen.cell.program import Program

# The means of a step's forward lie in memory in rows of this length, a whole number of the widest copies.
MEANS_OF_ROW = 16


def rows_of_means(count: int) -> int:
    """Return how many rows in memory `count` means take."""
    return -(-count // MEANS_OF_ROW)


@dataclass(frozen=True)
class Level:
    """Means that are computed at once: (name, the units averaged) of each, under its name in later programs.

    `program` computes their summands in the order of `means`, from the inputs of a step and the means of earlier levels.
    """

    means: tuple[tuple[str, Literal["head", "all"]], ...]
    program: Program

    @property
    def summands(self) -> tuple[str, ...]:
        """The names that hold the summands, in the order of `means`."""
        return tuple(name for _, name in self.program.results)

    def restricted(self, names: Collection[str]) -> Level:
        """Return the level of these means alone."""
        kept = [place for place, (name, _) in enumerate(self.means) if name in names]
        labels = {self.program.results[place][0] for place in kept}
        return Level(tuple(self.means[place] for place in kept), self.program.restricted(labels))


@dataclass(frozen=True)
class Statistic:
    """The mean of a value over units and, if `squares` names it, the mean of the squared differences from that mean.

    A program returns the value as `value_label`. If the value is itself the average of a list, the program also returns the
    mean squared difference of the list from that average, as `within_label`. It reads the means as `mean` and `squares`.
    """

    mean: str
    squares: str
    over: Literal["head", "all"]
    is_of_list: bool = False

    @property
    def value_label(self) -> str:
        """The label of the value."""
        return f"value_of_{self.mean}"

    @property
    def within_label(self) -> str:
        """The label of a unit's own contribution to the squares, from its list; empty without a list."""
        return f"within_of_{self.mean}" if self.is_of_list else ""

    @property
    def needs(self) -> tuple[str, ...]:
        """The labels of the results that the statistic is computed from."""
        return (self.value_label, *((self.within_label,) if self.is_of_list else ()))

    @property
    def means(self) -> tuple[str, ...]:
        """The names of all means."""
        return (self.mean, *((self.squares,) if self.squares else ()))


@dataclass(frozen=True)
class WholeProgram:
    """A program that returns its results and the values of all `statistics` that it reads itself."""

    program: Program
    statistics: tuple[Statistic, ...]


def inputs_of(program: Program, levels: Sequence[Level]) -> tuple[str, ...]:
    """Return the inputs of a program and of the levels before it, except means."""
    means = {name for level in levels for name, _ in level.means}
    programs = (*(level.program for level in levels), program)
    read = (name for part in programs for name in part.inputs)
    return tuple(name for name in dict.fromkeys(read) if name not in means)
