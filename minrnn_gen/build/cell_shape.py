"""The shape of a cell in one pass: the facts about its program that planning needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypedDict

from minrnn_gen.plan.kernel_plan import StatesOut
from minrnn_gen.plan.problem import CellShape, PhaseShape
from minrnn_gen.precision import Precision

if TYPE_CHECKING:  # imported only where the cache has no answer
    from minrnn_gen.cell.analysis import Recurrence
    from minrnn_gen.cell.language import Cell
    from minrnn_gen.cell.levels import Level
    from minrnn_gen.cell.lowering import Lowered, LoweredBackward
    from minrnn_gen.cell.lowering_vectors import LoweredVectors, LoweredVectorsBackward
    from minrnn_gen.cell.phases import Phase


def words_of_states(states_out: StatesOut, precision: Precision) -> int:
    """Return the size, in values of the storage dtype, of a state that is written after every step."""
    words = {"none": 0, "storage": 1, "arithmetic": precision.arithmetic_bytes // precision.storage_bytes}
    return words[states_out]


def forward_shape(cell: Cell, recurrence: Recurrence, lowered: Lowered, words_of_state: int) -> CellShape:
    """Return the shape of a cell in a forward or a step: it reads the gates, and writes y and perhaps the states."""
    from minrnn_gen.cell.lowering_steps import LoweredSteps

    return CellShape(
        name=lowered.name,
        kind=recurrence.kind,
        gates=lowered.gates,
        recurrent_gates=cell.recurrent_gates,
        states=lowered.states,
        parameters=lowered.parameters,
        carried_count=len(lowered.carried),
        read_count=len(lowered.gates) + len(cell.inputs),
        written_count=1 + words_of_state * len(lowered.states),
        operation_count=lowered.operation_count,
        transcendental_count=lowered.transcendental_count,
        proof=recurrence.proof,
        rounds=tuple(products.gates for products in cell.rounds),
        means=_means_of(lowered) if cell.norms else (0, 0, 0),
        means_over_all=any(norm.over == "all" for norm in cell.norms),
        inputs=cell.inputs,
        block_diagonal=cell.block_diagonal,
        norm_parts=cell.norm_parts,
        is_dual=isinstance(lowered, LoweredSteps) and lowered.dual is not None,
        **_coupled(lowered),
        **_in_parts(lowered),
    )


class _Coupled(TypedDict, total=False):
    phases: tuple[PhaseShape, ...]
    varying_counts: tuple[int, int]
    keeps_constants: bool


def _coupled(lowered: Lowered) -> _Coupled:
    from minrnn_gen.cell.lowering_steps import LoweredSteps

    if not isinstance(lowered, LoweredSteps) or not lowered.maps:
        return {}
    from minrnn_gen.cell.phases import in_channel_and_step, map_labels, phases_of

    def operations(phase: Phase) -> int:
        return in_channel_and_step(phase.program.restricted(map_labels(phase))).rest.operation_count if phase.program else 0

    parts = in_channel_and_step(lowered.step)
    step, phases = parts.rest, phases_of(lowered.maps)
    branching = ("fn_sin(", "fn_cos(")
    return _Coupled(
        phases=tuple(PhaseShape(phase.form, len(phase.states), operations(phase), phase.is_constant) for phase in phases),
        varying_counts=(step.operation_count, step.transcendental_count),
        keeps_constants=not any(name in statement.cuda for statement in parts.preparation.statements for name in branching),
    )


class _InParts(TypedDict, total=False):
    waits: tuple[tuple[int, int], ...]
    held_count: int
    prepared_count: int
    mean_rows: int
    waits_within_parts: int


def _in_parts(lowered: Lowered | LoweredBackward) -> _InParts:
    from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward

    if not isinstance(lowered, LoweredSteps | LoweredStepsBackward) or lowered.whole is None:
        return {}
    from minrnn_gen.cell.levels import rows_of_means
    from minrnn_gen.cell.waits import step_in_parts

    mean_rows = rows_of_means(len(lowered.known_means)) if isinstance(lowered, LoweredStepsBackward) else 0
    step = step_in_parts(lowered)
    waits = tuple((len(wait.statistics), len(wait.needs)) for wait in step.waits if wait.statistics)
    within = sum(wait.over == "head" for wait in step.waits) if lowered.norm_parts > 1 else 0
    return _InParts(
        waits=waits,
        held_count=len(step.held),
        prepared_count=len(step.prepared),
        mean_rows=mean_rows,
        waits_within_parts=within,
    )


def _means_of(lowered: Lowered | LoweredBackward) -> tuple[int, int, int]:
    from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward

    assert isinstance(lowered, LoweredSteps | LoweredStepsBackward)
    rounds = (*lowered.rounds, *(lowered.arguments if isinstance(lowered, LoweredStepsBackward) else ()))
    levels_of_programs: list[Sequence[Level]] = [lowered.levels, *(of_round.levels for of_round in rounds)]
    counts = [[len(level.means) for level in levels] for levels in levels_of_programs]
    return sum(map(len, counts)), max(map(sum, counts)), max(count for levels in counts for count in levels)


def backward_shape(cell: Cell, recurrence: Recurrence, lowered: Lowered, backward: LoweredBackward) -> CellShape:
    """Return the shape of a cell in its backward: it reads gates, dy and states, and writes the gradients of all gates."""
    states_read = len(backward.previous_states) + len(backward.current_states)
    return replace(
        forward_shape(cell, recurrence, lowered, words_of_state=0),
        read_count=len(backward.read_gates) + len(backward.read_inputs) + 1 + states_read,
        written_count=len(lowered.gates) + len(cell.inputs),
        operation_count=backward.operation_count,
        transcendental_count=backward.transcendental_count,
        saved_values=backward.saved_values,
        recomputed_values=backward.recomputed_values,
        means=_means_of(backward) if cell.norms else (0, 0, 0),
        phases=(),
        varying_counts=(0, 0),
        keeps_constants=False,
        **_in_parts(backward),
    )


def vectors_shape(
    cell: Cell, recurrence: Recurrence, lowered: LoweredVectors | LoweredVectorsBackward, words_of_state: int, n: int
) -> CellShape:
    """Return the shape of a cell with n values per channel; values that channels share do not count as moved."""
    from minrnn_gen.cell.lowering_vectors import LoweredVectorsBackward, wide_counts

    is_backward = isinstance(lowered, LoweredVectorsBackward)
    states = sum(n if name in cell.vectors.states else 1 for name in lowered.states)
    operations, special = wide_counts(lowered)
    return CellShape(
        name=lowered.name,
        kind=recurrence.kind,
        gates=lowered.gates,
        recurrent_gates=(),
        states=lowered.states,
        parameters=lowered.parameters,
        carried_count=0,
        read_count=2 * len(lowered.gates) + 1 if is_backward else len(lowered.gates),
        written_count=len(lowered.gates) if is_backward else 1 + words_of_state * states,
        operation_count=lowered.operation_count,
        transcendental_count=lowered.transcendental_count,
        recomputed_values=lowered.recomputed_values if isinstance(lowered, LoweredVectorsBackward) else (),
        proof=recurrence.proof,
        vector_states=cell.vectors.states,
        vector_parameters=cell.vectors.parameters,
        shared=cell.vectors.shared,
        wide_operation_count=operations,
        wide_transcendental_count=special,
        sum_count=sum(len(stage.sums) for program in lowered.programs for stage in program.steps),
        prepared_count=len(lowered.prepared.values),
        divides_time=lowered.divides_time,
    )
