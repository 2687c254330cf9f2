"""Levels of a step: where it needs means over units, and a program goes on only when all units have given their summands."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from minrnn_gen.cell.program import Program

# The means of a step's forward lie in memory in rows of so many, each a whole number of the widest copies.
MEANS_OF_ROW = 16


def rows_of_means(count: int) -> int:
    """Return how many rows in memory so many means take."""
    return -(-count // MEANS_OF_ROW)


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

    def restricted(self, names: Collection[str]) -> Level:
        """Return what gives the means of these names alone."""
        kept = [place for place, (name, _) in enumerate(self.means) if name in names]
        labels = {self.program.results[place][0] for place in kept}
        return Level(tuple(self.means[place] for place in kept), self.program.restricted(labels))


@dataclass(frozen=True)
class Statistic:
    """The mean of a value over units and, where there is a name for it, the mean of squares of differences from it.

    A program gives the value as `value_label` and, where the value is itself the average of a list, the mean of squares of the
    list's differences from it as `within_label`. It takes the means as `mean` and `squares`.
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
        """The label of what the list of a unit adds to the squares; empty without a list."""
        return f"within_of_{self.mean}" if self.is_of_list else ""

    @property
    def needs(self) -> tuple[str, ...]:
        """The labels of all that it is made of."""
        return (self.value_label, *((self.within_label,) if self.is_of_list else ()))

    @property
    def means(self) -> tuple[str, ...]:
        """The names of all means."""
        return (self.mean, *((self.squares,) if self.squares else ()))


@dataclass(frozen=True)
class WholeProgram:
    """A program that gives its results and the values of all `statistics` that it takes itself."""

    program: Program
    statistics: tuple[Statistic, ...]


def inputs_of(program: Program, levels: Sequence[Level]) -> tuple[str, ...]:
    """Return what a program takes together with the levels before it, means aside."""
    means = {name for level in levels for name, _ in level.means}
    programs = (*(level.program for level in levels), program)
    read = (name for part in programs for name in part.inputs)
    return tuple(name for name in dict.fromkeys(read) if name not in means)
