"""A rank's piece of a call: the begins and ends of sequences in it, and its directions as separate calls."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.slots import CU_SEQLENS, FIXED, LENGTHS, SEQUENCES, WEIGHTS, X
from minrnn_gen.torch.operators.recorded import Tensors
from minrnn_gen.torch.sequence_group.agreement import Agreement, RefusedEverywhere

# Of arrays with an axis of directions in front, how many axes there are with it; with fewer, both lie one after the other.
_AXES_OF_DIRECTED = {"R": 5, "weight": 3, "bias": 3, "recurrent_bias": 4}


def with_local_sequences(tensors: Tensors, begin: int, time: int) -> tuple[Any, ...]:
    """Return a call whose lengths and boundaries, global ones, are those of a piece of `time` steps that begins at `begin`."""
    local = list(tensors)
    for slot in (LENGTHS, CU_SEQLENS):
        if local[slot] is not None:
            local[slot] = torch.clamp(local[slot] - begin, 0, time)
    return tuple(local)


def check_global_sequences(tensors: Tensors, agreement: Agreement) -> None:
    """Refuse lengths and boundaries beyond all pieces."""
    lengths, ends = tensors[LENGTHS], tensors[CU_SEQLENS]
    if lengths is not None and lengths.numel() and int(lengths.max()) > agreement.time:
        place = int(lengths.argmax())
        raise RefusedEverywhere(
            f"lengths[{place}] is {int(lengths[place])}; 0 to {agreement.time}, the time of all ranks' pieces, is expected"
        )
    if ends is not None and int(ends[-1]) != agreement.time:
        raise RefusedEverywhere(
            f"cu_seqlens ends with {int(ends[-1])}; {agreement.time}, the time of all ranks' pieces, is expected"
        )


def digest_of(tensor: Any) -> str | None:
    """Return a digest of integers that all ranks have to have alike; None where there are none."""
    return None if tensor is None else hashlib.sha256(repr(tensor.tolist()).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Directions:
    """The two directions of a bidirectional call as separate calls, and their results joined."""

    interface: Interface

    def part(self, tensors: Tensors, direction: int) -> tuple[Any, ...]:
        """Return one direction's tensors of a call."""
        x, slots = tensors[X], self.interface.slots
        if not self.interface.input_size:
            x = x.select(self.interface.x_axes.index("d"), direction)
        weights = zip(FIXED[WEIGHTS], tensors[WEIGHTS], strict=True)
        directed = (*tensors[slots.parameters], *tensors[slots.states])
        return (
            x,
            *(_half(tensor, _AXES_OF_DIRECTED[name], direction) for name, tensor in weights),
            *tensors[SEQUENCES],
            *(None if tensor is None else tensor[direction] for tensor in directed),
            *(tensor.select(self.interface.shared_axes.index("d"), direction) for tensor in tensors[slots.shared]),
            *(tensor.select(self.interface.channel_axes.index("d"), direction) for tensor in tensors[slots.inputs]),
        )

    def together(self, forward: Tensors, reverse: Tensors, states: int) -> list[Any]:
        """Return y, the final states and the states after every step of both directions."""
        channels = Y_AXES[self.interface.layout].index("h")
        return [
            torch.stack(pair) if 0 < place <= states else torch.cat(pair, channels)
            for place, pair in enumerate(zip(forward, reverse, strict=True))
        ]


def _half(tensor: Any, axes: int, direction: int) -> Any:
    if tensor is None or tensor.dim() == axes:
        return tensor if tensor is None else tensor[direction]
    return tensor.chunk(2)[direction]
