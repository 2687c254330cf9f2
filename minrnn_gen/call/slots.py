"""Slots: the positions of arrays, by name, in the flat lists of a call, a stack of layers, a backward and an operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

# The arrays of a call that have one slot each, whatever the cell; also the names of the first fields of `CallArguments`.
FIXED = ("x", "R", "weight", "bias", "recurrent_bias", "resets", "lengths", "cu_seqlens")
X, R, WEIGHT, BIAS, RECURRENT_BIAS, RESETS, LENGTHS, CU_SEQLENS = range(len(FIXED))
WEIGHTS = slice(R, RESETS)
SEQUENCES = slice(RESETS, len(FIXED))


def has_gradient(slot: int) -> bool:
    """Say whether a backward returns the gradient of the array in a slot of a call: not for resets, lengths and cu_seqlens."""
    return slot < SEQUENCES.start or slot >= SEQUENCES.stop


class CallSlots(NamedTuple):
    """Slots of a call: the fixed ones, then the cell's parameters, the initial states, the inputs S.*, and the inputs X.*."""

    parameters: slice
    states: slice
    shared: slice
    inputs: slice

    @classmethod
    def of(cls, parameters: int, states: int, shared: int = 0, inputs: int = 0) -> CallSlots:
        """Return the slots for a cell with these numbers of parameters, states, inputs S.* and inputs X.*."""
        return cls(*runs_from(len(FIXED), parameters, states, shared, inputs))

    @property
    def total(self) -> int:
        """The number of slots."""
        return int(self.inputs.stop)

    @property
    def wide(self) -> slice:
        """All slots before the states, whose gradients are computed in a wider dtype than theirs."""
        return slice(X, self.states.start)

    @property
    def carried(self) -> slice:
        """Initial states, inputs S.* and inputs X.*."""
        return slice(self.states.start, self.inputs.stop)

    @property
    def streams(self) -> slice:
        """Inputs S.* and X.*."""
        return slice(self.shared.start, self.inputs.stop)

    def by_schema(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arrays of a call as an operator takes them: the fixed ones, then lists of inputs, parameters and states.

        The list of states is empty where the call has none.
        """
        states = [state for state in arrays[self.states] if state is not None]
        return (*arrays[: len(FIXED)], [*arrays[self.streams]], [*arrays[self.parameters]], states)


class StackSlots(NamedTuple):
    """Slots of a stack of layers: x, arrays of sequences, each layer's own arrays, the initial states, masks of dropout.

    A layer's own arrays are its weights and biases, then the cell's parameters; `own` spans those of all layers.
    """

    sequences: slice
    layers: tuple[slice, ...]
    states: slice
    masks: slice

    @classmethod
    def of(cls, sequences: int, layers: int, parameters: int, states: int, masks: int) -> StackSlots:
        """Return the slots for `layers` layers of a cell; `sequences` counts the arrays of sequences that the stack takes."""
        own = WEIGHTS.stop - WEIGHTS.start + parameters
        of_sequences, *of_layers, of_states, of_masks = runs_from(X + 1, sequences, *[own] * layers, states, masks)
        return cls(of_sequences, tuple(of_layers), of_states, of_masks)

    @property
    def own(self) -> slice:
        """The own arrays of all layers."""
        return slice(self.sequences.stop, self.states.start)

    def call(self, arrays: Sequence[Any], layer: int, x: Any, sequences: Sequence[Any], states: Sequence[Any]) -> list[Any]:
        """Return the arrays of a layer's call by slot; `x` is its input, `sequences` are resets, lengths and cu_seqlens."""
        own, weights = arrays[self.layers[layer]], WEIGHTS.stop - WEIGHTS.start
        return [x, *own[:weights], *sequences, *own[weights:], *states]

    @staticmethod
    def own_of(call: Sequence[Any], parameters: slice) -> list[Any]:
        """Return a layer's own entries of a list by slot of its call."""
        return [*call[WEIGHTS], *call[parameters]]


class BackwardSlots(NamedTuple):
    """Slots of a backward: the arrays of the call, what its forward wrote, and the gradients of y and of the final states."""

    inputs: slice
    results: slice
    incoming: slice

    @classmethod
    def of(cls, inputs: int, results: int, states: int) -> BackwardSlots:
        """Return the slots after a forward, given its numbers of inputs and results and the cell's number of states."""
        return cls(*runs_from(0, inputs, results, 1 + states))


def runs_from(first: int, *counts: int) -> list[slice]:
    """Return consecutive runs of slots, of the given lengths, from slot `first` on."""
    runs = []
    for count in counts:
        runs.append(slice(first, first + count))
        first += count
    return runs
