"""Pairs of states as scans over dual numbers: the maps of a forward, and those of a backward.

A dual number v + e u, with e * e = 0, has a value v and a tangent u. A pair (h, d) with h[t] = a h[t-1] + b and
d[t] = a d[t-1] + a' h[t-1] + b' is one scan of them: h + e d is multiplied by a + e a', plus b + e b'. Gradients are a scan of
the same kind, whose values are the gradients of d, and whose tangents those of h.
"""

from __future__ import annotations

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.blocks import Block, dual_blocks
from minrnn_gen.cell.dual import LoweredDual, LoweredDualBackward
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.gradient import vector_jacobian_product
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.lowering import Output, reached_from
from minrnn_gen.cell.lowering_steps import LoweredStepsBackward, step_builder
from minrnn_gen.cell.program_names import INCOMING_Y, constant_inputs, previous_of, program_name, step_inputs
from minrnn_gen.cell.value_numbering import ProgramBuilder


def lower_dual(cell: Cell) -> LoweredDual | None:
    """Return the programs of a cell whose states are pairs; None of any other cell."""
    blocks = _blocks_of(cell)
    if not blocks:
        return None
    output = Output(cell)
    looking_back = reached_from(cell, set(previous_of(cell)))
    builder = ProgramBuilder(constant_inputs(cell))
    for symbol, expression in cell.definitions:
        if symbol not in looking_back:
            builder.define(symbol, expression, program_name(cell, symbol))
    results = _coefficients(blocks)
    for number, block in enumerate(blocks):
        results |= {f"b_{number}": block.b[0], f"db_{number}": block.b[1]}
    pairs = tuple((block.states[0], block.states[1]) for block in blocks)
    return LoweredDual(pairs, builder.program(results | output.carried), tuple(output.carried), output.program)


def lower_dual_backward(cell: Cell, steps: LoweredStepsBackward) -> LoweredDualBackward | None:
    """Return the backward programs of a cell whose states are pairs, from its `steps`; None of any other cell."""
    blocks = _blocks_of(cell)
    if not blocks:
        return None
    builder = step_builder(cell, step_inputs(cell) | {INCOMING_Y: "gradient_y"})
    previous = previous_of(cell)
    from_y = vector_jacobian_product(builder, [(cell.output, INCOMING_Y)], [*previous])
    results = _coefficients(blocks) | {f"f_{state}": from_y[ex.previous(state)] for state in cell.states}
    labels = [label for label, _ in steps.backward.results if not label.startswith("gradient_previous_")]
    pairs = tuple((block.states[0], block.states[1]) for block in blocks)
    return LoweredDualBackward(pairs, builder.program(results, needed_inputs_only=True), steps.backward.restricted(labels))


def _blocks_of(cell: Cell) -> tuple[Block, ...]:
    is_apart = not (cell.recurrent_gates or cell.norms or cell.vectors or cell.projection)
    return dual_blocks(cell) if is_apart else ()


def _coefficients(blocks: tuple[Block, ...]) -> dict[str, Expr]:
    results: dict[str, Expr] = {}
    for number, block in enumerate(blocks):
        results |= {f"a_{number}": block.a[0][0], f"da_{number}": block.a[1][0]}
    return results
