"""A rank's part in a call over ranks as autograd records it, launched as graphs where its arrays come again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from minrnn_gen.torch.operators.recorded import Tensors, gradients_once
from minrnn_gen.torch.sequence_group.cost import BYTES_CAPTURED_MOST
from minrnn_gen.torch.sequence_group.graphs import Graphs, may_capture
from minrnn_gen.torch.sequence_group.piece import Piece
from minrnn_gen.torch.sequence_group.pipeline import Pipeline


class InPieces(Protocol):
    """A way of passing states from piece to piece."""

    def forward(self, tensors: Tensors, into: Sequence[Any] | None = None, /) -> Tensors:
        """Return the results of a call, the backward's included, y and saved states in `into` where that is given."""

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors, dx: Any = None, /) -> Tensors:
        """Return the gradients of `tensors`, that of x in `dx` where that is given."""


class OnRank:
    """A piece and its way, for the calls of one form."""

    def __init__(self, piece: Piece, way: InPieces) -> None:
        self.piece, self.way = piece, way
        self.results_count, self.returned_count = piece.results_count, piece.returned_count
        self._forwards, self._backwards = Graphs(), Graphs()

    def read_again(self, tensors: Tensors) -> Tensors:
        return tensors

    def forward(self, tensors: Tensors) -> Tensors:
        call, _ = self.piece.apart(tensors)
        if not self._may_capture(call):
            return self.way.forward(tensors)
        into = self.piece.outputs_of(call)
        return self._forwards.run(lambda: self.way.forward(tensors, into), tensors[:-1], into)

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        return gradients_once(lambda: self._backward(tensors, results, gradients), (*tensors, *gradients))

    def _backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        call, _ = self.piece.apart(tensors)
        if not self._may_capture(call) or not self.piece.writes_gradient_in_place(call):
            return self.way.backward(tensors, results, gradients)
        dx, read = self.piece.gradient_like(call), (*tensors[:-1], *results, *gradients)
        return self._backwards.run(lambda: self.way.backward(tensors, results, gradients, dx), read, [dx])

    def _may_capture(self, call: Sequence[Any]) -> bool:
        piece, x = self.piece, call[0]
        return (
            piece.member.graphs
            and 0 < x.nbytes <= BYTES_CAPTURED_MOST
            and (piece.is_written_in_parts(call) if isinstance(self.way, Pipeline) else piece.runs_in_place(call))
            # Their values are looked at.
            and not piece.has_sequences(call)
            and may_capture(x.device)
        )
