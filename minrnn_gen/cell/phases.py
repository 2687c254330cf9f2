"""Blocks of coupled states in phases: each is composed over time at once, after the phases that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minrnn_gen.cell.blocks import BlockForm
from minrnn_gen.cell.lowering_steps import LoweredMap
from minrnn_gen.cell.preparation import CutProgram, cut
from minrnn_gen.cell.program import Program


@dataclass(frozen=True)
class Phase:
    """States whose values before any step are found at once: one block, or finite memory, which has no `program` of a map.

    `is_constant`: A of its map is the same for all steps of a channel.
    """

    states: tuple[str, ...]
    form: BlockForm
    program: Program | None
    is_constant: bool = False


def phases_of(maps: Sequence[LoweredMap]) -> tuple[Phase, ...]:
    """Return the phases of a forward's maps, whose blocks stand in the order in which they read each other.

    Finite memory that reads only other memory and earlier phases is one phase: after as many steps as it has states, their
    earlier values have no effect.
    """
    phases: list[Phase] = []
    phase_of: dict[str, int] = {}
    for block in maps:
        after = max((phase_of[state] for state in _read_by(block, phase_of)), default=-1)
        places = (place for place in range(max(after, 0), len(phases)) if phases[place].form == "memory")
        joined = next(places, None) if block.form == "memory" else None
        if joined is None:
            phase_of |= dict.fromkeys(block.states, len(phases))
            program = None if block.form == "memory" else block.programs[0]
            phases.append(Phase(block.states, block.form, program, block.is_constant))
        else:
            phase_of |= dict.fromkeys(block.states, joined)
            phases[joined] = Phase((*phases[joined].states, *block.states), "memory", None)
    return tuple(phases)


def in_channel_and_step(program: Program) -> CutProgram:
    """Return a program in two parts: the part of parameters alone, once per channel, and the rest, at every step."""
    return cut(program, [name for name in program.inputs if not name.startswith("parameter_")])


def map_labels(phase: Phase) -> tuple[str, ...]:
    """Return the results of a phase's program that its maps keep: b and the first column of A, or all of a full A."""
    rows = range(len(phase.states))
    columns = rows if phase.form == "full" else rows[:1]
    return (*(f"a_{row}_{column}" for row in rows for column in columns), *(f"b_{row}" for row in rows))


def _read_by(block: LoweredMap, states: Sequence[str] | dict[str, int]) -> list[str]:
    inputs = {name for program in block.programs for name in program.inputs}
    return [state for state in states if inputs & {f"state_{state}", f"previous_{state}"}]
