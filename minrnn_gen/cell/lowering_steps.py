"""Cells run step after step: one time step of any cell as a program, and its vector-Jacobian product as another."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.axes import NO_VECTORS, Vectors
from minrnn_gen.cell.blocks import BlockForm
from minrnn_gen.cell.dual import LoweredDual, LoweredDualBackward
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.gradient import vector_jacobian_product
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.levels import Level, WholeProgram, inputs_of
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.program_names import (
    INCOMING_Y,
    incoming_gradient,
    program_name,
    shown_definitions,
    shown_states,
    step_inputs,
    wide_inputs,
)
from minrnn_gen.cell.projection import NO_PROJECTION, Projection
from minrnn_gen.cell.rounds import Round
from minrnn_gen.cell.value_numbering import ProgramBuilder


@dataclass(frozen=True)
class ProductRound:
    """Products after the product of the previous output: R.g of one argument for each of `gates`.

    In a forward `program` computes the `argument` from the inputs of a step and the products of earlier rounds. In a backward
    it computes `gradient_R_<gate>` of these gates from the inputs of a step's backward and the `gradient_argument_<round>` of
    later rounds. `levels` compute the means over units that `program` takes. `of_projected`: the argument has P units.
    """

    gates: tuple[str, ...]
    program: Program
    levels: tuple[Level, ...] = ()
    of_projected: bool = False


@dataclass(frozen=True)
class LoweredMap:
    """One block's affine map, as programs per element.

    `programs` give `a_<row>_<column>` for each pair of indices into `states`, and `b_<row>`. In a forward they take the inputs
    of a step, and `state_<state>` and `previous_<state>` of earlier blocks. In a backward a map goes from the gradients after a
    step to the gradients before it, and `programs` take the inputs of a step's backward, and `gradient_state_<state>` of later
    blocks. `is_constant`: A is the same for all steps of a channel.
    """

    states: tuple[str, ...]
    form: BlockForm
    programs: tuple[Program, ...]
    is_constant: bool = False


@dataclass(frozen=True)
class LoweredSteps:
    """A cell that runs step after step, as one program per element: possible for any cell, needed by all but scans.

    `step` takes what it needs of `W_<gate>`, `X_<name>`, `S_<name>`, `R_<gate>`, `previous_<state>` and `parameter_<name>`, and
    gives `state_<state>` of every state, and `y`. `output_state` is the state that equals the output, if any; a dense cell has
    one. `logarithms` are the states whose logarithms are carried, too. `rounds`: products of values other than the previous
    output, in the order in which a step computes them. `levels` compute the means over units that `step` takes. With any,
    `whole` is all of a step; it also gives `argument_<round>`, counted from 1 on. `maps` are the maps of coupled states, block
    by block, and `dual` those of states as dual numbers. Means over a head are over one of its `norm_parts` equal parts.
    """

    name: str
    gates: tuple[str, ...]
    recurrent_gates: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    step: Program
    output_state: str | None
    equations: str
    vectors: Vectors = NO_VECTORS
    logarithms: tuple[str, ...] = ()
    rounds: tuple[ProductRound, ...] = ()
    levels: tuple[Level, ...] = ()
    projection: Projection = NO_PROJECTION
    inputs: tuple[str, ...] = ()
    whole: WholeProgram | None = None
    maps: tuple[LoweredMap, ...] = ()
    norm_parts: int = 1
    dual: LoweredDual | None = None

    @property
    def carried(self) -> tuple[str, ...]:
        """Empty: a single program carries nothing to another."""
        return ()

    @property
    def operation_count(self) -> int:
        """Operations per element and step."""
        return self.step.operation_count

    @property
    def transcendental_count(self) -> int:
        """Results of the special-function unit per element and step: exponentials, logarithms, reciprocals."""
        return self.step.transcendental_count


@dataclass(frozen=True)
class LoweredStepsBackward:
    """The vector-Jacobian product of one step of a `LoweredSteps`, as one program per element.

    `backward` takes what it needs of the inputs of `step`, of `gradient_state_<state>` (of each next state) and `gradient_y`,
    and gives `gradient_W_<gate>`, `gradient_S_<name>`, `gradient_R_<gate>`, `gradient_previous_<state>` and
    `gradient_parameter_<name>`. It recomputes the step from the gates, the products and the states before the step, whose
    values are saved. `rounds` have the order of the forward, but the gradients of the last round come first: `backward` takes
    `gradient_argument_<round>` of all. `arguments` gives each round's argument, as in the forward. `levels` compute the means
    over units that `backward` and all `arguments` take, means of gradients included. With any, `whole` is `backward` with the
    values of means of gradients; it takes the means of the forward, which `known` computes. `dual`: the same as a scan.
    """

    name: str
    gates: tuple[str, ...]
    recurrent_gates: tuple[str, ...]
    states: tuple[str, ...]
    parameters: tuple[str, ...]
    backward: Program
    output_state: str | None
    equations: str
    vectors: Vectors = NO_VECTORS
    rounds: tuple[ProductRound, ...] = ()
    arguments: tuple[ProductRound, ...] = ()
    levels: tuple[Level, ...] = ()
    projection: Projection = NO_PROJECTION
    inputs: tuple[str, ...] = ()
    whole: WholeProgram | None = None
    known: tuple[Level, ...] = ()
    norm_parts: int = 1
    dual: LoweredDualBackward | None = None

    @property
    def known_means(self) -> tuple[str, ...]:
        """The names of the forward's means, in the order of their levels."""
        return tuple(name for level in self.known for name, _ in level.means)

    @cached_property
    def _read(self) -> frozenset[str]:
        return frozenset(inputs_of(self.backward, self.levels))

    @property
    def read_gates(self) -> tuple[str, ...]:
        """The gates whose values the backward reads."""
        return tuple(gate for gate in self.gates if f"W_{gate}" in self._read)

    @property
    def read_inputs(self) -> tuple[str, ...]:
        """The inputs X.* whose values the backward reads."""
        return tuple(name for name in self.inputs if f"X_{name}" in self._read)

    @property
    def read_products(self) -> tuple[str, ...]:
        """The recurrent gates whose products the backward reads."""
        return tuple(gate for gate in self.recurrent_gates if f"R_{gate}" in self._read)

    @property
    def products_are_added(self) -> bool:
        """Whether each gate has a product with R added: a backward reads their sum alone, and both have the same gradient."""
        if self.recurrent_gates != self.gates or self.rounds or self.levels:
            return False
        results = dict(self.backward.results)
        are_same = all(results[f"gradient_R_{gate}"] == results[f"gradient_W_{gate}"] for gate in self.gates)
        return are_same and self.backward.reads_sums_alone((f"W_{gate}", f"R_{gate}") for gate in self.gates)

    @property
    def read_states(self) -> tuple[str, ...]:
        """The states whose values before a step the backward reads, including those that the arguments of products need."""
        of_arguments = (name for argument in self.arguments for name in inputs_of(argument.program, argument.levels))
        read = self._read.union(of_arguments)
        return tuple(state for state in self.states if f"previous_{state}" in read)

    @property
    def gradient_paths(self) -> tuple[int, int]:
        """Which gradients of states after a step those before it depend on, and after any number of steps, as bits.

        Bit s * m + k of m states: that of state s before depends on that of state k after.
        """
        states, programs = self.states, (self.backward.restricted([f"gradient_previous_{state}"]) for state in self.states)
        of_step = [[f"gradient_state_{state}" in program.inputs for state in states] for program in programs]
        of_any = [[direct or s == k for k, direct in enumerate(row)] for s, row in enumerate(of_step)]
        for via in range(len(states)):
            of_any = [[there or (row[via] and of_any[via][k]) for k, there in enumerate(row)] for row in of_any]
        numbers = (sum(bit << n for n, bit in enumerate(bit for row in rows for bit in row)) for rows in (of_step, of_any))
        return next(numbers), next(numbers)

    @property
    def previous_states(self) -> tuple[str, ...]:
        """The states whose values before a step the backward reads."""
        return self.read_states

    @property
    def current_states(self) -> tuple[str, ...]:
        """The states whose values after a step the backward reads: none, they are computed again."""
        return ()

    @property
    def needs_saved_states(self) -> tuple[str, ...]:
        """The states that a forward has to save for the backward, because y is not one of them."""
        return tuple(state for state in self.read_states if state != self.output_state)

    @property
    def saved_values(self) -> tuple[str, ...]:
        """Values of the forward that the backward reads, in words; includes the output where the recurrent product needs it."""
        output = (self.output_state,) if self.recurrent_gates and self.output_state else ()
        return shown_states(tuple(dict.fromkeys((*output, *self.read_states))), self.output_state)

    @property
    def recomputed_values(self) -> tuple[str, ...]:
        """Values of the forward that the backward recomputes, in words."""
        return (*(f"product {gate}" for gate in self.read_products), *shown_definitions(self.backward))

    @property
    def operation_count(self) -> int:
        """Operations per element and step."""
        return self.backward.operation_count

    @property
    def transcendental_count(self) -> int:
        """Results of the special-function unit per element and step: exponentials, logarithms, reciprocals."""
        return self.backward.transcendental_count


