"""Rounds of products in C: what the templates of kernels for the CPU read of each."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.rounds import places_by_round


@dataclass(frozen=True)
class NativeRound:
    """Products of one argument: the round `number` of a step, after the products of the previous output.

    `places` are those of its gates in R, and `first` is how many products a step has before it. `gradients`, the program of
    the gradients of its products, is None in a forward.
    """

    number: int
    gates: tuple[str, ...]
    places: tuple[int, ...]
    first: int
    argument: Program
    gradients: Program | None


def native_rounds(cell: LoweredSteps | LoweredStepsBackward) -> tuple[NativeRound, ...]:
    """Return the rounds of a cell in the order of a step."""
    programs = tuple(of_round.program for of_round in cell.rounds)
    arguments = cell.arguments if isinstance(cell, LoweredStepsBackward) else programs
    of_output, *places = places_by_round(cell.recurrent_gates, [of_round.gates for of_round in cell.rounds])
    rounds: list[NativeRound] = []
    first = len(of_output)
    for number, of_round in enumerate(cell.rounds):
        gradients = None if arguments is programs else of_round.program
        rounds.append(NativeRound(number, of_round.gates, places[number], first, arguments[number], gradients))
        first += len(of_round.gates)
    return tuple(rounds)
