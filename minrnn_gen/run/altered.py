"""Calls of a kernel with reset states or holds: the arrays of the kernel that runs them, and gradients."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minrnn_gen.build.altered_cells import AlteredRecipe
from minrnn_gen.call.altered import (
    check_marks,
    check_reset_states,
    gathered,
    named_reset_states,
    sequence_count,
    sequence_of_step,
    spread,
    spread_holds,
)
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.known_names import known_names
from minrnn_gen.call.sequences import as_array, as_marks
from minrnn_gen.call.step_inputs import spread_inputs
from minrnn_gen.call.validate import check_dtype, check_place
from minrnn_gen.gpu import memory
from minrnn_gen.run.saved import Saved


@dataclass(frozen=True)
class Alteration:
    """The reset states and holds of one call, as arrays of the library of x; None where absent."""

    interface: Interface
    recipe: AlteredRecipe
    xp: Any
    resets: Any
    holds: Any
    states: Mapping[str, Any]
    sequence: Any
    count: int
    like: Any

    @classmethod
    def of(
        cls, interface: Interface, recipe: AlteredRecipe, arguments: CallArguments, reset_states: Any, holds: Any
    ) -> Alteration:
        """Return the alteration of a call of a kernel with this interface; the kernel of `recipe` runs the call.

        Raises BadInput for arguments that do not fit.
        """
        x = memory.inspect(arguments.x, "x")
        xp, place = sys.modules[x.library], {"device": x.owner.device} if x.library == "torch" else {}
        ones = memory.cast(xp.ones((*interface.directions, interface.hidden_size), **place), interface.precision.storage_dtype)
        marks = None if holds is None else _marks(interface, holds, "holds", x)
        if reset_states is None:
            return cls(interface, recipe, xp, None, marks, {}, None, 0, ones)
        named = named_reset_states(interface, reset_states, arguments.resets)
        resets = _marks(interface, arguments.resets, "resets", x)
        sequence, ends = None, None
        if arguments.cu_seqlens is not None:
            ends = xp.asarray(memory.inspect(as_array(arguments.cu_seqlens, "cu_seqlens"), "cu_seqlens").owner)
            ends = ends.to(**place) if place else ends
            sequence = sequence_of_step(xp, ends, xp.arange(resets.shape[1], **place))
        count = sequence_count(resets, ends)
        arrays = {name: memory.inspect(named[name], f"reset_states['{name}']") for name in interface.states}
        check_reset_states(interface, arrays, count)
        for array in arrays.values():
            check_place(array, x)
        states = {name: xp.asarray(array.owner) for name, array in arrays.items()}
        return cls(interface, recipe, xp, resets, marks, states, sequence, count, ones)

    def added_to(self, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the inputs X.* of the call: the caller's, and the additional inputs of the kernel."""
        axes, dtype = self.interface.channel_axes, self.interface.precision.storage_dtype
        added = {
            added_input: spread(self.xp, axes, self.resets, memory.cast(self.states[name], dtype), self.sequence)
            for name, added_input in self.recipe.begins
        }
        if self.recipe.hold is not None:
            added[self.recipe.hold] = spread_holds(self.xp, axes, self.holds, self.like)
        contiguous = {name: _contiguous(array) for name, array in added.items()}
        return {**known_names(inputs, self.interface.inputs, "inputs"), **contiguous}

    def gradients(self, gradients: dict[str, Any]) -> dict[str, Any]:
        """Return the gradients of the call from those of the kernel that ran it."""
        of_inputs = dict(gradients["inputs"])
        of_inputs.pop(self.recipe.hold, None)
        begins, carried = dict(self.recipe.begins), self.interface.precision.arithmetic_dtype
        by_state = {name: memory.cast(of_inputs.pop(added_input), carried) for name, added_input in begins.items()}
        named = {name: value for name, value in gradients.items() if name != "inputs"}
        named |= {"inputs": of_inputs} if of_inputs else {}
        if self.states:
            named["reset_states"] = {name: self._of_state(name, by_state.get(name)) for name in self.states}
        return named

    def _of_state(self, name: str, gradient: Any) -> Any:
        state = self.states[name]
        if gradient is None:
            return self.xp.zeros_like(state)
        summed = gathered(self.xp, self.interface.channel_axes, self.resets, gradient, self.count, self.sequence)
        summed = summed if summed.ndim == state.ndim else summed.sum(-2)
        return memory.cast(summed, str(state.dtype).removeprefix("torch."))


@dataclass(frozen=True)
class AlteredSaved:
    """Saved arrays of a forward with reset states or holds: the saved arrays of the kernel that ran it, and the alteration."""

    saved: Saved
    alteration: Alteration

    def release(self) -> None:
        """Release the arrays; from now on a backward with this object is an error."""
        self.saved.release()

    def arrays(self) -> tuple[Any, ...]:
        """Return the saved arrays except the call's and y, as `Saved.arrays` does."""
        return self.saved.arrays()

    def final(self) -> tuple[Any, ...]:
        """Return the final states, as `Saved.final` does."""
        return self.saved.final()


def as_of_channels(interface: Interface, arguments: CallArguments, reset_states: Any, holds: Any) -> tuple[Any, Any, Any]:
    """Return x, R and the keywords of a call with inputs of one value per step, for the kernel without such inputs."""
    inputs = spread_inputs(interface, arguments.inputs, arguments.x)
    x, R, *others = arguments._replace(inputs=inputs)
    named = dict(zip(CallArguments._fields[2:], others, strict=True))
    return x, R, {**named, "reset_states": reset_states, "holds": holds}


def _marks(interface: Interface, marks: Any, name: str, x: Array) -> Any:
    """Return resets or holds as an array of the library of x."""
    array = memory.inspect(as_marks(marks, name), name)
    check_dtype(array, ("bool",))
    check_marks(array, name, interface.x_axes, x)
    check_place(array, x)
    return sys.modules[x.library].asarray(array.owner)


def _contiguous(array: Any) -> Any:
    return array.contiguous() if hasattr(array, "contiguous") else array if array.flags.c_contiguous else array.copy(order="C")
