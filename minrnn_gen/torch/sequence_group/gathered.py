"""Pieces of a scan cell from zero, gathered, folded in the order of ranks, and run again with the state that enters.

Summary: all of the piece again. Correction: its head alone, as far as coefficients count; in the backward its tail. The product
of a piece's coefficients is the gradient of its initial state with respect to the final one, by the kernels that there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from minrnn_gen.torch.recorded import Tensors, gradients_once
from minrnn_gen.torch.sequence_group.exchange import all_gather
from minrnn_gen.torch.sequence_group.fold import corrected_parts, fold, is_rounding
from minrnn_gen.torch.sequence_group.piece import Piece


class Gathered:
    """A piece whose state is folded from those before it; `corrects` only as far as coefficients count, and else all of it.

    Results: y, the final states of whole sequences, for all states those after every step; then what only the backward needs:
    what the kernel saves, the states that enter the piece, and the products of all pieces.
    """

    def __init__(self, piece: Piece, corrects: bool) -> None:
        self.piece, self.corrects = piece, corrects
        self.results_count, self.returned_count = piece.results_count, piece.returned_count

    def read_again(self, tensors: Tensors) -> Tensors:
        return tensors

    def forward(self, tensors: Tensors) -> Tensors:
        piece = self.piece
        call, initial = piece.apart(tensors)
        like, entering = piece.states_like(call), piece.entering(initial)
        # The products of the first and of the last piece are in no fold.
        is_inner = piece.position > 0 and not piece.is_end
        zeros = torch.zeros_like(like)
        results = piece.forward(call, zeros if piece.position else entering, piece.saves or is_inner)
        product = self._product(call, zeros, results) if is_inner else zeros
        in_order = self._gathered(torch.stack((product, self._final(results))))
        if piece.position:
            entering = fold(in_order[: piece.position])
            results = self._correct(call, results, entering)
        y, saved = results[0], results[1 + piece.states :]
        returned = [y, *piece.final_of_all(self._final(results), like), *(saved[: piece.states] if piece.all_states else ())]
        if not piece.saves:
            return returned
        saved = saved[piece.states :] if piece.all_states else saved
        return [*returned, *saved, entering, torch.stack([product for product, _ in in_order])]

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        return gradients_once(lambda: self._backward(tensors, results, gradients), (*tensors, *gradients))

    def _backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> list[Any]:
        piece = self.piece
        call, initial = piece.apart(tensors)
        *outputs, entering, products = results
        like = piece.states_like(call)
        dy, dfinal = piece.arriving(outputs[0], gradients, like)
        zeros = torch.zeros_like(like)
        local = piece.backward(call, entering, outputs, dy, dfinal if piece.is_end else zeros)
        own = zeros if entering is None else torch.stack(local[len(call) :])
        in_order = self._gathered(own)
        if not piece.is_end:
            behind = range(piece.position + 1, piece.member.size)
            dstate = fold([(products[place], in_order[place]) for place in reversed(behind)])
            local = self._correct_back(call, entering, outputs, dy, local, dstate)
        return [*local[: len(call)], *piece.initial_gradients(initial, local[len(call) :]), None]

    def _gathered(self, own: Any) -> list[Any]:
        """Return what all ranks have, in the order of the recurrence."""
        gathered, member = all_gather(own, self.piece.member), self.piece.member
        return [gathered[member.rank_at(place, self.piece.reverse)] for place in range(member.size)]

    def _final(self, results: Sequence[Any]) -> Any:
        return torch.stack(tuple(results[1 : 1 + self.piece.states]))

    def _product(self, call: Sequence[Any], zeros: Any, results: Sequence[Any]) -> Any:
        y, saved = results[0], results[1 + self.piece.states :]
        gradients = self.piece.backward(call, zeros, (y, *saved), torch.zeros_like(y), torch.ones_like(zeros))
        return torch.stack(gradients[len(call) :])

    def _correct(self, call: Sequence[Any], results: list[Any], entering: Any) -> list[Any]:
        """Return the results of a piece, which are those from zero, with the states that enter it."""
        piece, time, ahead = self.piece, call[0].shape[self.piece.time_axis], 1 + self.piece.states
        for steps in self._parts(call, time):
            head = piece.steps_of(call, time - steps if piece.reverse else 0, steps)
            corrected = piece.forward(head, entering)
            for whole, part in zip(*(self._of_steps(of[0], of[ahead:]) for of in (results, corrected)), strict=True):
                self._narrowed(whole, time - steps if piece.reverse else 0, steps).copy_(part)
            state = self._final(corrected)
            from_zero = piece.forward(head, torch.zeros_like(entering), False)
            if is_rounding(state - self._final(from_zero), state):
                return results
        return piece.forward(call, entering)

    def _correct_back(
        self, call: Sequence[Any], entering: Any, outputs: Sequence[Any], dy: Any, local: list[Any], dstate: Any
    ) -> list[Any]:
        """Return the gradients of a piece, which are those without one of its end state, with the gradient `dstate` of it.

        Gradients are linear in those that arrive: those of the tail, where only `dstate` arrives, are added.
        """
        piece, time = self.piece, call[0].shape[self.piece.time_axis]
        y, *of_steps = self._of_steps(outputs[0], outputs[1:])
        states = of_steps or [y]  # a single state that is the output
        for steps in self._parts(call, time) if len(states) == piece.states else ():
            begin = 0 if piece.reverse else time - steps
            tail, tail_dy = piece.steps_of(call, begin, steps), self._narrowed(dy, begin, steps)
            before = steps if piece.reverse else begin - 1
            state = torch.stack([self._narrowed(values, before, 1).squeeze(self._time) for values in states]).to(dstate.dtype)
            tail_y, *others = piece.forward(tail, state, True)
            results = (tail_y, *others[piece.states :])
            added = piece.backward(tail, state, results, torch.zeros_like(tail_y), dstate)
            own = piece.backward(tail, state, results, tail_dy, torch.zeros_like(dstate))
            passed_on = torch.stack(added[len(call) :])
            if is_rounding(passed_on, passed_on + torch.stack(own[len(call) :])):
                local[0].narrow(piece.time_axis, begin, steps).add_(added[0])
                rest = zip(local[1 : len(call)], added[1 : len(call)], strict=True)
                summed = [gradient if more is None else gradient + more for gradient, more in rest]
                return [local[0], *summed, *local[len(call) :]]
        return piece.backward(call, entering, outputs, dy, dstate)

    def _parts(self, call: Sequence[Any], time: int) -> Iterator[int]:
        """Yield of how many steps a correction may be, fewer than all."""
        # Where sequences begin or end within the piece, what enters it may count anywhere.
        if self.corrects and not self.piece.has_sequences(call):
            yield from corrected_parts(time)

    def _of_steps(self, y: Any, saved: Sequence[Any]) -> list[Any]:
        """Return y and the states after every step among what a forward saves; pre-activations come behind them."""
        projected = 1 if saved and self.piece.kernel.interface.input_size else 0
        return [y, *saved[: len(saved) - projected]]

    @property
    def _time(self) -> int:
        return self.piece.y_axes.index("t")

    def _narrowed(self, tensor: Any, begin: int, steps: int) -> Any:
        return tensor.narrow(self._time, begin, steps)
