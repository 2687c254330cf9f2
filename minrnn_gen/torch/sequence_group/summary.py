"""Pieces of a scan that run as a whole once the states that enter them are known.

Before that, only what others need is computed: of a piece between two others its map and its end state, in one pass; nothing of
the last piece, and in the backward nothing of the first. One gather has the maps and the end states. So a piece takes two
passes at most, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minrnn_gen.torch.operators.recorded import Tensors
from minrnn_gen.torch.sequence_group.exchange import all_gather, in_order, sum_in_order
from minrnn_gen.torch.sequence_group.maps import StageMaps
from minrnn_gen.torch.sequence_group.piece import Piece


class Summary:
    """A piece whose state comes from the pieces before, in one stage.

    Results: y, the final states of whole sequences, for all states those after every step; then the arrays that only the
    backward needs: the kernel's saved ones, the states that enter the piece, and what all ranks gathered where they are more
    than two.
    """

    def __init__(self, piece: Piece, stage: StageMaps) -> None:
        self.piece, self.stage, self._is_between = piece, stage, piece.position > 0 and not piece.is_end

    @classmethod
    def of(cls, piece: Piece) -> Summary | None:
        """Return the summary of a piece; None where maps are powers, or need several stages."""
        first, *later = StageMaps.of(piece.kernel)
        has_maps = piece.member.size > 2
        return None if has_maps and (later or not first.is_of_one_pass) else cls(piece, first)

    def forward(self, tensors: Tensors, into: Sequence[Any] | None = None) -> Tensors:
        piece, position, has_maps = self.piece, self.piece.position, self.piece.member.size > 2
        call, initial = piece.apart(tensors)
        entering = piece.entering(initial)
        results: list[Any] = []
        if self._is_between:
            mapped = self.stage.of_piece(piece)
            own = mapped.all_states_of(mapped.forward(call, self.stage.entering(piece.states_like(call, zeros=True))))
        elif position:
            own = (self.stage.of_piece(piece) if has_maps else piece).states_like(call)
        else:
            results = piece.forward(call, entering, None, into)
            own = piece.all_states_of(results)
            own = self.stage.with_map(own) if has_maps else own
        of_ranks = all_gather(own, piece.member)
        if position:
            before = in_order(of_ranks, piece.reverse)[:position]
            entering = self.stage.folded([*map(self.stage.apart, before)]) if has_maps else before[0]
            results = piece.forward(call, entering, None, into)
        y, saved = results[0], results[1 + piece.states :]
        steps, saved = (saved[: piece.states], saved[piece.states :]) if piece.all_states else ([], saved)
        returned = [y, *piece.final_of_all(piece.all_states_of(results)), *steps]
        return [*returned, *saved, entering, of_ranks if has_maps else None] if piece.saves else returned

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors, dx: Any = None) -> list[Any]:
        piece, position, last = self.piece, self.piece.position, self.piece.member.size - 1
        call, initial = piece.apart(tensors)
        *outputs, entering, maps = results
        zeros = piece.states_like(call, zeros=True)
        dy = piece.gradient_of_y(outputs[0], gradients)
        dstate = sum_in_order(piece.gradient_of_final(zeros, gradients), piece.member)
        local: Sequence[Any] = []
        if position or piece.is_end:
            local = piece.backward(call, entering, outputs, dy, dstate if piece.is_end else zeros, dx)
        own = piece.together(local[len(call) :]) if position else zeros
        arriving = [*in_order(all_gather(own, piece.member), piece.reverse)[1:], dstate]
        if not piece.is_end:
            if maps is not None:
                of_pieces = in_order(maps, piece.reverse)
                behind = range(last, position, -1)
                pairs = [(self.stage.apart(of_pieces[place])[0], arriving[place - 1]) for place in behind]
                dstate = self.stage.folded(pairs, adjoint=True)
            else:
                dstate = arriving[position]
            local = piece.backward(call, entering, outputs, dy, dstate, dx)
        of_initial = piece.initial_gradients(initial, local[len(call) :])
        return [*piece.in_order(local[: len(call)], of_initial), None]
