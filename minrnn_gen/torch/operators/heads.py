"""Calls as heads of one call: weights that differ, and gradients of weights for each call, under `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from minrnn_gen.build.widened_recipes import with_heads
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.slots import SEQUENCES
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.torch.operators.recorded import Tensors

# A batch and a time, of which no other axis has the size.
_BATCH, _TIME = 5, 7


@dataclass(frozen=True)
class HeadAxis:
    """The axis of a tensor that calls are folded into; `directions` is that of both directions, merged with the channels."""

    axis: int
    directions: int | None = None

    def fold(self, tensor: Any) -> Any:
        """Merge the first axis, the calls, into the head axis, as its outer part."""
        if self.directions is not None:
            tensor = tensor.unflatten(1 + self.directions, (2, -1))
        tensor = tensor.movedim(0, self.axis).flatten(self.axis, self.axis + 1)
        return tensor if self.directions is None else tensor.flatten(self.directions, self.directions + 1)

    def unfold(self, tensor: Any, count: int) -> Any:
        """Undo `fold` of `count` calls."""
        if self.directions is not None:
            tensor = tensor.unflatten(self.directions, (2, -1))
        tensor = tensor.unflatten(self.axis, (count, -1)).movedim(self.axis, 0)
        return tensor if self.directions is None else tensor.flatten(1 + self.directions, 2 + self.directions)


def axes_of_call(interface: Interface) -> list[HeadAxis | None]:
    """Return the axis of each slot of a call on pre-activations; None for resets, lengths and cu_seqlens."""
    behind = len(interface.directions)
    return [
        HeadAxis(interface.preactivation_axes.index("h")),
        HeadAxis(behind + 1),
        None,
        HeadAxis(behind + 1),
        HeadAxis(behind + 1),
        *(None,) * (SEQUENCES.stop - SEQUENCES.start),
        *[HeadAxis(behind)] * len(interface.parameters),
        *[HeadAxis(behind + 1)] * len(interface.states),
        *[HeadAxis(interface.shared_axes.index("k"))] * len(interface.shared),
        *[HeadAxis(interface.channel_axes.index("h"))] * len(interface.inputs),
    ]


@lru_cache(maxsize=256)
def axes_of_results(recipe: str, on_cpu: bool, all_states: bool) -> tuple[HeadAxis, ...] | None:
    """Return the axis of y, of each final state, and of each array that a forward saves for its backward.

    None where no kernel has more heads, or where that kernel saves other arrays.
    """
    own, wide = kernel_by(recipe), wider_recipe(recipe, 2)
    if wide is None:
        return None
    interface = own.interface
    pairs = [
        kernel.executor.saved_layouts(_BATCH, _TIME, on_cpu=on_cpu, all_states=all_states) for kernel in (own, kernel_by(wide))
    ]
    if [dtype for _, dtype in pairs[0]] != [dtype for _, dtype in pairs[1]]:
        return None
    states = {interface.states_shape(name, _BATCH, _TIME): interface.states_axes(name) for name in interface.states}
    saved = [
        _merged(interface, states[shape]) if shape in states else HeadAxis(_differing(shape, wider))
        for (shape, _), (wider, _) in zip(*pairs, strict=True)
    ]
    finals = [HeadAxis(len(interface.directions) + 1)] * len(interface.states)
    return (_merged(interface, Y_AXES[interface.layout]), *finals, *saved)


def _merged(interface: Interface, axes: str) -> HeadAxis:
    place = axes.index("h")
    return HeadAxis(place + 1, place) if interface.directions else HeadAxis(place)


def _differing(shape: Sequence[int], other: Sequence[int]) -> int:
    return next(axis for axis, (size, wider) in enumerate(zip(shape, other, strict=True)) if size != wider)


@lru_cache(maxsize=256)
def wider_recipe(recipe: str, count: int) -> str | None:
    """Return the recipe of a kernel on pre-activations with `count` times the heads, None where there is none."""
    kernel = kernel_by(recipe)
    return with_heads(recipe, count, kernel.interface, kernel.builder.cell_shape.means_over_all)


def in_pieces(
    run: Callable[[int, list[Any]], Tensors], tensors: Tensors, dims: Sequence[int | None], shared: Sequence[bool], count: int
) -> tuple[Any, ...]:
    """Return the stacked results of `count` calls, run together in powers of two so that few kernels are compiled.

    `run` takes the number of calls that run together and their tensors, with the axis of calls first; `shared` tensors have no
    such axis.
    """
    first = [
        tensor if tensor is None or is_shared else _stacked(tensor, dim, count)
        for tensor, dim, is_shared in zip(tensors, dims, shared, strict=True)
    ]
    rows = []
    for start, size in _powers(count):
        pairs = zip(first, shared, strict=True)
        rows.append(
            run(size, [tensor if tensor is None or is_shared else tensor[start : start + size] for tensor, is_shared in pairs])
        )
    return tuple(rows[0]) if len(rows) == 1 else tuple(torch.cat(row) for row in zip(*rows, strict=True))


def _stacked(tensor: Any, dim: int | None, count: int) -> Any:
    return tensor.expand(count, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _powers(count: int) -> Iterator[tuple[int, int]]:
    start = 0
    while start < count:
        size = 1 << (count - start).bit_length() - 1
        yield start, size
        start += size
