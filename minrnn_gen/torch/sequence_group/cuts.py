"""The groups into which a pipeline cuts a piece: of sequences, or of channels where the cell does not mix them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from minrnn_gen.call.slots import BIAS, CU_SEQLENS, LENGTHS, WEIGHT, X
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by, recipe_of_heads
from minrnn_gen.torch.sequence_group.cost import counts_up_to
from minrnn_gen.torch.sequence_group.piece import Piece

Along = Literal["sequences", "channels"]
# With fewer channels than a warp has lanes, kernels share lines of memory.
CHANNELS_LEAST = 32


def cuts_of(kernel: Kernel, batch: int, is_packed: bool, asked: int | None) -> tuple[Along, tuple[int, ...]]:
    """Return the axis along which a call is cut, and the possible numbers of groups: if `asked`, 1 and the largest up to it.

    Along its sequences, unless there are too few of them and channels are independent.
    """
    along, counts = _every_cut_of(kernel, batch, is_packed, asked)
    # A requested number leaves no choice: further counts would only lengthen the message to the ranks.
    return along, counts if asked is None else tuple(sorted({1, counts[-1]}))


def _every_cut_of(kernel: Kernel, batch: int, is_packed: bool, asked: int | None) -> tuple[Along, tuple[int, ...]]:
    sequences = counts_up_to(1 if is_packed else batch, asked)
    interface = kernel.interface
    if interface.recurrent_gates or interface.has_vectors or sequences[-1] >= counts_up_to(interface.hidden_size, asked)[-1]:
        return "sequences", sequences
    most = interface.hidden_size if asked else max(1, interface.hidden_size // CHANNELS_LEAST)
    channels = tuple(count for count in counts_up_to(most, asked) if interface.hidden_size % count == 0)
    return ("channels", channels) if channels[-1] > sequences[-1] else ("sequences", sequences)


@dataclass(frozen=True)
class Cut:
    """The groups of a call on a piece, each a span along an axis of every array.

    `piece` is the piece of one group. `axes`: the cut axis of each slot, None where every group has the whole array; `views`:
    the shapes, by slot, in which an array has that axis. `state_axis` is the cut axis of all states as one array, `y_axis` that
    of y.
    """

    piece: Piece
    spans: tuple[tuple[int, int], ...]
    axes: tuple[int | None, ...]
    views: Mapping[int, tuple[int, ...]]
    state_axis: int
    y_axis: int

    @classmethod
    def of(cls, piece: Piece, call: Sequence[Any], along: Along, count: int) -> Cut:
        """Return the cut of a call, without its states, into `count` groups, as even as can be."""
        return _along_channels(piece, call, count) if along == "channels" else _along_sequences(piece, call, count)

    def calls(self, call: Sequence[Any]) -> list[list[Any]]:
        """Return a call's groups."""
        return [[*group] for group in zip(*(self._of_slot(slot, tensor) for slot, tensor in enumerate(call)), strict=True)]

    def of_states(self, states: Any) -> list[Any]:
        """Return all states as one array for each group, without gaps, as they are sent."""
        return [part if part is None else part.contiguous() for part in self._apart(states, self.state_axis)]

    def like_states(self, states: Any) -> Sequence[Any]:
        """Return the form of all states of each group."""
        return self._apart(states, self.state_axis)

    def of_x(self, tensor: Any) -> Sequence[Any]:
        """Return the groups of an array shaped like x."""
        return self._of_slot(0, tensor)

    def of_y(self, tensors: Sequence[Any]) -> list[list[Any]]:
        """Return for each group its parts of arrays shaped like y."""
        parts = [self._apart(tensor, self.y_axis) for tensor in tensors]
        return [[part[place] for part in parts] for place in range(len(self.spans))]

    def states(self, parts: Sequence[Any]) -> Any:
        """Return all states of all groups as one array; None where there are none."""
        return parts[0] if len(parts) == 1 or parts[0] is None else torch.cat(tuple(parts), self.state_axis)

    def y(self, parts: Sequence[Any]) -> Any:
        """Return an array shaped like y of all groups."""
        return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), self.y_axis)

    def gradient(self, slot: int, tensor: Any, parts: Sequence[Any]) -> Any:
        """Return the gradient of a call's tensor: the groups' parts joined, or summed in order where each had all of it."""
        if parts[0] is None or len(parts) == 1:
            return parts[0]
        axis = self.axes[slot]
        if axis is None:
            return sum(parts[1:], start=parts[0])
        if slot in self.views:
            sizes = self.views[slot]
            parts = [part.reshape(*sizes[:axis], -1, *sizes[axis + 1 :]) for part in parts]
        return torch.cat(tuple(parts), axis).reshape(tensor.shape)

    def _of_slot(self, slot: int, tensor: Any) -> Sequence[Any]:
        axis = self.axes[slot]
        if tensor is None or axis is None:
            return [tensor] * len(self.spans)
        parts = self._apart(tensor.reshape(self.views[slot]) if slot in self.views else tensor, axis)
        return [part.flatten(0, 1) for part in parts] if slot == WEIGHT and slot in self.views else parts

    def _apart(self, tensor: Any, axis: int) -> Sequence[Any]:
        """Return an array's groups, by one operation of torch: each costs the host as much as a launch."""
        if tensor is None or len(self.spans) == 1:
            return [tensor] * len(self.spans)
        return tensor.split([count for _, count in self.spans], axis)  # type: ignore[no-any-return]


def _spans(size: int, count: int) -> tuple[tuple[int, int], ...]:
    ends = [size * place // count for place in range(count + 1)]
    return tuple((begin, end - begin) for begin, end in itertools.pairwise(ends))


def _along_sequences(piece: Piece, call: Sequence[Any], count: int) -> Cut:
    axes: list[int | None] = [None] * len(call)
    axes[LENGTHS] = 0
    for slot, axis in piece.axes_of_inputs(call, "b").items():
        axes[slot] = axis
    packed = call[CU_SEQLENS] is not None
    rows = call[0].shape[piece.batch_axis]
    return Cut(piece, _spans(rows, 1 if packed else count), tuple(axes), {}, 1, piece.y_axes.index("b"))


def _along_channels(piece: Piece, call: Sequence[Any], count: int) -> Cut:
    interface = piece.kernel.interface
    axes: list[int | None] = [None] * len(call)
    axes[X] = None if interface.input_size else interface.x_axes.index("h")
    axes[WEIGHT] = axes[BIAS] = 1
    for slot in range(interface.slots.parameters.start, len(call)):
        axes[slot] = 0
    for slot, of_stream in piece.axes_of_streams(call).items():
        axes[slot] = of_stream.index("h") if "h" in of_stream else None
    sizes = (len(interface.gates), interface.hidden_size)
    views = {BIAS: sizes} if interface.input_size is None else {BIAS: sizes, WEIGHT: (*sizes, interface.input_size)}
    part = piece if count == 1 else replace(piece, kernel=kernel_by(recipe_of_heads(piece.kernel, count)))
    return Cut(part, _spans(interface.hidden_size, count), tuple(axes), views, 2, piece.y_axes.index("h"))
