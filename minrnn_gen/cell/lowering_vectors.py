"""Cells with the axis n for kernels that hold n values of a channel: a step, and its vector-Jacobian product, in stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from minrnn_gen.cell.analysis import Recurrence
from minrnn_gen.cell.axes import Vectors
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.lowering_steps import lower_steps, lower_steps_backward
from minrnn_gen.cell.program_names import shown_definitions, wide_inputs
from minrnn_gen.cell.stage_products import exponent_of, with_shared_products
from minrnn_gen.cell.stages import (
    FinishedProgram,
    PreparedProgram,
    StagedProgram,
    SummedProgram,
    finished,
    operation_counts,
    prepared,
    restricted,
    staged,
    statements_of,
    summed,
)


class _EveryStep:
    """Counts of the operations that either pass runs at every step."""

    @property
    def programs(self) -> tuple[StagedProgram, ...]:
        """Programs that a kernel runs at every step."""
        raise NotImplementedError

    @property
    def operation_count(self) -> int:
        """Operations per channel and step; an operation on n values counts once."""
        return _counts(self.programs, 0)

    @property
    def transcendental_count(self) -> int:
        """Results of the special-function unit per channel and step; a function of n values counts once."""
        return _counts(self.programs, 1)


@dataclass(frozen=True)
class LoweredVectors(_EveryStep):
    """A cell with the axis n, of any class, as one step in stages.

    `step` takes what it needs of `W_<gate>`, `S_<name>`, `previous_<state>` and `parameter_<name>`, and gives `y` and
    `state_<state>` of every state. For a scan it also gives `coefficient_<state>`, by which a step multiplies the previous
    state.
    """

    name: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    step: StagedProgram
    equations: str
    vectors: Vectors

    @cached_property
    def prepared(self) -> PreparedProgram:
        """The step, split from the part that depends on no state."""
        return prepared(self.step)

    @cached_property
    def finished(self) -> FinishedProgram:
        """The step after its prepared part, split from the rest of y that reads sums over n."""
        steps = restricted(self.prepared.steps, {"y", *(f"state_{name}" for name in self.states)})
        return finished(replace(self.prepared, steps=steps), "y")

    @cached_property
    def exponents(self) -> Mapping[str, tuple[str, str]]:
        """For a scan whose coefficients are all powers of 2, the factors of their exponents, {state: (constant, other)}."""
        steps = self.prepared.steps
        factors = {name: exponent_of(steps, f"coefficient_{name}") for name in self.states} if self.divides_time else {}
        return {name: pair for name, pair in factors.items() if pair is not None} if all(factors.values()) else {}

    @cached_property
    def ends(self) -> StagedProgram:
        """Program of a scan step after the prepared part: new states and their coefficients, or the coefficients' exponents."""
        steps = self.prepared.steps
        exponents = tuple((f"exponent_{name}", other) for name, (_, other) in self.exponents.items())
        kinds = ("state",) if exponents else ("state", "coefficient")
        labels = {f"{kind}_{name}" for kind in kinds for name in self.states}
        return restricted(replace(steps, results=(*steps.results, *exponents)), {*labels, *(label for label, _ in exponents)})

    @property
    def divides_time(self) -> bool:
        """Whether a state is affine in an earlier one, as in a scan."""
        return all(f"coefficient_{name}" in dict(self.step.results) for name in self.states)

    @property
    def programs(self) -> tuple[StagedProgram, ...]:
        """Programs that a kernel runs at every step."""
        return (restricted(self.step, {"y", *(f"state_{name}" for name in self.states)}),)


