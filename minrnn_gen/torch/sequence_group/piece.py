"""A rank's piece of a call of one direction: its tensors taken apart, its kernel runs, its results and gradients joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from minrnn_gen.call.interface import Y_AXES
from minrnn_gen.call.slots import CU_SEQLENS, LENGTHS, RESETS, X
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.operators import calls
from minrnn_gen.torch.operators.recorded import Tensors
from minrnn_gen.torch.sequence_group.exchange import broadcast
from minrnn_gen.torch.sequence_group.group import Member, is_on_gpu
from minrnn_gen.torch.sequence_group.pieces import with_local_sequences
from minrnn_gen.torch.sequence_group.states import apart, together, together_shape


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
        """Return the tensors of a call without its states, then the initial states."""
        *arrays, _ = tensors
        states = self.kernel.interface.slots.states
        return [*arrays[: states.start], *arrays[states.stop :]], arrays[states]

    def in_order(self, call: Sequence[Any], initial: Sequence[Any]) -> list[Any]:
        """Join values for the tensors of a call and for its initial states in the order of slots."""
        begin = self.kernel.interface.slots.states.start
        return [*call[:begin], *initial, *call[begin:]]

    def together(self, states: Sequence[Any]) -> Any:
        """Return states, or arrays shaped like them, as one array."""
        return together(self.kernel.interface, states)

    def states_like(self, call: Sequence[Any], zeros: bool = False) -> Any:
        """Return an array with the shape of all states, filled with `zeros` or not at all."""
        shape = together_shape(self.kernel.interface, calls.sequences_of(self.kernel, call))
        return (call[0].new_zeros if zeros else call[0].new_empty)(shape, dtype=calls.arithmetic_dtype(self.kernel))

    def entering(self, initial: Sequence[Any]) -> Any:
        """Return the states that enter the whole sequence if they are this rank's, else None."""
        return None if self.position or initial[0] is None else self.together(initial)

    def forward(
        self, call: Sequence[Any], state: Any, saves: bool | None = None, into: Sequence[Any] | None = None
    ) -> list[Any]:
        """Run a call with entering states `state`; where it saves, return a backward's arrays too.

        `into`: the arrays of `outputs_of`, which are written; None allocates them.
        """
        if into is not None:
            final = apart(self.kernel.interface, self.forward_again(call, state, into))
            return [into[0], *final, *into[1:]]
        saves = self.saves if saves is None else saves
        return calls.forward(self.kernel, self._with_states(call, state), saves or self.all_states, self.all_states)

    def backward(self, call: Sequence[Any], state: Any, results: Tensors, dy: Any, dstate: Any, dx: Any = None) -> list[Any]:
        """Return the gradients of a call's tensors, then those of its states; `results`: y and what its forward saved.

        `dx`: where the gradient of x is written; None allocates it.
        """
        if dx is not None:
            return self.backward_again(call, state, results, dy.contiguous(), dstate, dx)
        tensors = self._with_states(call, state)
        dstates = apart(self.kernel.interface, dstate)
        return self._states_last(calls.backward(self.kernel, tensors, results, dy, dstates, self.all_states))

    def forward_again(self, call: Sequence[Any], state: Any, into: Sequence[Any], counts: Any = None) -> Any:
        """Run a call with entering states `state` `into` existing arrays; return the states after it.

        `into`: y and, where they are kept, the states after every step. `counts`, a bool in the memory of x, says whether
        the call runs: if False, it writes nothing and returns `state`. On a GPU the host does not wait for it. None: it runs.
        """
        if self.runs_in_place(call):
            tensors = self._with_states(self._counting(call, counts), state)
            saves = self.saves or self.all_states
            return self.together(calls.forward_in_place(self.kernel, tensors, into, self.all_states, saves))
        if counts is not None and not counts:
            return state
        results = self.forward(call, state)
        for whole, values in zip(into, self.of_steps(results[0], results[1 + self.states :]), strict=True):
            whole.copy_(values)
        return self.all_states_of(results)

    def backward_again(
        self, call: Sequence[Any], state: Any, results: Tensors, dy: Any, dstate: Any, dx: Any, counts: Any = None
    ) -> list[Any]:
        """Return gradients as `backward` does, with x's written into `dx`; where not `counts` nothing is written.

        The returned gradients are then zeros, `dstate`, or None. Arrays shaped like y have the same strides.
        """
        if self.writes_gradient_in_place(call):
            tensors = self._with_states(self._counting(call, counts), state)
            dstates = apart(self.kernel.interface, dstate)
            gradients = calls.backward_in_place(self.kernel, tensors, results, dy, dstates, dx, self.all_states)
            return self._states_last(gradients)
        if counts is not None and not counts:
            return [dx, *(None for _ in call[1:]), *apart(self.kernel.interface, dstate)]
        gradients = self.backward(call, state, results, dy, dstate)
        dx.copy_(gradients[0])
        return [dx, *gradients[1:]]

    def all_states_of(self, results: Sequence[Any]) -> Any:
        """Return the final states among the results of a forward as one array."""
        return self.together(results[1 : 1 + self.states])

    def of_steps(self, y: Any, saved: Sequence[Any]) -> list[Any]:
        """Return y and the states after every step among what a forward saves; pre-activations come after them."""
        projected = 1 if saved and self.kernel.interface.input_size else 0
        return [y, *saved[: len(saved) - projected]]

    def runs_in_place(self, call: Sequence[Any]) -> bool:
        """Whether kernels write into existing arrays."""
        interface = self.kernel.interface
        # Kernels read inputs X.* at the strides of y, which a part of an array lacks.
        return is_on_gpu(call[0]) and not interface.input_size and not interface.inputs

    def writes_gradient_in_place(self, call: Sequence[Any]) -> bool:
        """Whether a backward reads saved states in place, even in parts of arrays, and writes into such parts."""
        is_cast = self.all_states and calls.storage_dtype(self.kernel) != calls.arithmetic_dtype(self.kernel)
        return self.runs_in_place(call) and not is_cast

    def is_written_in_parts(self, call: Sequence[Any]) -> bool:
        """Whether kernels write a group of sequences or channels into arrays of all of them."""
        interface = self.kernel.interface
        return self.runs_in_place(call) and not interface.recurrent_gates and not interface.has_vectors

    def outputs_of(self, call: Sequence[Any]) -> list[Any]:
        """Allocate y and the states that a forward keeps."""
        x, interface = call[0], self.kernel.interface
        rows, time = x.shape[self.batch_axis], x.shape[self.time_axis]
        layouts = [(interface.y_shape(rows, time), interface.precision.storage_dtype)]
        if self.saves or self.all_states:
            layouts += self.kernel.executor.saved_layouts(rows, time, on_cpu=False, all_states=self.all_states)
        # Beyond lengths nothing is written.
        new = x.new_zeros if self.has_sequences(call) else x.new_empty
        return [new(shape, dtype=getattr(torch, dtype)) for shape, dtype in layouts]

    def gradient_like(self, call: Sequence[Any]) -> Any:
        """Allocate the gradient of x."""
        x = call[0]
        return (x.new_zeros if self.has_sequences(call) else x.new_empty)(x.shape)

    def _counting(self, call: Sequence[Any], counts: Any) -> Sequence[Any]:
        """Return a call that runs all of its steps or none, by the lengths of its sequences."""
        if counts is None:
            return call
        sizes = call[0].shape
        lengths = counts.expand(sizes[self.batch_axis]) * sizes[self.time_axis]
        return [*call[:LENGTHS], lengths, *call[LENGTHS + 1 :]]

    def _states_last(self, gradients: Sequence[Any]) -> list[Any]:
        states = self.kernel.interface.slots.states
        return [*gradients[: states.start], *gradients[states.stop :], *gradients[states]]

    def _with_states(self, call: Sequence[Any], state: Any) -> list[Any]:
        return self.in_order(call, [None] * self.states if state is None else apart(self.kernel.interface, state))

    def steps_of(self, call: Sequence[Any], begin: int, count: int) -> list[Any]:
        """Return a call on `count` of its steps from `begin` on."""
        part = list(with_local_sequences(call, begin, count))
        for slot, axis in self.axes_of_inputs(call, "t").items():
            part[slot] = None if part[slot] is None else part[slot].narrow(axis, begin, count)
        return part

    def one_step_of(self, call: Sequence[Any]) -> list[Any]:
        """Return a call on one step of one of its rows, without resets and ends of sequences."""
        step = self.steps_of(call, 0, 1)
        for slot, axis in self.axes_of_inputs(call, "b").items():
            step[slot] = None if step[slot] is None else step[slot].narrow(axis, 0, 1)
        step[RESETS] = step[LENGTHS] = step[CU_SEQLENS] = None
        return step

    @staticmethod
    def steps_within(call: Sequence[Any]) -> Any:
        """Return how many steps each sequence has in the piece; None where every sequence has all steps."""
        return call[CU_SEQLENS].diff() if call[CU_SEQLENS] is not None else call[LENGTHS]

    @staticmethod
    def is_cut(call: Sequence[Any]) -> Any:
        """Say for each sequence whether a reset is in its steps; None without resets."""
        resets, lengths, ends = call[RESETS], call[LENGTHS], call[CU_SEQLENS]
        if resets is None:
            return None
        counts = torch.nn.functional.pad((resets != 0).cumsum(1), (1, 0))
        if ends is not None:
            return counts[0, ends.long()].diff() > 0
        return (counts[:, -1] if lengths is None else counts.gather(1, lengths.long()[:, None])[:, 0]) > 0

    def last_steps(self, time: int, steps: int) -> int:
        """Return where the last `steps` of `time` steps begin, in the order of the recurrence."""
        return 0 if self.reverse else time - steps

    def steps_in(self, array: Any, begin: int, count: int) -> Any:
        """Return `count` steps from `begin` on of y, or of states after every step."""
        # The axis n follows the channels; in one layout so does time.
        return array.narrow(-1 if self.y_axes[-1] == "t" else self.y_axes.index("t"), begin, count)

    def axes_of_streams(self, call: Sequence[Any]) -> dict[int, str]:
        """Return by slot the axes of inputs S.* and X.* in a call without its states."""
        interface = self.kernel.interface
        axes = [interface.shared_axes] * len(interface.shared) + [interface.channel_axes] * len(interface.inputs)
        return dict(enumerate(axes, len(call) - len(axes)))

    def axes_of_inputs(self, call: Sequence[Any], axis: str) -> dict[int, int]:
        """Return by slot the position of `axis`, b or t, in the arrays that a call reads at every step."""
        of_streams = {slot: axes.index(axis) for slot, axes in self.axes_of_streams(call).items()}
        return {X: self.kernel.interface.x_axes.index(axis), RESETS: "bt".index(axis), **of_streams}

    @staticmethod
    def has_sequences(call: Sequence[Any]) -> bool:
        """Whether sequences begin or end within the piece."""
        return call[LENGTHS] is not None or call[CU_SEQLENS] is not None

    def final_of_all(self, final: Any) -> list[Any]:
        """Return the final states of whole sequences, which the last piece has, the same bits on every rank."""
        whole = broadcast(final, self.member.rank_at(self.member.size - 1, self.reverse), self.member)
        # Their data: autograd would refuse to change views in place.
        return [state.data for state in apart(self.kernel.interface, whole)]

    @staticmethod
    def gradient_of_y(y: Any, gradients: Tensors) -> Any:
        """Return the gradient of y, zeros where it has none; `gradients` are those of a call's results."""
        return torch.zeros_like(y) if gradients[0] is None else gradients[0]

    def gradient_of_final(self, like: Any, gradients: Tensors) -> Any:
        """Return this rank's own gradient of the final states, zeros where it has none; `like` is filled with zeros."""
        _, *of_states = gradients
        if all(gradient is None for gradient in of_states):
            return like
        own = zip(apart(self.kernel.interface, like), of_states, strict=True)
        return self.together([state if gradient is None else gradient for state, gradient in own])

    def initial_gradients(self, initial: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients of the initial states, zero where they do not count, None where there are none."""
        if initial[0] is None:
            return [None] * self.states
        return [torch.zeros_like(state) for state in initial] if self.position else list(gradients)
