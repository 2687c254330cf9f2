"""In how many waves a warp's accesses to shared memory are served: 32 banks of 4 bytes, one word of each bank in a wave.

Of 8 bytes a lane half of the warp is served at once, of 16 bytes a quarter (CUDA C++ Programming Guide, Shared Memory).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WARP_LANES, BANKS, BANK_BYTES, WIDEST_BYTES = 32, 32, 4, 16


class Access(NamedTuple):
    """An access of a thread: the code that does it, the first byte, how many, and whether it writes."""

    code: int
    thread: int
    byte: int
    size_bytes: int
    writes: bool


@dataclass
class Served:
    """The accesses of one place in the code: how often a warp did them, in how many waves, and in how few it could."""

    times: int = 0
    waves: int = 0
    least: int = 0

    @property
    def excess(self) -> int:
        """The waves beyond the least."""
        return self.waves - self.least


def waves_of(first_bytes: Sequence[int], size_bytes: int) -> tuple[int, int]:
    """Return the waves of one access by the lanes at these places, and the least that as many lanes take."""
    size_bytes = max(size_bytes, BANK_BYTES)
    lanes_at_once = WARP_LANES * BANK_BYTES // size_bytes
    waves = least = 0
    for start in range(0, len(first_bytes), lanes_at_once):
        at_once = first_bytes[start : start + lanes_at_once]
        words = {(byte + offset) // BANK_BYTES for byte in at_once for offset in range(0, size_bytes, BANK_BYTES)}
        waves += max(Counter(word % BANKS for word in words).values())
        least += 1
    return waves, least


def served(accesses: Iterable[Access], statement_of: Mapping[int, Hashable]) -> dict[tuple[Hashable, bool], Served]:
    """Return what each statement took, by its name and whether it writes; `statement_of` gives that of each code.

    What a statement reads or writes side by side, without anything of the other kind between, is one access, as compilers make
    one of it: the host's takes each member of a struct by itself.
    """
    of_threads: dict[int, list[Access]] = defaultdict(list)
    for access in accesses:
        of_threads[access.thread].append(access)
    of_warps: dict[tuple[int, Hashable, bool, int, int], list[tuple[int, int]]] = defaultdict(list)
    for thread, its in of_threads.items():
        seen: Counter[tuple[Hashable, bool, int]] = Counter()
        for statement, writes, byte, size_bytes in _merged(its, statement_of):
            kind = statement, writes, size_bytes
            of_warps[thread // WARP_LANES, statement, writes, size_bytes, seen[kind]].append((thread, byte))
            seen[kind] += 1
    found: dict[tuple[Hashable, bool], Served] = defaultdict(Served)
    for (_, statement, writes, size_bytes, _), lanes in of_warps.items():
        waves, least = waves_of([byte for _, byte in sorted(lanes)], size_bytes)
        of_statement = found[statement, writes]
        of_statement.times += 1
        of_statement.waves += waves
        of_statement.least += least
    return found


def _merged(accesses: Sequence[Access], statement_of: Mapping[int, Hashable]) -> Iterator[tuple[Hashable, bool, int, int]]:
    """Yield (statement, whether it writes, first byte, bytes) of a thread's accesses, neighbours as one."""
    window: list[Access] = []
    for access in accesses:
        if window and window[0].writes != access.writes:
            yield from _of_window(window, statement_of)
            window = []
        window.append(access)
    yield from _of_window(window, statement_of)


def _of_window(window: Sequence[Access], statement_of: Mapping[int, Hashable]) -> Iterator[tuple[Hashable, bool, int, int]]:
    of_statements: dict[Hashable, list[tuple[int, Access]]] = defaultdict(list)
    for order, access in enumerate(window):
        of_statements[statement_of[access.code]].append((order, access))
    for statement, its in of_statements.items():
        merged: list[tuple[int, int, int]] = []  # when the first was, from which byte, and to which
        for order, access in sorted(its, key=lambda one: (one[1].byte, one[0])):
            end = access.byte + access.size_bytes
            if merged and merged[-1][2] == access.byte and _is_one(merged[-1][1], end):
                first, begin, _ = merged.pop()
                merged.append((min(first, order), begin, end))
            else:
                merged.append((order, access.byte, end))
        for _, begin, end in sorted(merged):
            yield statement, window[0].writes, begin, end - begin


def _is_one(first: int, ends: int) -> bool:
    """Say whether bytes are within one aligned access of the widest kind."""
    return first // WIDEST_BYTES == (ends - 1) // WIDEST_BYTES
