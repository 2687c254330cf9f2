"""Pieces of a scan from zero, their end states gathered, and run again with the state that enters.

Correction: only the head runs again (in the backward the tail), as far as the entering state counts. Where this suffices for
every piece between two others, each piece's entering state is the end state of its predecessor. Otherwise, and in a summary,
the maps of the pieces fold end states in the order of ranks, and each piece runs again as a whole. The GPU decides: every run
is enqueued, and one that is not needed ends at once.

For coupled states the maps of a later stage, and its end states, are right once the states of earlier ones that enter are: the
pieces between two others run once for each stage. Gradients go through the stages from the last one to the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from minrnn_gen.torch.operators.recorded import Tensors
from minrnn_gen.torch.sequence_group.cell_correction import correct_head, correct_tail, has_states, run_again_in_two, run_in_two
from minrnn_gen.torch.sequence_group.exchange import all_gather, in_order, sum_in_order
from minrnn_gen.torch.sequence_group.fold import first_steps
from minrnn_gen.torch.sequence_group.maps import StageMaps
from minrnn_gen.torch.sequence_group.piece import Piece


class Gathered:
    """A piece whose state comes from the pieces before; `corrects`: run again only as far as the state counts, else all of it.

    Results: y, the final states of whole sequences, for all states those after every step; then the arrays that only the
    backward needs: the kernel's saved ones, the states that enter the piece, those before its tail where they were kept, and
    the maps of all pieces for each stage, where they are more than two.
    """

    def __init__(self, piece: Piece, corrects: bool) -> None:
        self.piece, self.corrects = piece, corrects
        self.stages = StageMaps.of(piece.kernel)

    def forward(self, tensors: Tensors, into: Sequence[Any] | None = None) -> Tensors:
        piece, position = self.piece, self.piece.position
        call, initial = piece.apart(tensors)
        entering, tail = piece.entering(initial), self._steps_of_tail(call)
        # Zeros rather than None: the backward, which has the entering states, can then be replayed.
        zeros = piece.states_like(call, zeros=True) if position else entering
        results, between = self._run(call, zeros, tail, into)
        final, outputs = piece.all_states_of(results), piece.of_steps(results[0], results[1 + piece.states :])
        ends, steps = self._gathered(final), self._steps_corrected(call)
        counts: Any = None
        if position:
            entering = ends[position - 1]
            counts = correct_head(piece, call, outputs, entering, zeros, steps) if steps else None
        maps: list[Any] = []
        if piece.member.size > 2:
            zeros = torch.zeros_like(ends[0]) if zeros is None or not position else zeros
            folded, maps = self._through_stages(call, ends, counts, outputs[0], zeros)
            if position:
                counts = self._or_any(counts, maps, range(1, position), (entering, folded))
                entering = folded
        if counts is not None:
            # Where it does not run, the states are unchanged.
            again, before = self._run_again(call, entering, outputs, tail, counts)
            final = torch.where(counts, again, final)
            between = None if before is None else torch.where(counts, before, between)
        elif position:
            results, between = self._run(call, entering, tail, into)
            final = piece.all_states_of(results)
        y, saved = results[0], results[1 + piece.states :]
        returned = [y, *piece.final_of_all(final), *(saved[: piece.states] if piece.all_states else ())]
        if not piece.saves:
            return returned
        saved = saved[piece.states :] if piece.all_states else saved
        return [*returned, *saved, entering, between, *(maps or [None for _ in self.stages])]

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors, dx: Any = None) -> list[Any]:
        piece, position, last = self.piece, self.piece.position, self.piece.member.size - 1
        call, initial = piece.apart(tensors)
        stages = len(self.stages)
        *outputs, entering, between = results[:-stages]
        maps, zeros = results[-stages:], piece.states_like(call, zeros=True)
        dy = piece.gradient_of_y(outputs[0], gradients).contiguous()
        dfinal = sum_in_order(piece.gradient_of_final(zeros, gradients), piece.member)
        local = piece.backward(call, entering, outputs, dy, dfinal if piece.is_end else zeros, dx)
        dinitial = zeros if local[-1] is None else piece.together(local[len(call) :])
        arriving = [*self._gathered(dinitial)[1:], dfinal]
        dstate, outputs_of_steps = arriving[position], piece.of_steps(outputs[0], outputs[1:])
        counts: Any = None
        steps = self._steps_corrected(call) if position < last else 0
        if steps and (between is not None or has_states(piece, outputs_of_steps)):
            counts = correct_tail(piece, call, outputs_of_steps, (local, dy), dstate, zeros, between, steps)
        if maps[0] is not None and self._corrects(call):
            maps = [
                self._of_all(self._of_piece(stage, call, entering, counts, outputs[0], of_ranks[piece.member.rank])[0])
                for stage, of_ranks in zip(self.stages, maps, strict=True)
            ]
        if maps[0] is not None:
            run = _Again(piece, call, (entering, outputs, dy), local, counts)
            folded = self._back_through_stages(run, maps, arriving, dinitial)
            if position < last:
                counts = self._or_any(counts, maps, range(position + 1, last), (dstate, folded))
                dstate = folded
        if counts is not None:
            local = _where(counts, piece.backward_again(call, entering, outputs, dy, dstate, local[0], counts), local)
        elif position < last:
            local = piece.backward(call, entering, outputs, dy, dstate, dx)
        of_initial = piece.initial_gradients(initial, local[len(call) :])
        return [*piece.in_order(local[: len(call)], of_initial), None]

    def _run(self, call: Sequence[Any], state: Any, tail: int, into: Sequence[Any] | None) -> tuple[list[Any], Any]:
        """Run a call; return its results, and the states before its `tail`, None where it has none."""
        if tail:
            return run_in_two(self.piece, call, state, tail, into)
        return self.piece.forward(call, state, None, into), None

    def _run_again(self, call: Sequence[Any], state: Any, into: Sequence[Any], tail: int, counts: Any) -> tuple[Any, Any]:
        """Run a call `into` existing results where it `counts`; return its end states, and those before its `tail`."""
        if tail:
            return run_again_in_two(self.piece, call, state, into, tail, counts)
        return self.piece.forward_again(call, state, into, counts), None

    def _steps_of_tail(self, call: Sequence[Any]) -> int:
        """Return how many last steps a forward runs separately, to keep the states before them for its backward."""
        piece = self.piece
        # Cells with n values per channel keep no states after steps but on a CPU.
        return self._steps_corrected(call) if piece.saves and piece.kernel.interface.has_vectors and not piece.is_end else 0

    def _steps_corrected(self, call: Sequence[Any]) -> int:
        """Return how many steps are corrected before a run of the whole piece; 0 where the whole piece always runs again."""
        return first_steps(call[0].shape[self.piece.time_axis]) if self._corrects(call) else 0

    def _corrects(self, call: Sequence[Any]) -> bool:
        """Whether pieces are corrected, the same on all ranks, if they are long enough."""
        # Where sequences begin or end within the piece, the entering states may count anywhere.
        return self.corrects and not self.piece.has_sequences(call)

    def _gathered(self, own: Any) -> list[Any]:
        """Return the tensors of all ranks, in the order of the recurrence."""
        return in_order(self._of_all(own), self.piece.reverse)

    def _of_all(self, own: Any) -> Any:
        """Return the tensors of all ranks along a first axis, in the order of ranks."""
        return all_gather(own, self.piece.member)

    def _of_piece(
        self, stage: StageMaps, call: Sequence[Any], states: Any, counts: Any, y: Any, known: Any = None
    ) -> tuple[Any, Any]:
        """Return this piece's map of a stage, zero where what entered does not count after it, and its end states.

        The first and the last piece take part in no fold, and have no end states here. `states` enter the piece, `y` gives the
        shape and dtype of its y, and `known` is the map found before, zero where it was not computed.
        """
        piece = self.piece
        own = stage.nothing(states) if known is None else known
        if not piece.position or piece.is_end:
            return own, None
        if stage.is_constant:
            power = stage.power(piece, call, states)
            own = power if counts is None else torch.where(counts, power, own)
            return own, self._ends(call, states, counts, y) if stage.place and known is None else None
        of_products, entering = stage.of_piece(piece), stage.entering(states)
        if counts is None:
            ends, own = stage.split(of_products.all_states_of(of_products.forward(call, entering)))
            return own, ends
        asked = counts if known is None else counts & own.any().logical_not()
        ends, products = stage.split(of_products.forward_again(call, entering, [torch.empty_like(y)], asked))
        return torch.where(asked, products, own), ends

    def _ends(self, call: Sequence[Any], states: Any, counts: Any, y: Any) -> Any:
        """Return the end states of this piece, which `states` enter, where it `counts`."""
        piece = replace(self.piece, all_states=False, saves=False)
        if counts is None:
            return piece.all_states_of(piece.forward(call, states))
        return piece.forward_again(call, states, [torch.empty_like(y)], counts)

    def _through_stages(self, call: Sequence[Any], ends: list[Any], counts: Any, y: Any, zeros: Any) -> tuple[Any, list[Any]]:
        """Return the states that enter this piece, where others are before it, and the maps of all ranks for each stage.

        `ends` are the end states of the pieces, each from `zeros` but for the first; of the first stage they are right.
        """
        position, states, maps = self.piece.position, zeros, list[Any]()
        for stage in self.stages:
            own, end = self._of_piece(stage, call, states, counts, y)
            if maps:
                end = ends[position] if end is None else end
                ends = self._gathered(end if counts is None else torch.where(counts, end, ends[position]))
            maps.append(self._of_all(own))
            if position:
                of_pieces = in_order(maps[-1], self.piece.reverse)
                states = stage.put(states, stage.folded([*zip(of_pieces, ends, strict=True)][:position]))
        return states, maps

    def _back_through_stages(self, run: _Again, maps: Sequence[Any], arriving: list[Any], dinitial: Any) -> Any:
        """Return the gradient that arrives at the end of this piece.

        `arriving`: the gradients at the ends of all pieces, each from a run of the next piece with zero at its own end, except
        the last; `dinitial`: the gradient from this piece's run. For the last stage they are right.
        """
        position, last = self.piece.position, self.piece.member.size - 1
        dfinal, behind = arriving[-1], range(last, position, -1)
        dstate = torch.zeros_like(dfinal) if behind else dfinal
        for stage, of_ranks in reversed([*zip(self.stages, maps, strict=True)]):
            if behind:
                of_pieces = in_order(of_ranks, self.piece.reverse)
                gradients = [(of_pieces[place], arriving[place - 1]) for place in behind]
                dstate = stage.put(dstate, stage.folded(gradients, adjoint=True))
            if stage.place:
                dinitial = run.of_initial(dstate, dinitial) if position and behind else dinitial
                arriving = [*self._gathered(dinitial)[1:], dfinal]
        return dstate

    def _or_any(self, counts: Any, maps: Sequence[Any], places: range, states: tuple[Any, Any]) -> Any:
        """Say whether something counts here or in one of the pieces at `places`; None where everything always runs again.

        `states`: those that corrected a head or a tail, and the right ones. No map contains an earlier stage's effect on a
        later one, so with several stages the states are compared.
        """
        if counts is None or not places:
            return counts
        ranks = sorted(self.piece.member.rank_at(place, self.piece.reverse) for place in (places[0], places[-1]))
        for of_ranks in maps:
            counts = counts | of_ranks[ranks[0] : ranks[1] + 1].any()
        expected, entering = states
        return counts | expected.ne(entering).any() if len(maps) > 1 else counts


@dataclass(frozen=True)
class _Again:
    """Runs the backward of a piece again where `counts` is true or None. `local`: its gradients so far."""

    piece: Piece
    call: Sequence[Any]
    known: tuple[Any, Sequence[Any], Any]
    local: Sequence[Any]
    counts: Any

    def of_initial(self, dstate: Any, before: Any) -> Any:
        """Return the gradient of the states that enter the piece where `dstate` arrives at its end; else `before`.

        It also writes into the gradient of x, which the last run overwrites.
        """
        if self.counts is None:
            again = self.piece.backward(self.call, *self.known, dstate)
            return self.piece.together(again[len(self.call) :])
        again = self.piece.backward_again(self.call, *self.known, dstate, self.local[0], self.counts)
        return torch.where(self.counts, self.piece.together(again[len(self.call) :]), before)


def _where(counts: Any, again: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    """Select the gradients of the second run where it `counts`; the gradient of x lies in the same memory either way."""
    pairs = zip(again[1:], before[1:], strict=True)
    # Absent states have no gradient, though a skipped run returns one.
    return [before[0], *(old if new is None or old is None else torch.where(counts, new, old) for new, old in pairs)]
