"""The raw scan over the pieces of a group as a pipeline: groups of recurrences pass through the pieces in turn."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch

from minrnn_gen.raw_scan.scan import scan as run_scan
from minrnn_gen.raw_scan.scan import scan_backward as run_scan_backward
from minrnn_gen.torch.operators.recorded import Tensors, gradients_once
from minrnn_gen.torch.sequence_group.exchange import Neighbours, broadcast, sum_in_order
from minrnn_gen.torch.sequence_group.group import Member

# Dtype of carried states, where it is not the dtype of the arrays.
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def states_like(a: Any, axis: int) -> Any:
    """Return an array for the states of a scan along `axis` of `a`, not filled."""
    return a.new_empty((*a.shape[:axis], *a.shape[axis + 1 :]), dtype=_WIDER.get(a.dtype, a.dtype))


def axis_of_groups(state_shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the axis of the states along which a pipeline cuts, and its size: the longest axis, the first of equals."""
    return max(enumerate(state_shape), key=lambda axis: (axis[1], -axis[0]), default=(0, 1))


@dataclass(frozen=True, slots=True)
class PipelineOfScan:
    """A scan on this rank's piece as a stage of a pipeline of `count` groups along `group_axis` of the states.

    Its tensors are those of a `PieceOfScan`. Results: y and the final state of the whole; then the state that enters the piece,
    for the backward alone.
    """

    member: Member
    count: int
    group_axis: int
    log_a: bool
    reverse: bool
    axis: int
    results_count: int = 2
    returned_count: int | None = 2

    def read_again(self, tensors: Tensors) -> Tensors:
        a, _, h0, _ = tensors
        return (a, None, h0, None)

    def forward(self, tensors: Tensors) -> Tensors:
        a, b, h0, _ = tensors
        position, neighbours = self.member.position(self.reverse), Neighbours(self.member, self.reverse)
        like = states_like(a, self.axis)
        parts: list[Any] = []
        ends: list[Any] = []
        entered: list[Any] = []
        for begin, count in self._groups(like):
            state = self._of_states(h0 if position == 0 else like, begin, count)
            state = neighbours.receive(state) if position else state
            part, end = run_scan(self._of(a, begin, count), self._of(b, begin, count), state, **self._options)
            neighbours.send(end)
            parts.append(part)
            ends.append(end)
            entered.append(state)
        neighbours.finish()
        final = self._joined_states(ends)
        last = self.member.rank_at(self.member.size - 1, self.reverse)
        return (self._joined(parts), broadcast(final, last, self.member), self._joined_states(entered))

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        return gradients_once(lambda: self._backward(tensors, results, gradients), (*tensors, *gradients))

    def _backward(self, tensors: Tensors, results: Tensors, gradients: Tensors) -> Tensors:
        a, _, h0, _ = tensors
        y, entering = results
        dy, dfinal = gradients
        dy, like = torch.zeros_like(y) if dy is None else dy, states_like(a, self.axis)
        position = self.member.position(self.reverse)
        dfinal = sum_in_order(torch.zeros_like(like) if dfinal is None else dfinal, self.member)
        neighbours = Neighbours(self.member, self.reverse, backward=True)
        parts = []
        for begin, count in self._groups(like):
            dstate = self._of_states(dfinal, begin, count)
            received = neighbours.receive(dstate)
            of_a, of_y, of_dy = (self._of(tensor, begin, count) for tensor in (a, y, dy))
            state = self._of_states(entering, begin, count)
            dstate = dstate if received is None else received
            part = run_scan_backward(of_a, of_y, of_dy, state, dstate, **self._options)
            neighbours.send(part[2])
            parts.append(part)
        neighbours.finish()
        da, db = (self._joined([part[place] for part in parts]) for place in range(2))
        if h0 is None:
            return (da, db, None, None)
        dinitial = torch.zeros_like(h0) if position else self._joined_states([part[2] for part in parts])
        return (da, db, dinitial, None)

    @property
    def _options(self) -> dict[str, Any]:
        return {"log_a": self.log_a, "reverse": self.reverse, "axis": self.axis}

    def _groups(self, like: Any) -> list[tuple[int, int]]:
        """Return where each group begins and how many it has, as even as can be."""
        size = like.shape[self.group_axis] if like.dim() else 1
        ends = [size * place // self.count for place in range(self.count + 1)]
        return [(begin, end - begin) for begin, end in itertools.pairwise(ends)]

    def _of(self, tensor: Any, begin: int, count: int) -> Any:
        """Return a group of an array shaped like a."""
        return tensor if self.count == 1 else tensor.narrow(self._axis_with_time, begin, count)

    def _of_states(self, states: Any, begin: int, count: int) -> Any:
        return states if states is None or self.count == 1 else states.narrow(self.group_axis, begin, count).contiguous()

    def _joined(self, parts: list[Any]) -> Any:
        return parts[0] if len(parts) == 1 else torch.cat(parts, self._axis_with_time)

    def _joined_states(self, states: list[Any]) -> Any:
        return states[0] if len(states) == 1 or states[0] is None else torch.cat(states, self.group_axis)

    @property
    def _axis_with_time(self) -> int:
        return self.group_axis + (self.group_axis >= self.axis)
