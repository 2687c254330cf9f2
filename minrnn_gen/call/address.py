"""Addresses that know which array of a call they are in, so that what was launched on some arrays can be launched on others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Address(int):
    """An address in memory, `offset_bytes` behind the start of the array in `slot` of a call; None: of no known array."""

    slot: int | None
    offset_bytes: int

    def __new__(cls, address: int, slot: int | None = None, offset_bytes: int = 0) -> Address:
        self = super().__new__(cls, address)
        self.slot, self.offset_bytes = slot, offset_bytes
        return self

    def __add__(self, step_bytes: int) -> Address:
        return Address(int(self) + step_bytes, self.slot, self.offset_bytes + step_bytes)

    def rebound(self, addresses: Sequence[int]) -> int:
        """Return the same place in arrays that start at `addresses`, by slot; only for an address of a known array."""
        assert self.slot is not None
        return addresses[self.slot] + self.offset_bytes


class PointerDifference(int):
    """How many elements it is from one address to another: a stride between two arrays, which may be anywhere."""

    first: Address
    second: Address
    itemsize: int

    def __new__(cls, first: int, second: int, itemsize: int) -> PointerDifference:
        self = super().__new__(cls, (second - first) // itemsize)
        self.first, self.second, self.itemsize = address_of(first), address_of(second), itemsize
        return self

    def rebound(self, addresses: Sequence[int]) -> int:
        """Return the difference in arrays that start at `addresses`, by slot; only for addresses of known arrays."""
        return (self.second.rebound(addresses) - self.first.rebound(addresses)) // self.itemsize


def address_of(pointer: int) -> Address:
    """Return a pointer as an address, which is of no known array where it has not been one all along."""
    return pointer if isinstance(pointer, Address) else Address(pointer)


def has_slots(argument: Address | PointerDifference) -> bool:
    """Say whether the arrays are known."""
    if isinstance(argument, PointerDifference):
        return has_slots(argument.first) and has_slots(argument.second)
    return argument.slot is not None


def plain_numbers(arguments: Iterable[Any]) -> list[Any]:
    """Return the arguments of a launch with addresses and differences as plain integers."""
    return [int(argument) if isinstance(argument, (Address, PointerDifference)) else argument for argument in arguments]
