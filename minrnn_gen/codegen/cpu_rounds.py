"""Rounds of products in C: what the templates of kernels for the CPU read of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.cell.levels import Level
from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.rounds import places_by_round


@dataclass(frozen=True)
class NativeLevel:
    """Summands of means over units, from place `first` among the summands of a program; levels are numbered from 0 on.

    `means` has (name, place) of all means of earlier levels. Bit k of `over_all`: mean k is over all heads.
    """

    number: int
    first: int
    over_all: int
    program: Program
    means: tuple[tuple[str, int], ...]

    @property
    def summands(self) -> tuple[str, ...]:
        """The variables that hold the summands."""
        return tuple(f"cell_{name}" for _, name in self.program.results)


@dataclass(frozen=True)
class NativeMeans:
    """The levels of one program, and (name, place) of all its means."""

    levels: tuple[NativeLevel, ...]
    means: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, levels: Sequence[Level]) -> NativeMeans:
        """Return the means of a program in the order of its levels."""
        native: list[NativeLevel] = []
        means: list[tuple[str, int]] = []
        for number, level in enumerate(levels):
            over_all = sum(1 << place for place, (_, over) in enumerate(level.means) if over == "all")
            native.append(NativeLevel(number, len(means), over_all, level.program, tuple(means)))
            means += [(name, len(means) + place) for place, (name, _) in enumerate(level.means)]
        return cls(tuple(native), tuple(means))


class MeansOfUnits:
    """The part of a plan that knows the means over units of its programs."""

    cell: LoweredSteps | LoweredStepsBackward

    @property
    def rounds(self) -> tuple[NativeRound, ...]:
        """The rounds of products after those of the previous output."""
        raise NotImplementedError

    @cached_property
    def of_units(self) -> NativeMeans:
        """The means over units that the program of a step takes."""
        return NativeMeans.of(self.cell.levels)

    @property
    def _every_means(self) -> tuple[NativeMeans, ...]:
        return (self.of_units, *(of_round.of_units for of_round in self.rounds))

    @property
    def mean_count(self) -> int:
        """The means over units that one program takes at most; 0 where none takes any."""
        return max(len(of_units.means) for of_units in self._every_means)

    @property
    def summand_count(self) -> int:
        """The means of one level at most."""
        return max((len(level.summands) for of_units in self._every_means for level in of_units.levels), default=0)

    @property
    def is_staged(self) -> bool:
        """Whether a forward multiplies gate by gate and continues from products in memory, as rounds and means need."""
        return bool(self.rounds) or self.mean_count > 0

    def summand_places(self, level: NativeLevel) -> tuple[tuple[str, str], ...]:
        """Return (region, variable) of each summand; levels take turns with two sets of regions."""
        first = level.number % 2 * self.summand_count
        return tuple((f"SUMMANDS + {first + place}", name) for place, name in enumerate(level.summands))

    def averages(self, level: NativeLevel) -> tuple[tuple[int, int, str], ...]:
        """Return (place, whether it is over all heads, region of its summands) of each mean of a level."""
        return tuple(
            (level.first + place, level.over_all >> place & 1, region)
            for place, (region, _) in enumerate(self.summand_places(level))
        )


@dataclass(frozen=True)
class NativeRound:
    """Products of one argument: the round `number` of a step, after the products of the previous output.

    `places` are the indices of its gates in R, and `first` is the number of earlier products in a step. `gradients`, which
    computes the gradients of its products, is None in a forward. `of_units` are the means of the round's own program: the
    argument in a forward, the gradients in a backward.
    """

    number: int
    gates: tuple[str, ...]
    places: tuple[int, ...]
    first: int
    argument: Program
    gradients: Program | None
    of_units: NativeMeans


def native_rounds(cell: LoweredSteps | LoweredStepsBackward) -> tuple[NativeRound, ...]:
    """Return the rounds of a cell in the order of a step."""
    arguments = cell.arguments if isinstance(cell, LoweredStepsBackward) else cell.rounds
    of_output, *places = places_by_round(cell.recurrent_gates, [of_round.gates for of_round in cell.rounds])
    rounds: list[NativeRound] = []
    first = len(of_output)
    for number, of_round in enumerate(cell.rounds):
        of_units = NativeMeans.of(of_round.levels)
        gradients = None if arguments is cell.rounds else of_round.program
        rounds.append(
            NativeRound(number, of_round.gates, places[number], first, arguments[number].program, gradients, of_units)
        )
        first += len(of_round.gates)
    return tuple(rounds)
