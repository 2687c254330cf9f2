"""A backward of one direction: before it begins, and under way, whole or in pieces of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from minrnn_gen.call.address import Address
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.pieces import Piece, narrowed_in_time, piece_of_call, piece_of_incoming
from minrnn_gen.run.dense.joined import JoinedProducts
from minrnn_gen.run.dense.launch import BackwardArrays


@dataclass(frozen=True, slots=True)
class Backward:
    """A backward of one direction under way: its call, y, the initial output, its arrays, and R with its heads in front."""

    part: Call
    y: Array
    first: Array | None
    arrays: BackwardArrays
    packed: Address

    def piece(
        self, interface: Interface, piece: Piece, dfinal: Sequence[Array | None], dinitial: tuple[Array, ...]
    ) -> Backward:
        """Return a piece of this backward, which reads the gradients of its final states and writes its initial states'."""
        part, arrays = self.part, self.arrays
        apart, steps = arrays.apart, part.rows * piece.steps
        assert apart is not None, "pieces have their products apart"
        row = piece.start * apart.row_strides[1]
        y_axes = Y_AXES[interface.layout]
        of_piece = replace(
            arrays,
            read_states=tuple(narrowed_in_time(states, y_axes, piece) for states in arrays.read_states),
            incoming=piece_of_incoming(interface, arrays.incoming, piece, dfinal),
            apart=apart.narrowed(row, steps),
            means=arrays.means.narrowed(0, row, steps) if arrays.means else None,
            gradients=replace(
                arrays.gradients,
                dx=narrowed_in_time(arrays.gradients.dx, part.x_axes, piece),
                dinitial=dinitial,
                dinputs=tuple(narrowed_in_time(gradient, y_axes, piece) for gradient in arrays.gradients.dinputs),
            ),
            earlier=piece.has_earlier,
            later=piece.has_later,
        )
        initial = (None,) * len(part.initial) if piece.has_earlier else part.initial
        return replace(self, part=piece_of_call(interface, part, piece, initial), arrays=of_piece)


class RunBack(NamedTuple):
    """A backward of one direction before it begins: its call, the initial output, and the arrays that it reads and writes.

    `joined`: its products where they share an operand.
    """

    part: Call
    first: Array | None
    outputs: Outputs
    incoming: IncomingGradient
    gradients: Gradients
    dR: Array
    joined: JoinedProducts | None
