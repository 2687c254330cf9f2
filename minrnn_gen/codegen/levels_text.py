"""Text of programs with levels: the summands of the means over units that each level needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minrnn_gen.cell.cuda_names import cuda_name
from minrnn_gen.cell.levels import Level
from minrnn_gen.codegen.rounds_text import Places, statements_of


@dataclass(frozen=True)
class ProgramText:
    """A program in the body of a function: `results` has (place, name)."""

    inputs: Places
    statements: Places
    results: Places


@dataclass(frozen=True)
class LevelText(ProgramText):
    """The summands of one level, for means from the place `first` on; bit k of `over_all`: mean k is over all units."""

    first: int
    over_all: int


@dataclass(frozen=True)
class LevelledText:
    """A program by its name in functions, with the levels before it."""

    name: str
    levels: tuple[LevelText, ...]
    program: ProgramText


def mean_places(levels: Sequence[Level]) -> dict[str, str]:
    """Return the indices of the means of levels, in the order of the levels."""
    return {name: f"mean.at[{place}]" for place, name in enumerate(name for level in levels for name, _ in level.means)}


def level_texts(levels: Sequence[Level], inputs: Sequence[Places]) -> tuple[LevelText, ...]:
    """Return the levels of a program, given the indices of each level's inputs."""
    texts, first = [], 0
    for level, placed in zip(levels, inputs, strict=True):
        results = tuple((f"at[{place}]", cuda_name(name)) for place, name in enumerate(level.summands))
        over_all = sum(1 << place for place, (_, over) in enumerate(level.means) if over == "all")
        texts.append(LevelText(placed, statements_of(level.program), results, first, over_all))
        first += len(results)
    return tuple(texts)
