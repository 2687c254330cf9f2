"""The symbols of a cell, each with its name in a program."""

from __future__ import annotations

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Symbol
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.program import Program

INCOMING_Y = ex.named("gradient of the output")  # spaces: no name of the language


def incoming_gradient(state: str) -> Symbol:
    """The gradient of state[t]."""
    return ex.named(f"gradient of {state}[t]")


def step_inputs(cell: Cell) -> dict[Symbol, str]:
    """Inputs of a step, by symbol."""
    products = {ex.product(gate): f"R_{gate}" for gate in cell.recurrent_gates}
    return gates_of(cell) | inputs_of(cell) | shared_of(cell) | products | previous_of(cell) | parameters_of(cell)


def constant_inputs(cell: Cell) -> dict[Symbol, str]:
    """Inputs of a step that are known before the states are: the gates, the inputs X.* and S.*, and the parameters."""
    return gates_of(cell) | inputs_of(cell) | shared_of(cell) | parameters_of(cell)


def wide_inputs(cell: Cell) -> frozenset[str]:
    """The names of the inputs that have the axis n, whichever programs take them."""
    vectors = cell.vectors
    prefixes = ("previous", "state", "delta", "gradient_state")
    of_states = {f"{prefix}_{state}" for state in vectors.states for prefix in prefixes}
    return frozenset(
        of_states | {f"parameter_{name}" for name in vectors.parameters} | {f"S_{name}" for name in vectors.shared}
    )


def shared_of(cell: Cell) -> dict[Symbol, str]:
    """S.b of every input that all channels of a group share."""
    return {ex.shared(name): f"S_{name}" for name in cell.vectors.shared}


def gates_of(cell: Cell) -> dict[Symbol, str]:
    """W.g of every gate."""
    return {ex.gate(gate): f"W_{gate}" for gate in cell.gates}


def inputs_of(cell: Cell) -> dict[Symbol, str]:
    """X.m of every input of each channel that is not projected."""
    return {ex.channel_input(name): f"X_{name}" for name in cell.inputs}


def previous_of(cell: Cell) -> dict[Symbol, str]:
    """s[t-1] of every state."""
    return {ex.previous(state): f"previous_{state}" for state in cell.states}


def current_of(cell: Cell) -> dict[Symbol, str]:
    """s[t] of every state."""
    return {ex.current(state): f"state_{state}" for state in cell.states}


def parameters_of(cell: Cell) -> dict[Symbol, str]:
    """Every parameter."""
    return {ex.named(parameter): f"parameter_{parameter}" for parameter in cell.parameters}


def program_name(cell: Cell, symbol: Symbol) -> str:
    """Return the name in a program: no two symbols share one, because each kind has its own prefix."""
    return (gates_of(cell) | inputs_of(cell) | shared_of(cell) | current_of(cell)).get(symbol) or f"let_{symbol.name}"


def shown_definitions(program: Program) -> tuple[str, ...]:
    """The definitions of a cell that `program` computes, as shown to people: lets by their names, "state c" for c[t]."""
    names = (statement.name for statement in program.statements)
    shown = {"let_": "", "state_": "state "}
    return tuple(
        word + name.removeprefix(prefix) for name in names for prefix, word in shown.items() if name.startswith(prefix)
    )


def shown_states(states: tuple[str, ...], output_state: str | None) -> tuple[str, ...]:
    """States that a backward reads, as shown to people: "y" for the one that y is, "state c" for others."""
    return tuple("y" if state == output_state else f"state {state}" for state in states)
