"""One time step of a cell, and its vector-Jacobian product, as programs that take every input, needed or not."""

from __future__ import annotations

from dataclasses import replace

from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.lowering_steps import lower_steps, lower_steps_backward
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.program_names import step_inputs


def lower_step(cell: Cell) -> Program:
    """Return one time step of `cell`.

    Inputs are `W_<gate>`, `R_<gate>`, `previous_<state>` and `parameter_<name>`, in the cell's orders; results are
    `state_<state>` for each state, and `y`.
    """
    return replace(lower_steps(cell).step, inputs=tuple(step_inputs(cell).values()))


def lower_step_backward(cell: Cell) -> Program:
    """Return the vector-Jacobian product of one time step of `cell`.

    Inputs are those of `lower_step`, then `gradient_state_<state>`, the gradient of each next state, `gradient_y`, and
    `gradient_argument_<round>`, of what the products of each later round multiply. Results
    are `gradient_<input>` for each input of `lower_step`: `gradient_W_<gate>`, `gradient_R_<gate>`, `gradient_previous_<state>`
    and `gradient_parameter_<name>`.
    """
    incoming = (*(f"gradient_state_{state}" for state in cell.states), "gradient_y")
    lowered = lower_steps_backward(cell)
    of_arguments = (f"gradient_argument_{number}" for number in range(len(lowered.rounds)))
    return replace(lowered.backward, inputs=(*step_inputs(cell).values(), *incoming, *of_arguments))
