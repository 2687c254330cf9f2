"""Arrays of any shape as a scan kernel sees them: batch, time and channels, without a copy where the strides allow it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.config.spec import SIZE_LIMIT
from minrnn_gen.raw_scan.arguments import Recurrence

RawLayout = Literal["BTD", "BDT"]
Contiguous = Callable[[Array], Array]

# The widest row of a warp: 32 lanes of 8 channels. A larger hidden size gains nothing where the rest can be batch.
CHANNELS_WANTED = 256


@dataclass(frozen=True)
class Arrangement:
    """Arrays as `launches` times [batch, time, hidden_size], or, in layout BDT, [batch, hidden_size = 1, time].

    `batch_is_before`: the batch is the axes before time, else some of those after it.
    """

    layout: RawLayout
    launches: int
    batch: int
    time: int
    hidden_size: int
    batch_is_before: bool

    def rows(self, recurrence: Recurrence, contiguous: Contiguous, *arrays: Array) -> tuple[Array, ...]:
        """View arrays of the recurrence's shape with equal strides, [launches, ...], copies by `contiguous` where needed."""
        strides = [_strides(recurrence, array) for array in arrays]
        if None in strides or len(set(strides)) > 1:
            arrays = tuple(contiguous(array) for array in arrays)
            strides = [_strides(recurrence, array) for array in arrays]
        return tuple(self._viewed(array, *pair) for array, pair in zip(arrays, strides, strict=True) if pair)

    def _viewed(self, array: Array, before: int, time: int) -> Array:
        launch, batch = (0, before) if self.batch_is_before else (before, self.hidden_size)
        if self.layout == "BDT":
            return replace(array, shape=(self.launches, self.batch, 1, self.time), strides=(launch, batch, 1, 1))
        shape = (self.launches, self.batch, self.time, self.hidden_size)
        return replace(array, shape=shape, strides=(launch, batch, time, 1))

    def states(self, contiguous: Contiguous, array: Array | None) -> tuple[Array | None, ...]:
        """View an array of the state's shape as one [batch, hidden_size] for each launch, a copy where needed."""
        if array is None:
            return (None,) * self.launches
        shape = (self.launches, self.batch, self.hidden_size)
        whole = replace(contiguous(array), shape=shape, strides=contiguous_strides(shape))
        return tuple(whole.selected(0, index) for index in range(self.launches))


def arrangement_of(recurrence: Recurrence) -> Arrangement:
    """Return how a kernel walks arrays of the recurrence's shape, which has elements in addition to time.

    Axes before time are the batch, axes after it the channels. Without axes before time, the first axes after it are the batch,
    so that a kernel, compiled for one hidden size, serves every size of these axes. With more channels than a spec allows, each
    index before time takes its own launch, and again the first axes after time are the batch.
    """
    before, time = math.prod(recurrence.shape[: recurrence.axis]), recurrence.shape[recurrence.axis]
    behind = recurrence.shape[recurrence.axis + 1 :]
    channels = math.prod(behind)
    if channels == 1:
        return Arrangement("BDT", 1, before, time, 1, batch_is_before=True)
    if before > 1 and channels <= SIZE_LIMIT:
        return Arrangement("BTD", 1, before, time, channels, batch_is_before=True)
    hidden_size = _hidden_size(behind)
    return Arrangement("BTD", before, channels // hidden_size, time, hidden_size, batch_is_before=False)


def _hidden_size(behind: tuple[int, ...]) -> int:
    """Merge axes from the last one on until there are enough channels; of more than a spec allows, take a divisor."""
    merged = 1
    for size in reversed(behind):
        merged *= size
        if merged >= CHANNELS_WANTED:
            break
    if merged <= SIZE_LIMIT:
        return merged
    small = [divisor for divisor in range(1, math.isqrt(merged) + 1) if merged % divisor == 0]
    return max(divisor for factor in small for divisor in (factor, merged // factor) if divisor <= SIZE_LIMIT)


def _strides(recurrence: Recurrence, array: Array) -> tuple[int, int] | None:
    """Return the merged stride of the axes before time, and that of time; None where these do not merge or rows have gaps."""
    axis, shape = recurrence.axis, array.shape
    strides = array.strides if math.prod(shape) else contiguous_strides(shape)
    before = merged_stride(shape[:axis], strides[:axis])
    behind = merged_stride(shape[axis + 1 :], strides[axis + 1 :])
    run = strides[axis] if math.prod(shape[axis + 1 :]) == 1 and shape[axis] > 1 else behind
    return None if before is None or run != 1 else (before, strides[axis])


def merged_stride(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Return the stride of neighbouring axes merged into one, None where they do not merge."""
    axes = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size > 1]
    if any(stride != size * inner for (_, stride), (size, inner) in pairwise(axes)):
        return None
    return axes[-1][1] if axes else 1
