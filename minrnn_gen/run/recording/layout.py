"""The memory of a run: the arrays that outlive it, and the offsets of all others in one allocation."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minrnn_gen.call.address import Address
from minrnn_gen.gpu import graph
from minrnn_gen.gpu.memory import Allocation
from minrnn_gen.run.recording.operations import FillOperation


class Allocated(NamedTuple):
    """An array that a run allocated, and its bytes."""

    slot: int
    allocation: Allocation
    size_bytes: int

    @classmethod
    def of(cls, slot: int, allocation: Allocation, itemsize: int) -> Allocated:
        """Return the array of a slot."""
        return cls(slot, allocation, math.prod(allocation.shape) * itemsize)


@dataclass(frozen=True, slots=True)
class Layout:
    """Allocations of a run.

    `held`: the arrays that outlive the run, by slot, each allocated separately; `scratch`: the slots of all others and their
    offsets in `piece`, None without scratch; `fills`: the operations that come first.
    """

    held: tuple[tuple[int, Allocation], ...]
    scratch: tuple[tuple[int, int], ...]
    piece: Allocation | None
    fills: tuple[FillOperation, ...]

    @property
    def in_c(self) -> tuple[Any, ...]:
        """The arrays that outlive the run, the piece, and its contents, in the form of `replay.h`."""
        return self.held, self.piece, self.scratch


def laid_out(allocated: Sequence[Allocated], held: Collection[int], bytes_dtype: Any) -> Layout:
    """Lay out arrays; the arrays in the slots `held` outlive the run. `bytes_dtype`: the arrays' library's dtype of a byte."""
    fills = [
        FillOperation(Address(0, slot), size_bytes, allocation.fill)
        for slot, allocation, size_bytes in allocated
        if slot in held and allocation.fill is not None and size_bytes
    ]
    scratch: list[tuple[int, int]] = []
    # Arrays of the same fill are adjacent, so that one operation fills them.
    end = 0
    for fill in dict.fromkeys(allocation.fill for slot, allocation, _ in allocated if slot not in held):
        begin, first = end, len(scratch)
        for slot, allocation, size_bytes in allocated:
            if slot not in held and allocation.fill == fill:
                scratch.append((slot, end))
                end += graph.padded(size_bytes)
        if fill is not None and end > begin:
            fills.append(FillOperation(Address(0, scratch[first][0]), end - begin, fill))
    piece = Allocation((end,), (1,), bytes_dtype, None) if scratch else None
    by_slot = tuple((slot, allocation._replace(fill=None)) for slot, allocation, _ in allocated if slot in held)
    return Layout(by_slot, tuple(scratch), piece, tuple(fills))
