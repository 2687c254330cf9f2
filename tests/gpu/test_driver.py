"""The arguments of a launch lie where the driver finds them, whatever their types and the widths of the parameters."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.call.address import Address
from minrnn_gen.gpu import driver

C_TYPES = {int: ctypes.c_int64, Address: ctypes.c_int64, np.uint32: ctypes.c_uint32, np.float32: ctypes.c_float}
C_TYPES |= {np.float64: ctypes.c_double, np.int64: ctypes.c_int64}


class Driver:
    """Takes what a driver is given."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.blocks = self.threads = (0, 0, 0)
        self.rest: tuple[int, ...] = ()
        self.slots: list[bytes] = []

    def cuLaunchKernelEx(self, configuration: Any, function: int, parameters: int, extra: None) -> int:
        its = configuration._obj
        assert extra is None
        addresses = (ctypes.c_void_p * self.count).from_address(parameters)
        self.slots = [ctypes.string_at(address, 8) for address in addresses]
        self.blocks, self.threads = tuple(its.blocks), tuple(its.threads)
        cooperative = [(one.id, one.value) for one in its.attributes[: its.attribute_count]]
        self.rest = (function, its.shared_bytes, its.stream or 0, cooperative == [(2, 1)])
        return driver.SUCCESS


@given(
    arguments=st.lists(
        st.one_of(
            st.integers(-(2**63), 2**63 - 1),
            st.integers(0, 2**48).map(Address),
            st.integers(0, 2**32 - 1).map(np.uint32),
            st.floats(width=32, allow_nan=False).map(np.float32),
            st.floats(allow_nan=False).map(np.float64),
            st.integers(-(2**63), 2**63 - 1).map(np.int64),
        ),
        min_size=1,
        max_size=30,
    ),
    is_cooperative=st.booleans(),
)
def test_arguments_lie_where_the_driver_reads_them(arguments: list[Any], is_cooperative: bool) -> None:
    seen = Driver(len(arguments))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_library", lambda: seen)
        assert driver.launch(7, (3, 64, 1024, 99, is_cooperative), arguments) == driver.SUCCESS
    assert (seen.blocks, seen.threads) == ((3, 1, 1), (64, 1, 1))
    assert seen.rest == (7, 1024, 99, is_cooperative)

    read = [C_TYPES[type(one)].from_buffer_copy(slot).value for one, slot in zip(arguments, seen.slots, strict=True)]
    assert read == arguments
    narrow = [one for one in zip(arguments, seen.slots, strict=True) if isinstance(one[0], int) and abs(one[0]) < 2**31]
    assert all(ctypes.c_int32.from_buffer_copy(slot).value == one for one, slot in narrow)


def test_sizes_are_those_of_the_driver() -> None:
    """The sizes are those of CUlaunchAttribute and CUlaunchConfig (cuda.h) where pointers have 8 bytes."""
    assert (ctypes.sizeof(driver._Attribute), ctypes.sizeof(driver._Configuration)) == (72, 56)