@dataclass(frozen=True)
class LoweredVectorsBackward(_EveryStep):
    """The vector-Jacobian product of one step of a `LoweredVectors` in stages.

    `whole` recomputes `state_<state>`, the states after a step. From `gradient_state_<state>` (of each next state) and
    `gradient_y` it computes the gradients `gradient_W_<gate>`, `gradient_S_<name>`, `gradient_previous_<state>` and
    `gradient_parameter_<name>`. Its parts are `advance` for the states and `backward` for the gradients, with the same
    constants. `backward` reads the prepared values of `advance`, and the states after the step. For a scan `whole` also gives
    `coefficient_<state>`, as the step of the forward does.
    """

    name: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    whole: StagedProgram
    equations: str
    vectors: Vectors
    recomputed_values: tuple[str, ...]
    saved_values: tuple[str, ...] = ()

    @cached_property
    def prepared(self) -> PreparedProgram:
        """The states after a step, with the coefficients of a scan, split from the part that depends on no state."""
        return prepared(restricted(self.whole, {f"{kind}_{name}" for kind in ("state", "coefficient") for name in self.states}))

    @cached_property
    def advance(self) -> StagedProgram:
        """The program of the states after a step, from prepared values."""
        return restricted(self.prepared.steps, {f"state_{name}" for name in self.states})

    @cached_property
    def arrivals(self) -> StagedProgram:
        """The gradients of the states before a step."""
        return restricted(self.whole, {f"gradient_previous_{name}" for name in self.states}, self.prepared.values)

    @property
    def divides_time(self) -> bool:
        """Whether the gradient of a state is affine in that of a later one, whatever the states between them are."""
        labels = dict(self.whole.results)
        is_scan = all(f"coefficient_{name}" in labels for name in self.states)
        return is_scan and not any(name.startswith("previous_") for name in self.arrivals.inputs)

    @property
    def computed_states(self) -> Mapping[str, str]:
        """The names {state: name} of the states after a step that the step computes."""
        computed = {statement.name for stage in self.whole.steps for statement in statements_of(stage)}
        names = {state: dict(self.whole.results)[f"state_{state}"] for state in self.states}
        return {state: name for state, name in names.items() if name in computed}

    @cached_property
    def backward(self) -> StagedProgram:
        """The gradients of a step, with the states after it as inputs, since the walk to the end of a tile computes them."""
        labels = {label for label, _ in self.whole.results if label.startswith("gradient_")}
        return restricted(self.summed.steps, labels, (*self.prepared.values, *self.computed_states.values()))

    @cached_property
    def summed(self) -> SummedProgram:
        """The steps of `whole`, and the program that turns sums over steps into gradients of parameters."""
        return summed(self.whole, {f"gradient_parameter_{name}": name in self.vectors.parameters for name in self.parameters})

    @property
    def programs(self) -> tuple[StagedProgram, ...]:
        """Programs that a kernel runs at every step: towards the ends of tiles, within a tile, and back."""
        advance = restricted(self.whole, {f"state_{name}" for name in self.states})
        return (advance, advance, self.backward)


def wide_counts(lowered: LoweredVectors | LoweredVectorsBackward) -> tuple[int, int]:
    """Return operations and results of the special-function unit of a step for each of n values."""
    counts = [operation_counts(program)["wide"] for program in lowered.programs]
    return sum(operations for operations, _ in counts), sum(special for _, special in counts)


def lower_vectors(cell: Cell, recurrence: Recurrence) -> LoweredVectors:
    """Return one step of `cell`, which has the axis n, in stages."""
    step = lower_steps(cell, _coefficients(recurrence)).step
    return LoweredVectors(
        name=cell.name,
        gates=cell.gates,
        states=cell.states,
        parameters=cell.parameters,
        step=staged(step, wide_inputs(cell)),
        equations=cell.equations,
        vectors=cell.vectors,
    )


def lower_vectors_backward(cell: Cell, recurrence: Recurrence) -> LoweredVectorsBackward:
    """Return the vector-Jacobian product of one step of `cell`, which has the axis n, in stages."""
    backward = lower_steps_backward(cell, _coefficients(recurrence), gives_states=True).backward
    return LoweredVectorsBackward(
        name=cell.name,
        gates=cell.gates,
        states=cell.states,
        parameters=cell.parameters,
        whole=with_shared_products(staged(backward, wide_inputs(cell))),
        equations=cell.equations,
        vectors=cell.vectors,
        recomputed_values=shown_definitions(backward),
    )


def _coefficients(recurrence: Recurrence) -> dict[str, Expr]:
    return {f"coefficient_{state}": a for state, a in recurrence.a}


def _counts(programs: tuple[StagedProgram, ...], place: int) -> int:
    return sum(counts[place] for program in programs for counts in operation_counts(program).values())