def lower_steps(cell: Cell, more: Mapping[str, Expr] | None = None) -> LoweredSteps:
    """Return the program of one step of `cell`, of any class, which also gives `more` by label."""
    builder = step_builder(cell, step_inputs(cell))
    results: dict[str, Expr] = {f"state_{state}": ex.current(state) for state in cell.states}
    rounds = [_argument(builder, cell, products) for products in cell.rounds]
    results |= {"y": cell.output, **(more or {})}
    return LoweredSteps(
        name=cell.name,
        gates=cell.gates,
        recurrent_gates=cell.recurrent_gates,
        states=cell.states,
        parameters=cell.parameters,
        step=builder.program(results, needed_inputs_only=True),
        output_state=output_state(cell, builder),
        equations=cell.equations,
        vectors=cell.vectors,
        rounds=tuple(rounds),
        levels=builder.levels(results),
        projection=cell.projection,
        inputs=cell.inputs,
        whole=builder.whole(results | _arguments(cell)) if cell.norms else None,
        norm_parts=cell.norm_parts,
    )


def lower_steps_backward(
    cell: Cell, more: Mapping[str, Expr] | None = None, *, gives_states: bool = False, shows_means: bool = False
) -> LoweredStepsBackward:
    """Return the backward program of one step of `cell`, of any class, which also gives `more` by label.

    It may give `state_<state>` of every state, too; with `shows_means` its programs are for people alone.
    """
    inputs, incoming = step_inputs(cell), {incoming_gradient(state): f"gradient_state_{state}" for state in cell.states}
    together = cell.rounds
    incoming |= {_incoming_argument(number): f"gradient_argument_{number}" for number in range(len(together))}
    seeds = [*((ex.current(state), incoming_gradient(state)) for state in cell.states), (cell.output, INCOMING_Y)]

    def pulled_back(symbols: Collection[Symbol]) -> tuple[ProgramBuilder, dict[str, Expr]]:
        # A builder of its own: values of two rounds on the way to the same input are two, and have the same name.
        builder = step_builder(cell, inputs | incoming | {INCOMING_Y: "gradient_y"}, shows_means=shows_means)
        gradients = vector_jacobian_product(builder, seeds, list(symbols))
        return builder, {f"gradient_{inputs[symbol]}": gradient for symbol, gradient in gradients.items()}

    rounds: list[ProductRound] = []
    for number, products in reversed([*enumerate(together)]):
        builder, of_gates = pulled_back([ex.product(gate) for gate in products.gates])
        rounds.insert(0, _round(builder, cell, products, of_gates))
        seeds.append((products.argument, _incoming_argument(number)))
    builder, results = pulled_back(inputs)
    gradients = {**results}
    if gives_states:
        results |= {f"state_{state}": ex.current(state) for state in cell.states}
    results |= more or {}
    return LoweredStepsBackward(
        name=cell.name,
        gates=cell.gates,
        recurrent_gates=cell.recurrent_gates,
        states=cell.states,
        parameters=cell.parameters,
        backward=builder.program(results, needed_inputs_only=True),
        output_state=output_state(cell, builder),
        equations=cell.equations,
        vectors=cell.vectors,
        rounds=tuple(rounds),
        arguments=tuple(_argument(builder, cell, products) for products in together),
        levels=builder.levels(results | {f"argument of {number}": of.argument for number, of in enumerate(together)}),
        projection=cell.projection,
        inputs=cell.inputs,
        norm_parts=cell.norm_parts,
        **_whole(builder, gradients, (*incoming.values(), "gradient_y")) if cell.norms else {},
    )


