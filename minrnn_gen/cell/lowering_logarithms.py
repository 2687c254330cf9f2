"""One step of a scan with logarithms, as one program, for cells whose states never become negative."""

from __future__ import annotations

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.analysis import Recurrence
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.functions import Equal, Exp, Log, LogOfSum, Maximum, Where
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.lowering_steps import LoweredSteps, output_state
from minrnn_gen.cell.program_names import program_name, step_inputs
from minrnn_gen.cell.value_numbering import ProgramBuilder


def lower_steps_in_logarithms(cell: Cell, recurrence: Recurrence) -> LoweredSteps:
    """Return the program of one step of a cell that `recurrence` proves affine, with a and b that are never negative.

    In addition to the states it gives `log_state_<state>` of each of `logarithms`, and takes `log_previous_<state>`: a state
    whose logarithm stays the same stays the same, bit by bit. Values of a and b below 0 by rounding alone count as 0.
    """
    coefficients = {state: (a, b) for (state, a), (_, b) in zip(recurrence.a, recurrence.b, strict=True) if a != 0}
    current = {ex.current(state): state for state in coefficients}
    before = {state: ex.named(f"log of {state}[t-1]") for state in coefficients}  # spaces: no name of the language
    builder = ProgramBuilder(step_inputs(cell) | {before[state]: f"log_previous_{state}" for state in coefficients})
    after: dict[str, Expr] = {}
    for symbol, expression in cell.definitions:
        state = current.get(symbol)
        if state is None:
            builder.define(symbol, expression, program_name(cell, symbol))
            continue
        a, b = (Log(Maximum(value, ex.ZERO)) for value in coefficients[state])
        after[state] = builder.value(LogOfSum(ex.add(a, before[state]), b), f"log_state_{state}")
        value = Where(Equal(after[state], before[state]), ex.previous(state), Exp(after[state]))
        builder.define(symbol, value, program_name(cell, symbol))
    results: dict[str, Expr] = {f"state_{state}": ex.current(state) for state in cell.states}
    results |= {f"log_state_{state}": value for state, value in after.items()}
    return LoweredSteps(
        name=cell.name,
        gates=cell.gates,
        recurrent_gates=(),
        states=cell.states,
        parameters=cell.parameters,
        step=builder.program({**results, "y": cell.output}, needed_inputs_only=True),
        output_state=output_state(cell, builder),
        equations=cell.equations,
        logarithms=tuple(after),
        inputs=cell.inputs,
    )
