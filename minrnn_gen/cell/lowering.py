"""Scans to straight-line programs: the two halves of a forward, and the backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.analysis import Recurrence
from minrnn_gen.cell.axes import NO_VECTORS, Vectors
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.functions import Comparison
from minrnn_gen.cell.gradient import vector_jacobian_product
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward, output_state
from minrnn_gen.cell.printing import shown_equation
from minrnn_gen.cell.program import Program, Statement
from minrnn_gen.cell.program_names import (
    INCOMING_Y,
    constant_inputs,
    current_of,
    gates_of,
    incoming_gradient,
    inputs_of,
    parameters_of,
    previous_of,
    program_name,
    shared_of,
    shown_definitions,
    shown_states,
    wide_inputs,
)
from minrnn_gen.cell.value_numbering import ProgramBuilder
from minrnn_gen.errors import BadInput

__all__ = [
    "Lowered",
    "LoweredBackward",
    "LoweredScan",
    "LoweredScanBackward",
    "Program",
    "Statement",
    "lower_scan",
    "lower_scan_backward",
]


ScanArithmetic = Literal["linear", "log"]

# Costs of a state in log space (templates/parts/affine.cuh.j2): two logarithms, one sum of logarithms in the composition, and
# in the walk another between a logarithm and an exponential, with a sum, a difference, two choices and two comparisons each.
LOG_TRANSCENDENTALS = 8
LOG_OPERATIONS = LOG_TRANSCENDENTALS + 14


@dataclass(frozen=True)
class LoweredScan:
    """A cell whose states obey state[t] = a * state[t-1] + b, as programs per element.

    `coefficients` takes `W_<gate>`, `X_<name>`, `S_<name>` and `parameter_<name>`, and gives `a_<state>`, `b_<state>` and each
    of `carried`. `output` takes every `state_<state>`, `previous_<state>` where the output looks back, `carried`, and the
    parameters, and gives `y`.
    `carried` are the values of a time step, free of states, that the output needs and the scan does not. `scan_arithmetic` is
    how steps are composed: as they are, or as logarithms, which needs a and b that are never negative (`log_space`).
    """

    name: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    coefficients: Program
    carried: tuple[str, ...]
    output: Program
    equations: str
    scan_arithmetic: ScanArithmetic = "linear"
    vectors: Vectors = NO_VECTORS
    inputs: tuple[str, ...] = ()

    @property
    def operation_count(self) -> int:
        """Operations per element and step, without the scan's own multiply-add, but with the operations that logarithms add."""
        logarithms = LOG_OPERATIONS * len(self.states) if self.scan_arithmetic == "log" else 0
        return self.coefficients.operation_count + self.output.operation_count + logarithms

    @property
    def transcendental_count(self) -> int:
        """Results of the special-function unit per element and step: exponentials, logarithms, reciprocals."""
        logarithms = LOG_TRANSCENDENTALS * len(self.states) if self.scan_arithmetic == "log" else 0
        return self.coefficients.transcendental_count + self.output.transcendental_count + logarithms


@dataclass(frozen=True)
class LoweredScanBackward:
    """The gradient of a `LoweredScan`, as programs per element, around one recurrence from the last step to the first.

    With delta_s[t] the total gradient of s[t], and `e_s` and `f_s` the gradients that y[t] passes to s[t] and to s[t-1],

        delta_s[t] = e_s[t] + f_s[t+1] + a_s[t+1] * delta_s[t+1].

    After the last step the gradient of the final state takes the place of f + a * delta; before the first, f + a * delta is the
    gradient of the initial state.

    `adjoint` gives `a_<state>` and `e_<state>` for every state, and `f_<state>` for the states of `looks_back`. `gradients`
    also takes `delta_<state>`, and gives `gradient_W_<gate>`, `gradient_S_<name>` and `gradient_parameter_<name>`, each of this
    element and step alone. Their inputs are those that they need among `W_<gate>`, `S_<name>`, `parameter_<name>`,
    `state_<state>` (s[t]), `previous_<state>` (s[t-1]), `gradient_y` and `delta_<state>`. A state that depends on no previous
    state is recomputed, and is no input.

    `output_state` is the state that equals the output, if any: y then stands for it.
    """

    name: str
    gates: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    adjoint: Program
    gradients: Program
    looks_back: tuple[str, ...]
    output_state: str | None
    equations: str
    vectors: Vectors = NO_VECTORS
    inputs: tuple[str, ...] = ()

    @property
    def read_states(self) -> tuple[str, ...]:
        """The states whose values the backward reads."""
        return tuple(state for state in self.states if state in (*self.previous_states, *self.current_states))

    @property
    def read_gates(self) -> tuple[str, ...]:
        """The gates whose values the backward reads."""
        return tuple(gate for gate in self.gates if f"W_{gate}" in self._inputs)

    @property
    def read_inputs(self) -> tuple[str, ...]:
        """The inputs X.* whose values the backward reads."""
        return tuple(name for name in self.inputs if f"X_{name}" in self._inputs)

    @property
    def previous_states(self) -> tuple[str, ...]:
        """The states whose values before a step the backward reads."""
        return tuple(state for state in self.states if f"previous_{state}" in self._inputs)

    @property
    def current_states(self) -> tuple[str, ...]:
        """The states whose values after a step the backward reads."""
        return tuple(state for state in self.states if f"state_{state}" in self._inputs)

    @property
    def needs_saved_states(self) -> tuple[str, ...]:
        """The states that a forward has to save for the backward, because y is not one of them."""
        return tuple(state for state in self.read_states if state != self.output_state)

    @property
    def saved_values(self) -> tuple[str, ...]:
        """Values of the forward that the backward reads, in words."""
        return shown_states(self.read_states, self.output_state)

    @property
    def recomputed_values(self) -> tuple[str, ...]:
        """Values of the forward that the backward recomputes, in words."""
        return tuple(dict.fromkeys((*shown_definitions(self.adjoint), *shown_definitions(self.gradients))))

    @property
    def _inputs(self) -> set[str]:
        return {*self.adjoint.inputs, *self.gradients.inputs}

    @property
    def operation_count(self) -> int:
        """Operations per element and step, the recurrence's own not counted."""
        return self.adjoint.operation_count + self.gradients.operation_count

    @property
    def transcendental_count(self) -> int:
        """Results of the special-function unit per element and step: exponentials, logarithms, reciprocals."""
        return self.adjoint.transcendental_count + self.gradients.transcendental_count