class _Whole(TypedDict, total=False):
    whole: WholeProgram
    known: tuple[Level, ...]


def _whole(builder: ProgramBuilder, gradients: Mapping[str, Expr], late: Collection[str]) -> _Whole:
    known = builder.means_without(late)
    levels = (level.restricted(known) for level in builder.levels(gradients))
    return {"whole": builder.whole(gradients, known), "known": tuple(level for level in levels if level.means)}


def _arguments(cell: Cell) -> dict[str, Expr]:
    return {f"argument_{number}": of_round.argument for number, of_round in enumerate(cell.rounds, start=1)}


def _argument(builder: ProgramBuilder, cell: Cell, products: Round) -> ProductRound:
    return _round(builder, cell, products, {"argument": products.argument})


def _round(builder: ProgramBuilder, cell: Cell, products: Round, results: Mapping[str, Expr]) -> ProductRound:
    program = builder.program(results, needed_inputs_only=True)
    return ProductRound(products.gates, program, builder.levels(results), products.gates[0] in cell.projection.of)


def _incoming_argument(number: int) -> Symbol:
    return ex.named(f"gradient of argument {number}")


def step_builder(cell: Cell, inputs: Mapping[Symbol, str], *, shows_means: bool = False) -> ProgramBuilder:
    """Return a builder in which all of the cell is defined."""
    builder = ProgramBuilder(inputs, wide_inputs(cell), shows_means=shows_means)
    for symbol, expression in cell.definitions:
        builder.define(symbol, expression, program_name(cell, symbol))
    return builder


def output_state(cell: Cell, builder: ProgramBuilder) -> str | None:
    """Return the state that equals the output, if any."""
    output = builder.value(cell.output)
    return next((state for state in cell.states if output == builder.value(ex.current(state))), None)
