"""Pieces of a scan cell from zero, their end states gathered, and run again with the state that enters.

Correction: the head alone runs again, in the backward the tail, as far as what enters counts. Where that is so of every piece
between two others, what enters a piece is the end state of the one before. Where it is not, and in a summary, end states are
folded in the order of ranks by the products of the pieces' coefficients, and all of each piece runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from minrnn_gen.layers.kernels import kernel_by, recipe_with_products
from minrnn_gen.torch.recorded import Tensors, gradients_once
from minrnn_gen.torch.sequence_group.cell_correction import Head, Tail
from minrnn_gen.torch.sequence_group.exchange import all_gather_in_order, sum_all, sum_in_order
from minrnn_gen.torch.sequence_group.fold import correct_pieces, fold
from minrnn_gen.torch.sequence_group.piece import Piece


class Gathered:
    """A piece whose state comes from those before it; `corrects` only as far as it counts, and else all of it.

    Results: y, the final states of whole sequences, for all states those after every step; then what only the backward needs:
    what the kernel saves, the states that enter the piece, and the products of all pieces, where they were taken.
    """

    def __init__(self, piece: Piece, corrects: bool) -> None:
        self.piece, self.corrects = piece, corrects
        self.results_count, self.returned_count = piece.results_count, piece.returned_count

    def read_again(self, tensors: Tensors) -> Tensors:
        return tensors

    def forward(self, tensors: Tensors) -> Tensors:
        piece, position = self.piece, self.piece.position
        call, initial = piece.apart(tensors)
        like, entering = piece.states_like(call), piece.entering(initial)
        # Zeros, and not none: the backward, whose states are those that enter, is then one that is replayed.
        results = piece.forward(call, torch.zeros_like(like) if position else entering)
        ends = self._gathered(self._final(results))
        final = [state.clone() for state in ends[-1]]
        enough, products = [False] * len(ends), None
        if position:
            entering = ends[position - 1]
        if self._corrects_part(call):
            head = Head(piece, call, results, entering) if position else None
            enough = correct_pieces(head, self._time(call), piece.member, piece.reverse, like)
        if not all(enough[1:-1]):
            products = self._products(call, like)
            entering = fold([*zip(products, ends, strict=True)][:position]) if position else entering
            enough = [False] * len(ends)
        if position and not enough[position]:
            results = piece.forward(call, entering)
        y, saved = results[0], results[1 + piece.states :]
        if not enough[-1]:
            final = piece.final_of_all(self._final(results), like)
        returned = [y, *final, *(saved[: piece.states] if piece.all_states else ())]
        if not piece.saves:
            return returned
        saved = saved[piece.states :] if piece.all_states else saved
        return [*returned, *saved, entering, None if products is None else torch.stack(products)]

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        return gradients_once(lambda: self._backward(tensors, results, gradients), (*tensors, *gradients))

    def _backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> list[Any]:
        piece, position = self.piece, self.piece.position
        call, initial = piece.apart(tensors)
        *outputs, entering, products = results
        like = piece.states_like(call)
        dy, zeros = piece.gradient_of_y(outputs[0], gradients), torch.zeros_like(like)
        run = partial(piece.backward, call, entering, outputs, dy)
        corrects = self._corrects_part(call) and Tail.has_states(piece, outputs)
        if corrects:
            # Before all else: the host prepares the rest while the kernel runs.
            local = run(zeros)
            own_dfinal = piece.gradient_of_final(like, gradients)
            of_pieces = self._gathered(torch.stack((self._dinitial(call, local, zeros), own_dfinal)))
            dfinal = sum_all([own for _, own in of_pieces])
            arriving = [*(dinitial for dinitial, _ in of_pieces[1:]), dfinal]
            tail = Tail(piece, call, (outputs, dy), local, arriving[position])
            enough = correct_pieces(tail, self._time(call), piece.member, piece.reverse, like)
        else:
            dfinal = sum_in_order(piece.gradient_of_final(like, gradients), piece.member)
            enough = [False] * piece.member.size
        if not enough[-1]:
            if piece.is_end or not corrects:
                local = run(dfinal if piece.is_end else zeros)
            arriving = [*self._gathered(self._dinitial(call, local, zeros))[1:], dfinal]
        dstate = arriving[position]
        if not all(enough[1:]):
            products = self._products(call, like) if products is None else products
            behind = range(position + 1, piece.member.size)
            dstate = fold([(products[place], arriving[place - 1]) for place in reversed(behind)]) if behind else dstate
            enough = [False] * (len(enough) - 1) + [True]
        if not enough[position]:
            local = run(dstate)
        return [*local[: len(call)], *piece.initial_gradients(initial, local[len(call) :]), None]

    @staticmethod
    def _dinitial(call: Sequence[Any], gradients: Sequence[Any], zeros: Any) -> Any:
        """Return the gradients of the states that enter the piece; zeros where none enter the first one."""
        return zeros if gradients[-1] is None else torch.stack(tuple(gradients[len(call) :]))

    def _corrects_part(self, call: Sequence[Any]) -> bool:
        # Where sequences begin or end within the piece, what enters it may count anywhere.
        return self.corrects and not self.piece.has_sequences(call)

    def _time(self, call: Sequence[Any]) -> int:
        return int(call[0].shape[self.piece.time_axis])

    def _gathered(self, own: Any) -> list[Any]:
        """Return what all ranks have, in the order of the recurrence."""
        return all_gather_in_order(own, self.piece.member, self.piece.reverse)

    def _final(self, results: Sequence[Any]) -> Any:
        return torch.stack(tuple(results[1 : 1 + self.piece.states]))

    def _products(self, call: Sequence[Any], like: Any) -> list[Any]:
        """Return the products of the coefficients of all pieces; those of the first and of the last are in no fold."""
        piece, states = self.piece, self.piece.states
        own = torch.zeros_like(like)
        if piece.member.size == 2:
            return [own, own]
        if piece.position and not piece.is_end:
            of_products = replace(piece, kernel=kernel_by(recipe_with_products(piece.kernel)), all_states=False, saves=False)
            results = of_products.forward(call, torch.cat((own, torch.ones_like(like))))
            own = torch.stack(tuple(results[1 + states : 1 + 2 * states]))
        return self._gathered(own)
