"""Addresses that know which array of a call they are in, so that what was launched on some arrays can be launched on others."""

from __future__ import annotations

from collections.abc import Sequence


class Address(int):
    """An address in memory, `offset_bytes` behind the start of the array `number` of a call; None: of no known array."""

    number: int | None
    offset_bytes: int

    def __new__(cls, address: int, number: int | None = None, offset_bytes: int = 0) -> Address:
        self = super().__new__(cls, address)
        self.number, self.offset_bytes = number, offset_bytes
        return self

    def __add__(self, step_bytes: int) -> Address:
        return Address(int(self) + step_bytes, self.number, self.offset_bytes + step_bytes)

    def among(self, starts: Sequence[int]) -> int:
        """Return the same place in arrays that start elsewhere; only for an address of a known array."""
        assert self.number is not None
        return starts[self.number] + self.offset_bytes


class Gap(int):
    """How many elements it is from one address to another: a stride between two arrays, which may be anywhere."""

    first: Address
    second: Address
    itemsize: int

    def __new__(cls, first: int, second: int, itemsize: int) -> Gap:
        self = super().__new__(cls, (second - first) // itemsize)
        self.first, self.second, self.itemsize = address_of(first), address_of(second), itemsize
        return self

    def among(self, starts: Sequence[int]) -> int:
        """Return the gap between the same places in arrays that start elsewhere; only for addresses of known arrays."""
        return (self.second.among(starts) - self.first.among(starts)) // self.itemsize


def address_of(pointer: int) -> Address:
    """Return a pointer as an address, which is of no known array where it has not been one all along."""
    return pointer if isinstance(pointer, Address) else Address(pointer)


def is_known(argument: Address | Gap) -> bool:
    """Say whether the arrays are known."""
    if isinstance(argument, Gap):
        return is_known(argument.first) and is_known(argument.second)
    return argument.number is not None
