"""The pipeline: groups of sequences or channels pass through the pieces one after the other, states sent to the next rank."""

from __future__ import annotations

from typing import Any

import torch

from minrnn_gen.torch.recorded import Tensors, gradients_once
from minrnn_gen.torch.sequence_group.cuts import Along, Cut
from minrnn_gen.torch.sequence_group.exchange import Neighbours, sum_in_order
from minrnn_gen.torch.sequence_group.piece import Piece


class Pipeline:
    """A piece as a stage of a pipeline of `count` groups of sequences or channels.

    Results: y, the final states of whole sequences, for all states those after every step; then what only the backward needs:
    what the kernel saves for each group, and the states that enter the piece.
    """

    def __init__(self, piece: Piece, along: Along, count: int) -> None:
        self.piece, self.along, self.count = piece, along, count
        self.results_count, self.returned_count = piece.results_count, piece.returned_count
        self._saved_count = 0

    def read_again(self, tensors: Tensors) -> Tensors:
        return tensors

    def forward(self, tensors: Tensors) -> Tensors:
        piece = self.piece
        call, initial = piece.apart(tensors)
        cut = Cut.of(piece, call, self.along, self.count)
        like, first = piece.states_like(call), piece.entering(initial)
        neighbours = Neighbours(piece.member, piece.reverse)
        parts, entered, ends = [], [], []
        for span in cut.spans:
            state = neighbours.receive(cut.of_states(like, span)) if piece.position else cut.of_states(first, span)
            results = cut.piece.forward(cut.call(call, span), state)
            ends.append(torch.stack(tuple(results[1 : 1 + piece.states])))
            neighbours.send(ends[-1])
            parts.append(results)
            entered.append(state)
        neighbours.finish()
        ahead = 1 + piece.states
        returned = [cut.y([part[0] for part in parts]), *piece.final_of_all(cut.states(ends), like)]
        if piece.all_states:
            of_steps = zip(*(part[ahead : ahead + piece.states] for part in parts), strict=True)
            returned += [cut.y(states) for states in of_steps]
        if not piece.saves:
            return returned
        ahead += piece.states if piece.all_states else 0
        self._saved_count = len(parts[0]) - ahead
        return [*returned, *(tensor for part in parts for tensor in part[ahead:]), cut.states(entered)]

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        return gradients_once(lambda: self._backward(tensors, results, gradients), (*tensors, *gradients))

    def _backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> list[Any]:
        piece = self.piece
        call, initial = piece.apart(tensors)
        cut = Cut.of(piece, call, self.along, self.count)
        y, *extra, entering = results
        dy = piece.gradient_of_y(y, gradients)
        dfinal = sum_in_order(piece.gradient_of_final(piece.states_like(call), gradients), piece.member)
        steps, saved = (extra[: piece.states], extra[piece.states :]) if piece.all_states else ([], extra)
        neighbours, parts = Neighbours(piece.member, piece.reverse, backward=True), []
        for place, span in enumerate(cut.spans):
            dstate = cut.of_states(dfinal, span)
            received = neighbours.receive(dstate)
            own_y, own_dy, *own_steps = (cut.of_y(tensor, span) for tensor in (y, dy, *steps))
            own_saved = saved[place * self._saved_count : (place + 1) * self._saved_count]
            part = cut.piece.backward(
                cut.call(call, span),
                cut.of_states(entering, span),
                (own_y, *own_steps, *own_saved),
                own_dy,
                dstate if received is None else received,
            )
            if piece.position:
                neighbours.send(torch.stack(part[len(call) :]))
            parts.append(part)
        neighbours.finish()
        of_call = [cut.gradient(slot, tensor, [part[slot] for part in parts]) for slot, tensor in enumerate(call)]
        of_initial = [] if initial[0] is None else [*cut.states([torch.stack(part[len(call) :]) for part in parts])]
        return [*piece.in_order(of_call, piece.initial_gradients(initial, of_initial)), None]
