"""A rank's piece of a call of one direction: its tensors apart, its runs by the kernel, its results and gradients together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from minrnn_gen.call.arguments import CU_SEQLENS, LENGTHS, SEQUENCES_FROM
from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch import calls
from minrnn_gen.torch.recorded import Tensors
from minrnn_gen.torch.sequence_group.exchange import broadcast
from minrnn_gen.torch.sequence_group.group import Member
from minrnn_gen.torch.sequence_group.pieces import with_local_sequences

_RESETS = SEQUENCES_FROM


@dataclass(frozen=True)
class Piece:
    """A call of one direction on this rank's piece, whose sequences are those of the piece already.

    Its tensors are those of a call and the anchor of its record. Initial states count at the first piece alone. All states of a
    call are one array with the states in front.
    """

    kernel: Kernel
    member: Member
    all_states: bool
    saves: bool

    @cached_property
    def reverse(self) -> bool:
        """Whether time runs from the last step to the first."""
        return self.kernel.interface.runs_reversed[0]

    @cached_property
    def position(self) -> int:
        """The place of the piece in the order of the recurrence."""
        return self.member.position(self.reverse)

    @property
    def is_end(self) -> bool:
        """Whether the recurrence ends with this piece."""
        return self.position == self.member.size - 1

    @property
    def states(self) -> int:
        """How many states the cell has."""
        return len(self.kernel.states)

    @property
    def results_count(self) -> int:
        """How many results have gradients: y and the final states."""
        return 1 + self.states

    @property
    def returned_count(self) -> int:
        """How many results a call returns."""
        return 1 + (2 if self.all_states else 1) * self.states

    @cached_property
    def batch_axis(self) -> int:
        """The axis of sequences in x."""
        return self.kernel.interface.x_axes.index("b")

    @cached_property
    def time_axis(self) -> int:
        """The axis of time in x."""
        return self.kernel.interface.x_axes.index("t")

    @cached_property
    def y_axes(self) -> str:
        """The axes of y."""
        return Y_AXES[self.kernel.interface.layout]

    def apart(self, tensors: Tensors) -> tuple[list[Any], list[Any]]:
        """Return the tensors of a call without its states, those behind them included, and the initial states."""
        *arrays, _ = tensors
        begin, end = self._states_from(arrays), self._states_from(arrays) + self.states
        return [*arrays[:begin], *arrays[end:]], arrays[begin:end]

    def in_order(self, call: Sequence[Any], initial: Sequence[Any]) -> list[Any]:
        """Return what belongs to the tensors of a call, and to its initial states, in the order of slots."""
        begin = len(call) - len(self.kernel.interface.shared)
        return [*call[:begin], *initial, *call[begin:]]

    def _states_from(self, arrays: Sequence[Any]) -> int:
        return len(arrays) - len(self.kernel.interface.shared) - self.states

    def states_like(self, call: Sequence[Any]) -> Any:
        """Return an array with the shape of all states."""
        shape, *_ = calls.states_shapes(self.kernel, call)
        return call[0].new_empty((self.states, *shape), dtype=calls.arithmetic_dtype(self.kernel))

    def entering(self, initial: Sequence[Any]) -> Any:
        """Return the states that enter the whole where they are this rank's; None where not."""
        return None if self.position or initial[0] is None else torch.stack(tuple(initial))

    def forward(self, call: Sequence[Any], state: Any, saves: bool | None = None) -> list[Any]:
        """Run a call, which the states `state` enter; with what a backward needs where it saves."""
        saves = self.saves if saves is None else saves
        return calls.forward(self.kernel, self._with_states(call, state), saves or self.all_states, self.all_states)

    def backward(self, call: Sequence[Any], state: Any, results: Tensors, dy: Any, dstate: Any) -> list[Any]:
        """Return the gradients of a call's tensors, then those of its states; `results`: y and what its forward saved."""
        tensors = self._with_states(call, state)
        gradients = calls.backward(self.kernel, tensors, results, dy, [*dstate], self.all_states)
        begin, end = self._states_from(gradients), self._states_from(gradients) + self.states
        return [*gradients[:begin], *gradients[end:], *gradients[begin:end]]

    def _with_states(self, call: Sequence[Any], state: Any) -> list[Any]:
        return self.in_order(call, [None] * self.states if state is None else [*state])

    def steps_of(self, call: Sequence[Any], begin: int, count: int) -> list[Any]:
        """Return a call on `count` of its steps from `begin` on."""
        part = list(with_local_sequences(call, begin, count))
        part[0] = part[0].narrow(self.time_axis, begin, count)
        part[_RESETS] = None if part[_RESETS] is None else part[_RESETS].narrow(1, begin, count)
        return part

    @staticmethod
    def has_sequences(call: Sequence[Any]) -> bool:
        """Whether sequences begin or end within the piece."""
        return call[LENGTHS] is not None or call[CU_SEQLENS] is not None

    def final_of_all(self, final: Any, like: Any) -> list[Any]:
        """Return the final states of whole sequences, which the last piece has, the same bits on every rank."""
        end = self.member.rank_at(self.member.size - 1, self.reverse)
        return [state.clone() for state in broadcast(final if self.is_end else like, end, self.member)]

    @staticmethod
    def gradient_of_y(y: Any, gradients: Tensors) -> Any:
        """Return the gradient of y, zeros where it has none; `gradients` are those of what a call returns."""
        return torch.zeros_like(y) if gradients[0] is None else gradients[0]

    @staticmethod
    def gradient_of_final(like: Any, gradients: Tensors) -> Any:
        """Return this rank's own gradient of the final states, zeros where it has none."""
        _, *of_states = gradients
        return torch.stack([torch.zeros_like(like[0]) if gradient is None else gradient for gradient in of_states])

    def initial_gradients(self, initial: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients of the initial states, zero where they do not count, None where there are none."""
        if initial[0] is None:
            return [None] * self.states
        return [torch.zeros_like(state) for state in initial] if self.position else list(gradients)
