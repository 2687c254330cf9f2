"""Pieces of a scan cell from zero, their end states gathered, and run again with the state that enters.

Correction: the head alone runs again, in the backward the tail, as far as what enters counts. Where that is so of every piece
between two others, what enters a piece is the end state of the one before. Where it is not, and in a summary, end states are
folded in the order of ranks by the products of the pieces' coefficients, and all of each piece runs again. Whether it does is
for the GPU to say: all is enqueued, and what does not count ends at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from minrnn_gen.layers.kernels import kernel_by, recipe_with_products
from minrnn_gen.torch.operators.recorded import Tensors, gradients_once
from minrnn_gen.torch.sequence_group.cell_correction import correct_head, correct_tail, has_states
from minrnn_gen.torch.sequence_group.exchange import all_gather_in_order, sum_in_order
from minrnn_gen.torch.sequence_group.fold import first_steps, fold
from minrnn_gen.torch.sequence_group.piece import Piece


class Gathered:
    """A piece whose state comes from those before it; `corrects` only as far as it counts, and else all of it.

    Results: y, the final states of whole sequences, for all states those after every step; then what only the backward needs:
    what the kernel saves, the states that enter the piece, and the products of all pieces, where they are more than two.
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
        final, into = piece.all_states_of(results), piece.of_steps(results[0], results[1 + piece.states :])
        ends, steps = self._gathered(final), self._steps_corrected(call)
        counts: Any = None
        if position:
            entering = ends[position - 1]
            counts = correct_head(piece, call, into, entering, steps) if steps else None
        products = self._products(call, like, counts, into[0])
        if position and products:
            entering = fold([*zip(products, ends, strict=True)][:position])
            counts = _or_any(counts, products[1:position])
        if counts is not None:
            # Where it does not run, the end state is what it was.
            final = torch.where(counts, piece.forward_again(call, entering, into, counts), final)
        elif position:
            results = piece.forward(call, entering)
            final = piece.all_states_of(results)
        y, saved = results[0], results[1 + piece.states :]
        returned = [y, *piece.final_of_all(final, like), *(saved[: piece.states] if piece.all_states else ())]
        if not piece.saves:
            return returned
        saved = saved[piece.states :] if piece.all_states else saved
        return [*returned, *saved, entering, torch.stack(products) if products else None]

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        return gradients_once(lambda: self._backward(tensors, results, gradients), (*tensors, *gradients))

    def _backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> list[Any]:
        piece, position, last = self.piece, self.piece.position, self.piece.member.size - 1
        call, initial = piece.apart(tensors)
        *outputs, entering, saved_products = results
        like = piece.states_like(call)
        dy = piece.gradient_of_y(outputs[0], gradients).contiguous()
        dfinal = sum_in_order(piece.gradient_of_final(like, gradients), piece.member)
        zeros = torch.zeros_like(like)
        local = piece.backward(call, entering, outputs, dy, dfinal if piece.is_end else zeros)
        arriving = [*self._gathered(self._dinitial(call, local, zeros))[1:], dfinal]
        dstate, outputs_of_steps = arriving[position], piece.of_steps(outputs[0], outputs[1:])
        counts: Any = None
        steps = self._steps_corrected(call) if position < last and has_states(piece, outputs_of_steps) else 0
        if steps:
            counts = correct_tail(piece, call, outputs_of_steps, (local, dy), dstate, steps)
        products = [] if saved_products is None else [*saved_products]
        if products and self._corrects(call):
            products = self._products(call, like, counts, outputs[0], products[position])
        if position < last and products:
            behind = range(position + 1, last + 1)
            dstate = fold([(products[place], arriving[place - 1]) for place in reversed(behind)])
            counts = _or_any(counts, products[position + 1 : last])
        if counts is not None:
            local = _where(counts, piece.backward_again(call, entering, outputs, dy, dstate, local[0], counts), local)
        elif position < last:
            local = piece.backward(call, entering, outputs, dy, dstate)
        return [*local[: len(call)], *piece.initial_gradients(initial, local[len(call) :]), None]

    @staticmethod
    def _dinitial(call: Sequence[Any], gradients: Sequence[Any], zeros: Any) -> Any:
        """Return the gradients of the states that enter the piece; zeros where none enter the first one."""
        return zeros if gradients[-1] is None else torch.stack(tuple(gradients[len(call) :]))

    def _steps_corrected(self, call: Sequence[Any]) -> int:
        """Return how many steps are corrected before all of the piece is; 0 where all of it runs again whatever counts."""
        return first_steps(call[0].shape[self.piece.time_axis]) if self._corrects(call) else 0

    def _corrects(self, call: Sequence[Any]) -> bool:
        """Whether pieces are corrected, the same on all ranks, if they are long enough."""
        # Where sequences begin or end within the piece, what enters it may count anywhere.
        return self.corrects and not self.piece.has_sequences(call)

    def _gathered(self, own: Any) -> list[Any]:
        """Return what all ranks have, in the order of the recurrence."""
        return all_gather_in_order(own, self.piece.member, self.piece.reverse)

    def _products(self, call: Sequence[Any], like: Any, counts: Any, y: Any, known: Any = None) -> list[Any]:
        """Return the products of the coefficients of all pieces, zero where what entered does not count behind the piece.

        Those of the first and of the last are in no fold; of two pieces there are none. `y` says how y of the piece looks, and
        `known` is this piece's product as found before, zero where that was not asked for.
        """
        piece, states = self.piece, self.piece.states
        if piece.member.size == 2:
            return []
        own = torch.zeros_like(like) if known is None else known
        if piece.position and not piece.is_end:
            of_products = replace(piece, kernel=kernel_by(recipe_with_products(piece.kernel)), all_states=False, saves=False)
            entering = torch.cat((torch.zeros_like(like), torch.ones_like(like)))
            if counts is None:
                own = torch.stack(tuple(of_products.forward(call, entering)[1 + states : 1 + 2 * states]))
            else:
                counts = counts & own.eq(0).all()
                ends = of_products.forward_again(call, entering, [torch.empty_like(y)], counts)
                own = torch.where(counts, ends[states:], own)
        return self._gathered(own)


def _or_any(counts: Any, products: Sequence[Any]) -> Any:
    """Say whether something counts, or did in one of the pieces of `products`; None where all runs again without asking."""
    if counts is None or not products:
        return counts
    return counts | torch.stack(tuple(products)).ne(0).any()


def _where(counts: Any, again: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    """Return the gradients of a run that was only where something `counts`; that of x lies in one place either way."""
    pairs = zip(again[1:], before[1:], strict=True)
    # States that are none have no gradient, though those of a run that was not have.
    return [before[0], *(old if new is None or old is None else torch.where(counts, new, old) for new, old in pairs)]
