"""The pipeline: groups of sequences pass through the pieces one after the other, states sent to the next rank."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from minrnn_gen.call.arguments import CU_SEQLENS
from minrnn_gen.torch.recorded import Tensors, gradients_once
from minrnn_gen.torch.sequence_group.exchange import Neighbours
from minrnn_gen.torch.sequence_group.piece import Piece, Rows


class Pipeline:
    """A piece as a stage of a pipeline of `micro_batches` groups of sequences.

    Results: y, the final states of whole sequences, for all states those after every step; then what only the backward needs:
    what the kernel saves for each group, and the states that enter the piece.
    """

    def __init__(self, piece: Piece, micro_batches: int) -> None:
        self.piece, self.micro_batches = piece, micro_batches
        self.results_count, self.returned_count = piece.results_count, piece.returned_count
        self._saved_count = 0

    def read_again(self, tensors: Tensors) -> Tensors:
        return tensors

    def forward(self, tensors: Tensors) -> Tensors:
        piece = self.piece
        call, initial = piece.apart(tensors)
        like, first = piece.states_like(call), piece.entering(initial)
        neighbours = Neighbours(piece.member, piece.reverse)
        parts, entered = [], []
        for rows in self._groups(call):
            state = neighbours.receive(rows.of(like, 1)) if piece.position else rows.of(first, 1)
            results = piece.forward(self._group(call, rows), state)
            neighbours.send(torch.stack(tuple(results[1 : 1 + piece.states])))
            parts.append(results)
            entered.append(state)
        neighbours.finish()
        ahead, batch = 1 + piece.states, piece.y_axes.index("b")
        final = torch.stack([torch.cat(states) for states in zip(*(part[1:ahead] for part in parts), strict=True)])
        returned = [_joined([part[0] for part in parts], batch), *piece.final_of_all(final, like)]
        if piece.all_states:
            of_steps = zip(*(part[ahead : ahead + piece.states] for part in parts), strict=True)
            returned += [_joined(list(states), batch) for states in of_steps]
        if not piece.saves:
            return returned
        ahead += piece.states if piece.all_states else 0
        self._saved_count = len(parts[0]) - ahead
        entering = None if entered[0] is None else torch.cat(entered, 1)
        return [*returned, *(tensor for part in parts for tensor in part[ahead:]), entering]

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        return gradients_once(lambda: self._backward(tensors, results, gradients), (*tensors, *gradients))

    def _backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> list[Any]:
        piece = self.piece
        call, initial = piece.apart(tensors)
        y, *extra, entering = results
        dy, dfinal = piece.arriving(y, gradients, piece.states_like(call))
        steps, saved = (extra[: piece.states], extra[piece.states :]) if piece.all_states else ([], extra)
        neighbours, parts, batch = Neighbours(piece.member, piece.reverse, backward=True), [], piece.y_axes.index("b")
        groups = self._groups(call)
        for place, rows in enumerate(groups):
            dstate = rows.of(dfinal, 1)
            received = neighbours.receive(dstate)
            own_y, own_dy, *own_steps = (tensor if len(groups) == 1 else rows.of(tensor, batch) for tensor in (y, dy, *steps))
            own_saved = saved[place * self._saved_count : (place + 1) * self._saved_count]
            part = piece.backward(
                self._group(call, rows),
                rows.of(entering, 1),
                (own_y, *own_steps, *own_saved),
                own_dy,
                dstate if received is None else received,
            )
            if piece.position:
                neighbours.send(torch.stack(part[len(call) :]))
            parts.append(part)
        neighbours.finish()
        of_states = () if initial[0] is None else zip(*(part[len(call) :] for part in parts), strict=True)
        of_call = [self._together(slot, [part[slot] for part in parts], piece.shared_from(call)) for slot in range(len(call))]
        of_initial = piece.initial_gradients(initial, [torch.cat(states) for states in of_states])
        return [*piece.in_order(of_call, of_initial), None]

    def _together(self, slot: int, gradients: list[Any], shared_from: int) -> Any:
        """Return the gradients of all groups: of x and S.* side by side, of others the sum in the order of groups."""
        first, *others = gradients
        if first is None or not others:
            return first
        if slot == 0:
            return torch.cat(gradients, self.piece.batch_axis)
        if slot >= shared_from:
            return torch.cat(gradients, self.piece.shared_batch_axis)
        for gradient in others:
            first = first + gradient
        return first

    def _groups(self, call: list[Any]) -> list[Rows]:
        """Return the groups of sequences, as even as can be, in the order in which they pass through the pieces."""
        if call[CU_SEQLENS] is not None:
            return [Rows(0, call[CU_SEQLENS].shape[0] - 1)]
        rows, count = call[0].shape[self.piece.batch_axis], self.micro_batches
        ends = [rows * place // count for place in range(count + 1)]
        return [Rows(begin, end - begin) for begin, end in itertools.pairwise(ends)]

    def _group(self, call: list[Any], rows: Rows) -> list[Any]:
        return call if call[CU_SEQLENS] is not None or self.micro_batches == 1 else self.piece.rows_of(call, rows)


def _joined(parts: list[Any], axis: int) -> Any:
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)