Lowered = LoweredScan | LoweredSteps
LoweredBackward = LoweredScanBackward | LoweredStepsBackward


def lower_scan(cell: Cell, recurrence: Recurrence, scan_arithmetic: ScanArithmetic = "linear") -> LoweredScan:
    """Return the programs of a cell that `recurrence` proves affine.

    Raises `BadInput` for any other cell, and for the arithmetic "log" if a or b of a state may be negative.
    """
    _check_scan(cell, recurrence)
    output = Output(cell)
    looking_back = reached_from(cell, set(previous_of(cell)))
    coefficients = ProgramBuilder(constant_inputs(cell), wide_inputs(cell))
    for symbol, expression in cell.definitions:
        if symbol not in looking_back:
            coefficients.define(symbol, expression, program_name(cell, symbol))
    results: dict[str, Expr] = {}
    for (state, a), (_, b) in zip(recurrence.a, recurrence.b, strict=True):
        results |= {f"a_{state}": a, f"b_{state}": b}
        if scan_arithmetic == "log":
            _check_signs(cell, state, coefficients, {"a": a, "b": b})
    return LoweredScan(
        name=cell.name,
        gates=cell.gates,
        states=cell.states,
        parameters=cell.parameters,
        coefficients=coefficients.program(results | output.carried),
        carried=tuple(output.carried),
        output=output.program,
        equations=cell.equations,
        scan_arithmetic=scan_arithmetic,
        vectors=cell.vectors,
        inputs=cell.inputs,
    )


def lower_scan_backward(cell: Cell, recurrence: Recurrence) -> LoweredScanBackward:
    """Return the backward programs of a cell that `recurrence` proves affine. Raises `BadInput` for any other cell."""
    _check_scan(cell, recurrence)
    coefficients = [(state, a, b) for (state, a), (_, b) in zip(recurrence.a, recurrence.b, strict=True)]

    adjoint = _backward_builder(cell)
    current, previous = _looking_back(cell), previous_of(cell)
    from_y: dict[Symbol, Expr] = dict.fromkeys(current_of(cell), ex.ZERO)
    from_y |= vector_jacobian_product(adjoint, [(cell.output, INCOMING_Y)], [*current, *previous])
    looks_back = tuple(state for state in cell.states if from_y[ex.previous(state)] != ex.ZERO)
    results: dict[str, Expr] = {}
    for state, a, _ in coefficients:
        results |= {f"a_{state}": a, f"e_{state}": from_y[ex.current(state)]}
    results |= {f"f_{state}": from_y[ex.previous(state)] for state in looks_back}

    builder = _backward_builder(cell)
    incoming: list[tuple[Expr, Expr]] = [(cell.output, INCOMING_Y)]
    for state, a, b in coefficients:
        incoming += [(a, ex.multiply(incoming_gradient(state), ex.previous(state))), (b, incoming_gradient(state))]
    inputs = constant_inputs(cell)
    gradients = vector_jacobian_product(builder, incoming, list(inputs))
    labelled = {f"gradient_{inputs[symbol]}": gradient for symbol, gradient in gradients.items()}

    return LoweredScanBackward(
        name=cell.name,
        gates=cell.gates,
        states=cell.states,
        parameters=cell.parameters,
        adjoint=adjoint.program(results, needed_inputs_only=True),
        gradients=builder.program(labelled, needed_inputs_only=True),
        looks_back=looks_back,
        output_state=output_state(cell, builder),
        equations=cell.equations,
        vectors=cell.vectors,
        inputs=cell.inputs,
    )


