"""Calls of a kernel whose resets begin from states of the caller: the arrays of the kernel that adds them, and gradients."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.reset_states import check_marks, check_shape, gathered, named_reset_states, sequence_of_step, spread
from minrnn_gen.call.sequences import as_array
from minrnn_gen.call.validate import check_dtype, check_place, known_names
from minrnn_gen.gpu import memory
from minrnn_gen.run.saved import Saved


@dataclass(frozen=True)
class ResetStates:
    """The reset states of one call, as arrays of the library of x."""

    interface: Interface
    inputs: tuple[tuple[str, str], ...]
    xp: Any
    resets: Any
    states: Mapping[str, Any]
    sequence: Any
    count: int

    @classmethod
    def of(
        cls, interface: Interface, inputs: tuple[tuple[str, str], ...], arguments: CallArguments, reset_states: Any
    ) -> ResetStates:
        """Return those of a call of a kernel with this interface; `inputs` are the names of what its states begin from.

        Raises BadInput for what does not fit.
        """
        named = named_reset_states(interface, reset_states, arguments.resets)
        x, marks = memory.inspect(arguments.x, "x"), memory.inspect(arguments.resets, "resets")
        check_dtype(marks, ("bool",))
        check_marks(marks)
        xp = sys.modules[x.library]
        resets = xp.asarray(marks.owner)
        count, sequence = resets.shape[0], None
        if arguments.cu_seqlens is not None:
            ends = xp.asarray(memory.inspect(as_array(arguments.cu_seqlens, "cu_seqlens"), "cu_seqlens").owner)
            place = {"device": x.owner.device} if x.library == "torch" else {}
            ends = ends.to(**place) if place else ends
            count = max(ends.shape[0] - 1, 0)
            sequence = sequence_of_step(xp, ends, xp.arange(resets.shape[1], **place))
        states = {}
        dtypes = tuple(dict.fromkeys((interface.precision.arithmetic_dtype, interface.precision.storage_dtype)))
        for name in interface.states:
            array = memory.inspect(named[name], f"reset_states['{name}']")
            check_dtype(array, dtypes)
            check_shape(array, name, interface.directions, interface.hidden_size, count)
            check_place(array, x)
            states[name] = xp.asarray(array.owner)
        return cls(interface, inputs, xp, resets, states, sequence, count)

    def added_to(self, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the inputs X.* of the call, the caller's and what states begin from."""
        axes, dtype = self.interface.channel_axes, self.interface.precision.storage_dtype
        added = {
            added_input: _contiguous(spread(self.xp, axes, self.resets, memory.cast(self.states[name], dtype), self.sequence))
            for name, added_input in self.inputs
        }
        return {**known_names(inputs, self.interface.inputs, "inputs"), **added}

    def gradients(self, gradients: dict[str, Any]) -> dict[str, Any]:
        """Return the gradients of the call from those of the kernel that added the states."""
        of_inputs = dict(gradients["inputs"])
        added_input, carried = dict(self.inputs), self.interface.precision.arithmetic_dtype
        by_state = {name: of_inputs.pop(added_input[name]) for name in self.interface.states if name in added_input}
        own = {
            name: self._of_state(name, memory.cast(by_state[name], carried) if name in by_state else None)
            for name in self.states
        }
        rest = {name: value for name, value in gradients.items() if name != "inputs"}
        return {**rest, **({"inputs": of_inputs} if of_inputs else {}), "reset_states": own}

    def _of_state(self, name: str, gradient: Any) -> Any:
        state = self.states[name]
        if gradient is None:
            return self.xp.zeros_like(state)
        summed = gathered(self.xp, self.interface.channel_axes, self.resets, gradient, self.count, self.sequence)
        summed = summed if summed.ndim == state.ndim else summed.sum(-2)
        return memory.cast(summed, str(state.dtype).removeprefix("torch."))


@dataclass(frozen=True)
class SavedWithResetStates:
    """What a forward with reset states saves: that of the kernel that ran it, and the reset states."""

    saved: Saved
    states: ResetStates

    def release(self) -> None:
        """Let go of the arrays; a backward with this object is an error from now on."""
        self.saved.release()

    def arrays(self) -> tuple[Any, ...]:
        """Return what is held beside the arrays of the call and y, as `Saved.arrays` does."""
        return self.saved.arrays()

    def final(self) -> tuple[Any, ...]:
        """Return the final states, as `Saved.final` does."""
        return self.saved.final()


def _contiguous(array: Any) -> Any:
    return array.contiguous() if hasattr(array, "contiguous") else array if array.flags.c_contiguous else array.copy(order="C")
