"""Class of a cell's recurrence, with the proof: affine by state or by block, merely diagonal, or dense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minrnn_gen.cell.blocks import Block, affine_blocks, shown_blocks
from minrnn_gen.cell.expressions import Expr
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.polynomials import NotAffine, Polynomials
from minrnn_gen.cell.printing import shown_equation

Kind = Literal[
    "affine-diagonal",
    "block-affine",
    "diagonal",
    "dense",
]


@dataclass(frozen=True)
class Recurrence:
    """The class of a cell: design section 3.

    For "affine-diagonal", state[t] = a * state[t-1] + b for each (state, a) of `a` and (state, b) of `b`, in the order of the
    cell's states; a and b are over gates, parameters and lets that no previous state reaches. Otherwise both are empty.
    For "block-affine", `blocks` are its states in the order of their scans. `proof` says why, for people.
    """

    kind: Kind
    a: tuple[tuple[str, Expr], ...]
    b: tuple[tuple[str, Expr], ...]
    proof: str
    blocks: tuple[Block, ...] = ()

    @property
    def is_scan(self) -> bool:
        """Whether each step is an affine map of each state alone, so that steps are composed in any grouping."""
        return self.kind == "affine-diagonal"


def classify(cell: Cell) -> Recurrence:
    """Return the class of `cell`.

    The decomposition follows the author's form, so that (1 - z) * h[t-1] + z * W.h gives a = 1 - z and b = z * W.h as written;
    what must vanish is proved zero by expansion over the reals. A cell whose proof fails is "diagonal": never an error.
    """
    if cell.recurrent_gates or cell.norms:
        return Recurrence("dense", (), (), _why_dense(cell))
    polynomials = Polynomials(cell, cell.states)
    try:
        pairs = {state: (a, b) for state in cell.states for (a,), b in [polynomials.affine(state, (state,))]}
    except NotAffine:
        return _by_blocks(cell)
    equations = (
        f"{s}[t] = a * {s}[t-1] + b with a = {shown_equation(a)} and b = {shown_equation(b)}" for s, (a, b) in pairs.items()
    )
    return Recurrence(
        "affine-diagonal",
        tuple((state, a) for state, (a, _) in pairs.items()),
        tuple((state, b) for state, (_, b) in pairs.items()),
        f"affine: {'; '.join(equations)}, free of every previous state.",
    )


def _by_blocks(cell: Cell) -> Recurrence:
    try:
        blocks = affine_blocks(cell)
    except NotAffine as reason:
        return Recurrence("diagonal", (), (), f"not a scan: {reason}.")
    return Recurrence("block-affine", (), (), shown_blocks(blocks), blocks)


def _why_dense(cell: Cell) -> str:
    arguments = dict(cell.arguments)
    of_output = ", ".join(f"R.{gate}" for gate in cell.recurrent_gates if gate not in arguments)
    norms = "; ".join(map(shown_equation, cell.norms))
    of_norms = f" Values over units within a step: {norms}." if norms else ""
    if not cell.recurrent_gates:
        return f"dense: values over units mix the channels within a step: {norms}."
    if not arguments:
        return f"dense: it uses {of_output}, which mix the channels of the previous output.{of_norms}"
    rounds = [of_output] if of_output else []
    rounds += [
        ", ".join(f"R.{gate}({shown_equation(together.argument)})" for gate in together.gates) for together in cell.rounds
    ]
    plural = "round" if len(rounds) == 1 else "rounds"
    return f"dense, {len(rounds)} {plural} of products a step, one after the other: {'; then '.join(rounds)}.{of_norms}"
