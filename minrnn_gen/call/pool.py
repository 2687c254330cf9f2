"""Pools of states: arrays of slots; each sequence of a call reads one slot and writes one, by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minrnn_gen.call.array import Array

# A row of this slot is padding, unless the caller names another.
PAD_SLOT = -1


class PoolArguments(NamedTuple):
    """The arguments of a call on slots, not checked yet; None where one is absent."""

    slots: Any
    into_slots: Any = None
    pad_slot: Any = PAD_SLOT
    has_state: Any = None
    y: Any = None
    """Where a step on a GPU writes its y, [batch, H] without gaps; None: into an array of its own."""

    @property
    def arrays(self) -> list[Any]:
        """The arrays in the order of their places in a call, which come after all others."""
        return [self.slots, self.into_slots, self.has_state, self.y]


@dataclass(frozen=True, slots=True)
class PoolRows:
    """Which of the `count` slots of a pool each sequence reads (`slots`) and writes (`into`; None: the same).

    A sequence that reads `pad_slot` is padding: it touches nothing of the pool, and its y is 0. A sequence that writes
    `pad_slot` drops its states. On a GPU a slot that the pool lacks counts as `pad_slot`. Where `has_state` is False, a
    sequence begins with zeros. A step writes its y into `y`, if there is one.
    """

    slots: Array
    into: Array | None
    pad_slot: int
    count: int
    has_state: Array | None = None
    y: Array | None = None

    @property
    def written(self) -> Array:
        """The slots that are written."""
        return self.slots if self.into is None else self.into

    def flat(self) -> list[Array | None]:
        """Return the arrays in the order of `PoolArguments.arrays`."""
        return [self.slots, self.into, self.has_state, self.y]

    def placed(self, arrays: Sequence[Array | None]) -> PoolRows:
        """Return the same rows of a pool with these arrays, in the order of `flat`."""
        slots, into, has_state, y = arrays
        assert slots is not None
        return PoolRows(slots, into, self.pad_slot, self.count, has_state, y)
