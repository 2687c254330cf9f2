"""The pipeline: groups of sequences or channels pass through the pieces in turn, and their states go to the next rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minrnn_gen.torch.operators.recorded import Tensors
from minrnn_gen.torch.sequence_group.cuts import Along, Cut
from minrnn_gen.torch.sequence_group.exchange import Neighbours, sum_in_order
from minrnn_gen.torch.sequence_group.piece import Piece
from minrnn_gen.torch.sequence_group.states import apart


class Pipeline:
    """A piece as a stage of a pipeline of `count` groups of sequences or channels.

    Results: y, the final states of whole sequences, for all states those after every step; then the arrays that only the
    backward needs: the kernel's saved ones for each group, and the states that enter the piece.
    """

    def __init__(self, piece: Piece, along: Along, count: int) -> None:
        self.piece, self.along, self.count = piece, along, count

    def forward(self, tensors: Tensors, into: Sequence[Any] | None = None) -> Tensors:
        piece = self.piece
        call, initial = piece.apart(tensors)
        cut = Cut.of(piece, call, self.along, self.count)
        like, first = piece.states_like(call), piece.entering(initial)
        neighbours = Neighbours(piece.member, piece.reverse)
        # Where kernels write a group into y of all groups, nothing is joined afterwards.
        whole = (into or piece.outputs_of(call)) if self._writes_in_parts(cut, call) else []
        parts, entered, ends = [], [], []
        arriving = cut.like_states(like) if piece.position else cut.of_states(first)
        for own, state, written in zip(cut.calls(call), arriving, cut.of_y(whole), strict=True):
            state = neighbours.receive(state) if piece.position else state
            if whole:
                ends.append(cut.piece.forward_again(own, state, written))
            else:
                parts.append(cut.piece.forward(own, state, None, into))
                ends.append(piece.all_states_of(parts[-1]))
            neighbours.send(ends[-1])
            entered.append(state)
        neighbours.finish()
        if whole:
            y, *kept = whole
            steps, saved = (kept, []) if piece.all_states else ([], kept)
        else:
            y, behind = cut.y([part[0] for part in parts]), 1 + piece.states
            steps_from = behind + (piece.states if piece.all_states else 0)
            steps = [cut.y(states) for states in zip(*(part[behind:steps_from] for part in parts), strict=True)]
            saved = [tensor for part in parts for tensor in part[steps_from:]]
        returned = [y, *piece.final_of_all(cut.states(ends)), *steps]
        return [*returned, *saved, cut.states(entered)] if piece.saves else returned

    @staticmethod
    def _writes_in_parts(cut: Cut, call: Sequence[Any]) -> bool:
        return len(cut.spans) > 1 and cut.piece.is_written_in_parts(call)

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors, dx: Any = None) -> list[Any]:
        piece = self.piece
        call, initial = piece.apart(tensors)
        cut = Cut.of(piece, call, self.along, self.count)
        y, *extra, entering = results
        dy = piece.gradient_of_y(y, gradients)
        dfinal = sum_in_order(piece.gradient_of_final(piece.states_like(call, zeros=True), gradients), piece.member)
        is_whole = self._writes_in_parts(cut, call)
        steps, saved = (extra[: piece.states], extra[piece.states :]) if piece.all_states else ([], extra)
        steps, saved = (extra, []) if is_whole else (steps, saved)
        saved_count = len(saved) // len(cut.spans)
        if dx is None and is_whole and cut.piece.writes_gradient_in_place(call):
            dx = piece.gradient_like(call)
        dy = dy if dx is None else dy.contiguous()
        neighbours, parts = Neighbours(piece.member, piece.reverse, backward=True), []
        calls, states, of_y, of_x = cut.calls(call), cut.of_states(entering), cut.of_y((y, dy, *steps)), cut.of_x(dx)
        arriving = cut.of_states(dfinal) if piece.is_end else cut.like_states(dfinal)
        for place, (own, state, dstate) in enumerate(zip(calls, states, arriving, strict=True)):
            dstate = dstate if piece.is_end else neighbours.receive(dstate)
            own_y, own_dy, *own_steps = of_y[place]
            results = (own_y, *own_steps, *saved[place * saved_count : (place + 1) * saved_count])
            run = (own, state, results, own_dy, dstate)
            part: Any = cut.piece.backward(*run) if dx is None else cut.piece.backward_again(*run, of_x[place])
            if piece.position:
                neighbours.send(piece.together(part[len(call) :]))
            parts.append(part)
        neighbours.finish()
        of_call = [
            dx if dx is not None and not slot else cut.gradient(slot, tensor, [part[slot] for part in parts])
            for slot, tensor in enumerate(call)
        ]
        of_initial = [part[len(call) :] for part in parts]
        if initial[0] is not None:
            of_initial = apart(piece.kernel.interface, cut.states([piece.together(states) for states in of_initial]))
        return [*piece.in_order(of_call, piece.initial_gradients(initial, of_initial)), None]
