"""Blocks of coupled states to programs: the maps of a forward, and those of a backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.blocks import STATES_MOST, Block, partition
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.gradient import vector_jacobian_product
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.lowering_steps import (
    LoweredMap,
    LoweredSteps,
    LoweredStepsBackward,
    lower_steps,
    lower_steps_backward,
)
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.program_names import (
    INCOMING_Y,
    constant_inputs,
    current_of,
    incoming_gradient,
    previous_of,
    program_name,
    step_inputs,
)
from minrnn_gen.cell.value_numbering import ProgramBuilder


@dataclass(frozen=True)
class LoweredBlocks:
    """A cell as the maps of its blocks, in order, and as `steps`, which contain these maps."""

    steps: LoweredSteps

    @property
    def maps(self) -> tuple[LoweredMap, ...]:
        """The maps, earlier blocks first."""
        return self.steps.maps


@dataclass(frozen=True)
class LoweredBlocksBackward:
    """The gradients of a cell's states as maps of its blocks, the last block first, and the backward of its `steps`."""

    maps: tuple[LoweredMap, ...]
    steps: LoweredStepsBackward


def lower_blocks(cell: Cell, blocks: tuple[Block, ...]) -> LoweredBlocks:
    """Return the programs of a cell whose `blocks` are proved affine."""
    maps = tuple(_map_of(cell, block, blocks[:place]) for place, block in enumerate(blocks))
    return LoweredBlocks(replace(lower_steps(cell), maps=maps))


def _map_of(cell: Cell, block: Block, earlier: tuple[Block, ...]) -> LoweredMap:
    known = {state for other in earlier for state in other.states}
    of_states = {symbol: name for named in (previous_of(cell), current_of(cell)) for symbol, name in named.items()}
    values = {symbol for state in known for symbol in (ex.previous(state), ex.current(state))}
    inputs = constant_inputs(cell) | {symbol: name for symbol, name in of_states.items() if symbol in values}
    builder, defined = ProgramBuilder(inputs), set(inputs)
    for symbol, expression in cell.definitions:
        if symbol not in defined and defined.issuperset(ex.symbols_of(expression)):
            builder.define(symbol, expression, program_name(cell, symbol))
            defined.add(symbol)
    results: dict[str, Expr] = {f"b_{row}": value for row, value in enumerate(block.b)}
    results |= {f"a_{row}_{column}": entry for row, line in enumerate(block.a) for column, entry in enumerate(line)}
    return LoweredMap(block.states, block.form, (builder.program(results, needed_inputs_only=True),), block.is_constant)


def lower_blocks_backward(cell: Cell) -> LoweredBlocksBackward | None:
    """Return the backward by blocks of a cell without products, of any class; None where a block is too large.

    The gradient of the states before a step is affine in that of the states after it, by the Jacobian of the step.
    """
    blocks = partition(cell)
    if max(map(len, blocks)) > STATES_MOST:
        return None
    maps = tuple(_adjoint_of(cell, block, blocks[place + 1 :]) for place, block in enumerate(blocks))
    return LoweredBlocksBackward(maps[::-1], lower_steps_backward(cell))


def _adjoint_of(cell: Cell, states: tuple[str, ...], later: tuple[tuple[str, ...], ...]) -> LoweredMap:
    incoming = {incoming_gradient(state): f"gradient_state_{state}" for state in cell.states}
    inputs = step_inputs(cell) | incoming | {INCOMING_Y: "gradient_y"}
    previous = [ex.previous(state) for state in states]

    def passed(seeds: Sequence[tuple[Expr, Expr]], label: str) -> Program:
        # A builder of its own: values of two seeds on the way to the same input are two, and have the same name.
        builder = ProgramBuilder(inputs)
        for symbol, expression in cell.definitions:
            builder.define(symbol, expression, program_name(cell, symbol))
        gradients = vector_jacobian_product(builder, seeds, previous)
        results = {label.format(row): gradients[symbol] for row, symbol in enumerate(previous)}
        return builder.program(results, needed_inputs_only=True)

    others = [(ex.current(state), incoming_gradient(state)) for block in later for state in block]
    columns = (passed([(ex.current(state), ex.ONE)], f"a_{{}}_{column}") for column, state in enumerate(states))
    programs = (passed([*others, (cell.output, INCOMING_Y)], "b_{}"), *columns)
    return LoweredMap(states, "scalar" if len(states) == 1 else "full", programs)
