"""The memory of a run: which arrays stay when it is over, and where the others lie in one piece."""

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

    `held`: the arrays that stay, by slot, each an allocation of its own; `scratch`: the slots of all others and where they
    start in `piece`, which is None where there are none; `fills`: what is done before anything else.
    """

    held: tuple[tuple[int, Allocation], ...]
    scratch: tuple[tuple[int, int], ...]
    piece: Allocation | None
    fills: tuple[FillOperation, ...]

    @property
    def in_c(self) -> tuple[Any, ...]:
        """The arrays that stay, the piece, and what is in it, as `replay.h` takes them."""
        return self.held, self.piece, self.scratch


def laid_out(allocated: Sequence[Allocated], held: Collection[int], bytes_dtype: Any) -> Layout:
    """Lay out arrays, of which those in the slots `held` stay; `bytes_dtype` is a byte in the arrays' library."""
    fills = [
        FillOperation(Address(0, slot), size_bytes, allocation.fill)
        for slot, allocation, size_bytes in allocated
        if slot in held and allocation.fill is not None and size_bytes
    ]
    scratch: list[tuple[int, int]] = []
    # Those of one fill lie one after the other: it is done once.
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