def _backward_builder(cell: Cell) -> ProgramBuilder:
    """Return a builder in which the states that look back are inputs, and all else is defined."""
    current = _looking_back(cell)
    incoming = {incoming_gradient(state): f"delta_{state}" for state in cell.states} | {INCOMING_Y: "gradient_y"}
    builder = ProgramBuilder(constant_inputs(cell) | current | previous_of(cell) | incoming, wide_inputs(cell))
    for symbol, expression in cell.definitions:
        if symbol not in current:
            builder.define(symbol, expression, program_name(cell, symbol))
    return builder


def _looking_back(cell: Cell) -> dict[Symbol, str]:
    """Return the current values of the states that depend on a previous one."""
    reached = reached_from(cell, set(previous_of(cell)))
    return {symbol: name for symbol, name in current_of(cell).items() if symbol in reached}


class Output:
    """The output of a cell as a program over its states, with the values that it needs from the gates.

    `carried` maps each carried name to its value.
    """

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._lets = {ex.named(name): expression for name, expression in cell.lets}
        self._stateful = reached_from(cell, {*current_of(cell), *previous_of(cell)})
        self._gated = reached_from(cell, {*gates_of(cell), *inputs_of(cell), *shared_of(cell)}) - self._stateful
        self.carried: dict[str, Expr] = {}
        self._carried_symbols: dict[Expr, Symbol] = {}
        needed = self._needed_lets()
        lets = {symbol: self._with_carried(self._lets[symbol]) for symbol in needed}
        output = self._with_carried(cell.output)
        self.program = self._built(lets, output)

    def _needed_lets(self) -> list[Symbol]:
        """Return, in order, the lets that the output program computes itself."""
        needed: set[Symbol] = set()
        waiting = [self._cell.output]
        while waiting:
            for symbol in ex.symbols_of(waiting.pop()):
                if symbol in self._lets and symbol not in needed and symbol not in self._gated:
                    needed.add(symbol)
                    waiting.append(self._lets[symbol])
        return [symbol for symbol in self._lets if symbol in needed]

    def _with_carried(self, expression: Expr) -> Expr:
        """Return `expression` with a carried symbol for each largest part that depends on gates but not on states."""
        used = set(ex.symbols_of(expression))
        if not used & self._gated:
            return expression
        if used & self._stateful or isinstance(expression, Comparison):  # a condition is no number that could be carried
            return ex.rebuilt(expression, [self._with_carried(operand) for operand in ex.operation(expression)[1]])
        if expression not in self._carried_symbols:
            if isinstance(expression, Symbol):
                name, symbol = program_name(self._cell, expression), expression
            else:
                name = f"carried_{len(self.carried)}"
                # With a space, which no name of the language has: a cell may have a value called carried_0.
                symbol = ex.named(f"carried {name}")
            self.carried[name], self._carried_symbols[expression] = expression, symbol
        return self._carried_symbols[expression]

    def _built(self, lets: Mapping[Symbol, Expr], output: Expr) -> Program:
        used = {symbol for expression in (*lets.values(), output) for symbol in ex.symbols_of(expression)}
        previous = {symbol: name for symbol, name in previous_of(self._cell).items() if symbol in used}
        carried = dict(zip(self._carried_symbols.values(), self.carried, strict=True))
        builder = ProgramBuilder(current_of(self._cell) | previous | carried | parameters_of(self._cell))
        for symbol, expression in lets.items():
            builder.define(symbol, expression, program_name(self._cell, symbol))
        return builder.program({"y": output})


def reached_from(cell: Cell, sources: set[Symbol]) -> set[Symbol]:
    """Return `sources` and all that is defined from them."""
    reached = set(sources)
    for symbol, expression in cell.definitions:
        if not reached.isdisjoint(ex.symbols_of(expression)):
            reached.add(symbol)
    return reached


def _check_scan(cell: Cell, recurrence: Recurrence) -> None:
    if not recurrence.is_scan:
        raise BadInput(f"the cell {cell.name} has no scan: {recurrence.proof}")


def _check_signs(cell: Cell, state: str, builder: ProgramBuilder, coefficients: Mapping[str, Expr]) -> None:
    for name, value in coefficients.items():
        if builder.range_of(builder.value(value)).least < 0:
            raise BadInput(
                f"'log' needs {state}[t] = a * {state}[t-1] + b with a and b that are never negative, which is not proved of "
                f"{name} = {shown_equation(value)} in the cell {cell.name}; use the model min_gru_log or min_lstm_log, "
                "or 'linear'"
            )
