"""Waves of shared memory: what the hardware documents of lanes that meet in a bank, and what is one access."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("waves", Path(__file__).parents[1] / "banks" / "waves.py")
assert _SPEC and _SPEC.loader
waves = importlib.util.module_from_spec(_SPEC)
sys.modules["waves"] = waves
_SPEC.loader.exec_module(waves)

LANES = range(waves.WARP_LANES)


@pytest.mark.parametrize(
    ("stride_bytes", "size_bytes", "expected"),
    [
        (4, 4, (1, 1)),  # a row
        (0, 4, (1, 1)),  # the same word for all
        (8, 4, (2, 1)),
        (128, 4, (32, 1)),  # a column
        (132, 4, (1, 1)),  # of rows with a word of padding
        (2, 2, (1, 1)),  # two lanes in a word
        (8, 8, (2, 2)),
        (16, 16, (4, 4)),
        (32, 16, (8, 4)),  # four channels of a lane, two of them at once
        (64, 16, (16, 4)),
    ],
)
def test_lanes_of_one_stride(stride_bytes: int, size_bytes: int, expected: tuple[int, int]) -> None:
    assert waves.waves_of([stride_bytes * lane for lane in LANES], size_bytes) == expected


def test_members_of_a_struct_side_by_side_are_one_access() -> None:
    """Four floats of 16 bytes a lane, read one after the other: a load of 16 bytes, which no lane shares a bank with."""
    read = [waves.Access(code, lane, 16 * lane + 4 * code, 4, False) for lane in LANES for code in range(4)]
    (found,) = waves.served(read, dict.fromkeys(range(4), "statement")).values()
    assert (found.times, found.waves, found.least) == (1, 4, 4)
    apart = [waves.Access(code, lane, 16 * lane + 4 * code, 4, False) for lane in LANES for code in range(4)]
    found_apart = waves.served(apart, {code: code for code in range(4)}).values()
    assert [(of_one.waves, of_one.least) for of_one in found_apart] == [(4, 1)] * 4


def test_a_write_between_keeps_reads_apart() -> None:
    """A read after a write may see the write."""
    of_lane = [(0, 4 * 0, False), (1, 128, True), (0, 4 * 1, False)]
    accesses = [waves.Access(code, lane, 8 * lane + byte, 4, writes) for lane in LANES for code, byte, writes in of_lane]
    found = waves.served(accesses, {0: "reads", 1: "writes"})
    assert found["reads", False].times == 2 and found["writes", True].times == 1


def test_accesses_keep_their_order() -> None:
    """A swizzled row has its pieces in another order than its neighbours: all lanes read the same piece at once."""
    pieces = [(piece, row) for piece in range(2) for row in range(8)]
    accesses = [waves.Access(0, row, 128 * row + (4 * piece ^ row) * 16, 16, False) for piece, row in pieces]
    (found,) = waves.served(accesses, {0: "statement"}).values()
    assert (found.times, found.waves, found.least) == (2, 2, 2)
