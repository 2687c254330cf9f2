"""Threads of native code: how many a call takes, how they divide the work, and which library owns them."""

from __future__ import annotations

import sys
from typing import NamedTuple

from minrnn_gen.build.cpu_kernel import ThreadPool, openmp_threads, own_threads
from minrnn_gen.build.store import Store
from minrnn_gen.call.interface import Interface
from minrnn_gen.codegen.cpu_source import CpuPass
from minrnn_gen.precision import Precision
from minrnn_gen.program.number import Number, divided_up, least

# Waking another thread takes microseconds: for less than so many multiply-adds it is not worth it.
MULTIPLY_ADDS_LEAST = 1 << 17
# Threads that share the units of a step synchronise after each step, which costs as much as so many multiply-adds.
STEP_MULTIPLY_ADDS_LEAST = 1 << 15
# The cost of a cell's equations per unit, in multiply-adds.
POINTWISE_MULTIPLY_ADDS = 64
# A core's own cache holds this much of R: of a larger R each thread takes a part, so that all caches together hold it.
CORE_CACHE_BYTES = 1 << 19
# A step over fewer rows in total than this, for each of which R is read, uses R unpacked: packing would take longer.
ROWS_READ_LEAST = {"forward": 2, "backward": 4}
ROWS_AT_ONCE = 6
# Unpacked R serves a backward of one head whose units fill its panels, in its arithmetic type.
PANEL_UNITS = 64


# Bits of a call's `packs`: R is packed, and the previous launch left it packed in the workspace.
PACKS, IS_PACKED = 1, 2


class Schedule(NamedTuple):
    """How a call runs: how many threads, whether they divide units or rows, and whether R is packed (`PACKS`, `IS_PACKED`)."""

    threads: Number
    splits_units: Number
    packs: Number


def threads_of(store: Store) -> ThreadPool:
    """Return the threads to run on: torch's OpenMP threads where torch is loaded, else our own."""
    return (openmp_threads() if "torch" in sys.modules else None) or own_threads(store)


def schedule(
    interface: Interface,
    kernel_pass: CpuPass,
    rows: Number,
    steps: Number,
    has_initial: Number,
    most_threads: Number,
    has_rounds: bool,
) -> Schedule:
    """Return how a call of these sizes is run on at most so many threads."""
    hidden, gates = interface.hidden_size, len(interface.recurrent_gates)
    if not gates:
        return pointwise_schedule(rows, hidden * (interface.state_size or 1), steps, most_threads)
    step = rows * hidden * (gates * interface.head_dim + POINTWISE_MULTIPLY_ADDS)
    threads = _threads_for(step * steps, most_threads)
    packs = _packs(interface, kernel_pass, rows, steps if has_rounds else steps - 1 + has_initial, has_rounds)
    R_bytes = gates * hidden * interface.head_dim * interface.precision.arithmetic_bytes
    if threads > 1 and (R_bytes > CORE_CACHE_BYTES or rows < 2 * threads):
        if step >= STEP_MULTIPLY_ADDS_LEAST:
            return Schedule(threads, splits_units=True, packs=packs)
        threads = least(threads, rows)
    return Schedule(threads, splits_units=False, packs=packs)


def pointwise_schedule(rows: Number, channels: int, steps: Number, most_threads: Number) -> Schedule:
    """Return how a call without a product runs: threads divide the rows, or the channels where there are fewer rows."""
    threads = _threads_for(rows * channels * POINTWISE_MULTIPLY_ADDS * steps, most_threads)
    return Schedule(threads, splits_units=rows < threads, packs=False)


def _threads_for(multiply_adds: Number, most_threads: Number) -> Number:
    return most_threads if multiply_adds >= MULTIPLY_ADDS_LEAST else 1


def _packs(interface: Interface, kernel_pass: CpuPass, rows: Number, products: Number, has_rounds: bool) -> Number:
    """Say whether R is packed for so many products of so many rows; a backward with rounds needs the gates in their order."""
    reads_lines = kernel_pass == "forward" or (
        not has_rounds and interface.heads == 1 and interface.head_dim % PANEL_UNITS == 0 and _is_wide(interface.precision)
    )
    return not reads_lines or products * divided_up(rows, ROWS_AT_ONCE) > ROWS_READ_LEAST[kernel_pass]


def _is_wide(precision: Precision) -> bool:
    return precision.storage_dtype == precision.arithmetic_dtype
