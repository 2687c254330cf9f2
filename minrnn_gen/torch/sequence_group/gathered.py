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
from minrnn_gen.torch.sequence_group.cell_correction import correct_head, correct_tail, has_states, run_again_in_two, run_in_two
from minrnn_gen.torch.sequence_group.exchange import all_gather_in_order, sum_in_order
from minrnn_gen.torch.sequence_group.fold import first_steps, fold
from minrnn_gen.torch.sequence_group.piece import Piece
from minrnn_gen.torch.sequence_group.states import states_axis


class Gathered:
    """A piece whose state comes from those before it; `corrects` only as far as it counts, and else all of it.

    Results: y, the final states of whole sequences, for all states those after every step; then what only the backward needs:
    what the kernel saves, the states that enter the piece, those before its tail where they were kept, and the products of all
    pieces, where they are more than two.
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
        tail = self._steps_of_tail(call)
        # Zeros, and not none: the backward, whose states are those that enter, is then one that is replayed.
        results, between = self._run(call, torch.zeros_like(like) if position else entering, tail)
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
            # Where it does not run, the states are what they were.
            again, before = self._run_again(call, entering, into, tail, counts)
            final = torch.where(counts, again, final)
            between = None if before is None else torch.where(counts, before, between)
        elif position:
            results, between = self._run(call, entering, tail)
            final = piece.all_states_of(results)
        y, saved = results[0], results[1 + piece.states :]
        returned = [y, *piece.final_of_all(final, like), *(saved[: piece.states] if piece.all_states else ())]
        if not piece.saves:
            return returned
        saved = saved[piece.states :] if piece.all_states else saved
        return [*returned, *saved, entering, between, torch.stack(products) if products else None]

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        return gradients_once(lambda: self._backward(tensors, results, gradients), (*tensors, *gradients))

    def _backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> list[Any]:
        piece, position, last = self.piece, self.piece.position, self.piece.member.size - 1
        call, initial = piece.apart(tensors)
        *outputs, entering, between, saved_products = results
        like = piece.states_like(call)
        dy = piece.gradient_of_y(outputs[0], gradients).contiguous()
        dfinal = sum_in_order(piece.gradient_of_final(like, gradients), piece.member)
        zeros = torch.zeros_like(like)
        local = piece.backward(call, entering, outputs, dy, dfinal if piece.is_end else zeros)
        dinitial = zeros if local[-1] is None else piece.together(local[len(call) :])
        arriving = [*self._gathered(dinitial)[1:], dfinal]
        dstate, outputs_of_steps = arriving[position], piece.of_steps(outputs[0], outputs[1:])
        counts: Any = None
        steps = self._steps_corrected(call) if position < last else 0
        if steps and (between is not None or has_states(piece, outputs_of_steps)):
            counts = correct_tail(piece, call, outputs_of_steps, (local, dy), dstate, between, steps)
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
        of_initial = piece.initial_gradients(initial, local[len(call) :])
        return [*piece.in_order(local[: len(call)], of_initial), None]

    def _run(self, call: Sequence[Any], state: Any, tail: int) -> tuple[list[Any], Any]:
        """Run a call; return its results, and the states before its `tail`, None where it has none."""
        return run_in_two(self.piece, call, state, tail) if tail else (self.piece.forward(call, state), None)

    def _run_again(self, call: Sequence[Any], state: Any, into: Sequence[Any], tail: int, counts: Any) -> tuple[Any, Any]:
        """Run a call `into` results that are there where it `counts`; return its end states, and those before its `tail`."""
        if tail:
            return run_again_in_two(self.piece, call, state, into, tail, counts)
        return self.piece.forward_again(call, state, into, counts), None

    def _steps_of_tail(self, call: Sequence[Any]) -> int:
        """Return how many steps a forward runs by themselves, for the states before them that its backward begins with."""
        piece = self.piece
        # Cells with n values per channel keep no states after steps but on a CPU.
        return self._steps_corrected(call) if piece.saves and piece.kernel.interface.has_vectors and not piece.is_end else 0

    def _steps_corrected(self, call: Sequence[Any]) -> int:
        """Return how many steps are corrected before all of the piece is; 0 where all of it runs again whatever counts."""
        return first_steps(call[0].shape[self.piece.time_axis]) if self._corrects(call) else 0

    def _corrects(self, call: Sequence[Any]) -> bool:
        """Whether pieces are corrected, the same on all ranks, if they are long enough."""
        # Where sequences begin or end within the piece, what enters it may count anywhere.
        return self.corrects and not self.piece.has_sequences(call)

    def _gathered(self, own: Any) -> list[Any]:
        """Return the tensors of all ranks, in the order of the recurrence."""
        return all_gather_in_order(own, self.piece.member, self.piece.reverse)

    def _products(self, call: Sequence[Any], like: Any, counts: Any, y: Any, known: Any = None) -> list[Any]:
        """Return the products of the coefficients of all pieces, zero where what entered does not count after the piece.

        Those of the first and of the last are in no fold; of two pieces there are none. `y` says how y of the piece looks, and
        `known` is this piece's product as found before, zero where that was not asked for.
        """
        piece = self.piece
        if piece.member.size == 2:
            return []
        own = torch.zeros_like(like) if known is None else known
        if piece.position and not piece.is_end:
            of_products = replace(piece, kernel=kernel_by(recipe_with_products(piece.kernel)), all_states=False, saves=False)
            axis = states_axis(piece.kernel.interface)
            entering = torch.cat((torch.zeros_like(like), torch.ones_like(like)), axis)
            if counts is None:
                ends = of_products.all_states_of(of_products.forward(call, entering))
            else:
                counts = counts & own.eq(0).all()
                ends = of_products.forward_again(call, entering, [torch.empty_like(y)], counts)
            _, products = ends.chunk(2, axis)
            own = products.contiguous() if counts is None else torch.where(counts, products, own)
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
