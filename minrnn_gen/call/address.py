"""Pointers that know their array in a call, so that what was launched on some arrays can be launched on others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn, cast

from minrnn_gen.plan.problem import WIDEST_COPY_BYTES
from minrnn_gen.program.number import Expr, Number, divisor_of


class Address(int):
    """An address in memory, `offset_bytes` after the start of the array in `slot` of a call; None: the array is not known."""

    slot: int | None
    offset_bytes: int

    def __new__(cls, address: int, slot: int | None = None, offset_bytes: int = 0) -> Address:
        self = super().__new__(cls, address)
        self.slot, self.offset_bytes = slot, offset_bytes
        return self

    def __add__(self, step_bytes: int) -> Address:
        if isinstance(step_bytes, Expr):
            start = int(self) - self.offset_bytes
            offset_bytes = (int(self) if self.slot is None else self.offset_bytes) + step_bytes
            return place_in(self.slot, offset_bytes, divisor_of(start))
        return Address(int(self) + step_bytes, self.slot, self.offset_bytes + step_bytes)

    def rebound(self, addresses: Sequence[int]) -> int:
        """Return the same place in arrays that start at `addresses`, by slot; itself where it is in no known array."""
        return int(self) if self.slot is None else addresses[self.slot] + self.offset_bytes


class Place:
    """A place in the array in `slot` of a call; the array has no address yet, but will start at a multiple of `alignment`.

    Without a slot the offset is an address.
    """

    __slots__ = ("alignment", "offset_bytes", "slot")

    def __init__(self, slot: int | None, offset_bytes: Number, alignment: int) -> None:
        self.slot, self.offset_bytes, self.alignment = slot, offset_bytes, alignment

    def __add__(self, step_bytes: Number) -> Place:
        return Place(self.slot, self.offset_bytes + step_bytes, self.alignment)

    def __bool__(self) -> NoReturn:
        raise TypeError("a place is no number, and so neither null nor not; compare with None what may be absent")

    def rebound(self, addresses: Sequence[int]) -> int:
        """Return the place in arrays that start at `addresses`, by slot."""
        return self.offset_bytes if self.slot is None else addresses[self.slot] + self.offset_bytes


class PointerDifference(int):
    """Distance in elements from one pointer to another: a stride between two arrays, which may be anywhere.

    Between places it has no value yet.
    """

    first: Address
    second: Address
    itemsize: int

    def __new__(cls, first: int, second: int, itemsize: int) -> PointerDifference:
        are_known = isinstance(first, int) and isinstance(second, int)
        self = super().__new__(cls, (second - first) // itemsize if are_known else 0)
        self.first, self.second, self.itemsize = address_of(first), address_of(second), itemsize
        return self

    def rebound(self, addresses: Sequence[int]) -> int:
        """Return the difference in arrays that start at `addresses`, by slot."""
        return (self.second.rebound(addresses) - self.first.rebound(addresses)) // self.itemsize


def place_in(slot: int | None, offset_bytes: Number = 0, alignment: int = WIDEST_COPY_BYTES) -> Address:
    """Return a place in the array in `slot`; to a type checker an address, since arrays hold it as one."""
    return cast(Address, Place(slot, offset_bytes, alignment))


def address_of(pointer: int) -> Address:
    """Return a pointer as an address, a plain integer as an address in no known array, and a place as it is."""
    return pointer if isinstance(pointer, Address | Place) else Address(pointer)


def pointer_divisor(pointer: int) -> int:
    """Return a power of two that divides a pointer."""
    if isinstance(pointer, Place):
        return min(pointer.alignment, divisor_of(pointer.offset_bytes))
    return divisor_of(pointer)


def has_slots(argument: Address | PointerDifference) -> bool:
    """Say whether the arrays are known."""
    if isinstance(argument, PointerDifference):
        return has_slots(argument.first) and has_slots(argument.second)
    return argument.slot is not None


def plain_numbers(arguments: Iterable[Any]) -> list[Any]:
    """Return the arguments of a launch with addresses and differences as plain integers."""
    return [int(argument) if isinstance(argument, (Address, PointerDifference)) else argument for argument in arguments]
