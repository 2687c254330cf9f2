"""One time step of a cell, and its vector-Jacobian product, as programs that take every input, needed or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.levels import Level
from minrnn_gen.cell.lowering_steps import lower_steps, lower_steps_backward
from minrnn_gen.cell.program import Array, Program
from minrnn_gen.cell.program_names import step_inputs
from minrnn_gen.cell.projection import NO_PROJECTION
from minrnn_gen.cpu.steps import with_means


@dataclass(frozen=True)
class StepProgram(Program):
    """A program whose means over units, if it takes any and they are not given, are those over all elements, as of one head."""

    levels: tuple[Level, ...] = ()

    def evaluate(self, values: Mapping[str, Array]) -> dict[str, Array]:
        means = {name for level in self.levels for name, _ in level.means}
        if means and not means & values.keys():
            values = with_means({name: np.atleast_1d(value) for name, value in values.items()}, self.levels, 1, NO_PROJECTION)
        return super().evaluate(values)


def _of_step(program: Program, levels: Sequence[Level], inputs: Sequence[str]) -> StepProgram:
    means = (name for level in levels for name, _ in level.means)
    return StepProgram((*inputs, *means), program.statements, program.results, tuple(levels))


def lower_step(cell: Cell) -> Program:
    """Return one time step of `cell`.

    Inputs are `W_<gate>`, `R_<gate>`, `previous_<state>` and `parameter_<name>`, in the cell's orders, then means over units;
    results are `state_<state>` for each state, and `y`.
    """
    lowered = lower_steps(cell)
    return _of_step(lowered.step, lowered.levels, tuple(step_inputs(cell).values()))


def lower_step_backward(cell: Cell) -> Program:
    """Return the vector-Jacobian product of one time step of `cell`.

    Inputs are those of `lower_step`, then `gradient_state_<state>`, the gradient of each next state, `gradient_y`, and
    `gradient_argument_<round>`, of what the products of each later round multiply, and means over units. Results
    are `gradient_<input>` for each input of `lower_step`: `gradient_W_<gate>`, `gradient_R_<gate>`, `gradient_previous_<state>`
    and `gradient_parameter_<name>`.
    """
    incoming = (*(f"gradient_state_{state}" for state in cell.states), "gradient_y")
    lowered = lower_steps_backward(cell)
    of_arguments = (f"gradient_argument_{number}" for number in range(len(lowered.rounds)))
    return _of_step(lowered.backward, lowered.levels, (*step_inputs(cell).values(), *incoming, *of_arguments))
