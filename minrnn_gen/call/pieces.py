"""A call's runs over pieces of time: views of the whole arrays, between which states and their gradients are passed on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from minrnn_gen.call.arguments import Call, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES, Interface


class Piece(NamedTuple):
    """`steps` of a call of one direction from `start` on, of `time` in all."""

    start: int
    steps: int
    time: int

    @property
    def has_earlier(self) -> bool:
        """Whether steps lie before it."""
        return self.start > 0

    @property
    def has_later(self) -> bool:
        """Whether steps lie after it."""
        return self.start + self.steps < self.time


def pieces_of(time: int, count: int) -> tuple[Piece, ...]:
    """Return `count` pieces of `time` steps, whose lengths differ by one step at most; fewer if there are fewer steps."""
    count = max(1, min(count, time))
    ends = [time * number // count for number in range(count + 1)]
    return tuple(Piece(start, end - start, time) for start, end in itertools.pairwise(ends))


def whole(time: int) -> Piece:
    """Return all steps as one piece."""
    return Piece(0, time, time)


def narrowed_in_time(array: Array, axes: str, piece: Piece) -> Array:
    """View a piece of an array whose axes have the letters `axes`."""
    return array.narrowed(axes.index("t"), piece.start, piece.steps)


def piece_of_call(interface: Interface, call: Call, piece: Piece, initial: Sequence[Array | None]) -> Call:
    """Return a piece of a call whose sequences all have its time; `initial` are the states before its first step."""
    y_axes = Y_AXES[interface.layout]
    resets = call.sequences.resets
    return replace(
        call,
        x=narrowed_in_time(call.x, call.x_axes, piece),
        time=piece.steps,
        initial=tuple(initial),
        inputs=tuple(narrowed_in_time(array, y_axes, piece) for array in call.inputs),
        sequences=replace(call.sequences, resets=None if resets is None else narrowed_in_time(resets, "bt", piece)),
    )


def piece_of_outputs(interface: Interface, outputs: Outputs, piece: Piece, final: Sequence[Array]) -> Outputs:
    """Return a piece of what a forward writes; `final` are the states after its last step."""
    axes = Y_AXES[interface.layout]
    kept = tuple(narrowed_in_time(states, axes, piece) for states in outputs.kept)
    return Outputs(narrowed_in_time(outputs.y, axes, piece), kept, tuple(final))


def piece_of_incoming(
    interface: Interface, incoming: IncomingGradient, piece: Piece, dfinal: Sequence[Array | None]
) -> IncomingGradient:
    """Return a piece of the gradients that a backward starts from; `dfinal` are those after its last step."""
    return IncomingGradient(narrowed_in_time(incoming.dy, Y_AXES[interface.layout], piece), tuple(dfinal))
