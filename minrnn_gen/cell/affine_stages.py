"""States in stages, each one affine map of its own previous values, by which pieces of time are composed.

A scan of maps takes one block at a time. Here neighbouring blocks that are affine together share a stage, since every stage
costs a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.blocks import STATES_MOST, Expanded, partition
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.files import NAME_LIMIT
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.polynomials import NotAffine, Polynomials


@dataclass(frozen=True)
class AffineStage:
    """States s with s[t] = A s[t-1] + b, where A and b read no previous value but those of earlier stages.

    `a`: the nonzero coefficients, by (row, column). `entries`: the pairs (row, column) that may be nonzero in a product of such
    maps, row by row: the diagonal, and every pair with a path from the column to the row. `is_constant`: A has only parameters
    and numbers, so that such products are its powers.
    """

    states: tuple[str, ...]
    a: Mapping[tuple[str, str], Expr]
    is_constant: bool

    @property
    def entries(self) -> tuple[tuple[str, str], ...]:
        """The names of row and column of each entry of a product."""
        reached = {state: {state} for state in self.states}
        for _ in self.states:
            for row, column in self.a:
                reached[row] |= reached[column]
        return tuple((row, column) for row in self.states for column in self.states if column in reached[row])


def affine_stages(cell: Cell) -> tuple[AffineStage, ...]:
    """Return the stages of a cell in their order: one of a scan, each state by itself; none where steps do not compose."""
    if cell.recurrent_gates or cell.norms:
        return ()
    recurrence = classify(cell)
    if recurrence.is_scan:
        return (AffineStage(cell.states, {(state, state): a for state, a in recurrence.a}, False),)
    stages: list[AffineStage] = []
    for block in partition(cell):
        joined = (*stages[-1].states, *block) if stages else block
        together = _stage(cell, joined, stages[:-1]) if stages and _fits(cell, joined) else None
        if together is not None:
            stages[-1] = together
            continue
        alone = _stage(cell, block, stages)
        if alone is None:
            return ()
        stages.append(alone)
    most = max(len(stage.entries) for stage in stages)
    return tuple(stages) if len(cell.states) + most <= NAME_LIMIT else ()


def _fits(cell: Cell, states: tuple[str, ...]) -> bool:
    """Whether states are few enough for one map, and either all or none of them have n values per channel."""
    return len(states) <= STATES_MOST and len({state in cell.vectors.states for state in states}) == 1


def _stage(cell: Cell, states: tuple[str, ...], earlier: list[AffineStage]) -> AffineStage | None:
    polynomials = Polynomials(cell, states, [state for stage in earlier for state in stage.states])
    try:
        rows = {row: polynomials.affine(row, states)[0] for row in states}
    except NotAffine:
        return None
    pairs = {(row, column): entry for row, line in rows.items() for column, entry in zip(states, line, strict=True)}
    a = {pair: entry for pair, entry in pairs.items() if not polynomials.is_zero(entry)}
    parameters = {ex.named(parameter) for parameter in cell.parameters}
    return AffineStage(states, a, {*Expanded(polynomials.lets).symbols(a.values())} <= parameters)
