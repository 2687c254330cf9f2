"""The search space of filter_forward.cu.j2 and filter_backward.cu.j2: tiles of a row, one after the other.

A problem's cell is the recursion of the filter, whose states are its last results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from minrnn_gen.plan import limits
from minrnn_gen.plan.gpu_rates import CYCLES_PER_L2_TRIP, launch_us
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil, minimum
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

DOUBLE_BYTES, COUNTER_BYTES, VECTOR_BYTES = 8, 4, 16
# Addresses, sizes and loop state; and numbers in double precision, two registers each: coefficients, states, a power's line and
# sums. By orders from 1 on, read off compiled kernels.
REGISTERS = {"filter": (48, 72, 96, 112), "filter_backward": (80, 96, 112, 128)}
# Per group of tiles: its last tile publishes the state after it, and the first tile of the next group reads it.
L2_TRIPS_PER_GROUP = 2.0
# Latency of a tile: for each entry of a power, and for each state at each of a thread's steps. Fitted to nine drawn problems on
# an H200 (docs/lab-notes.md), as are the next two.
CYCLES_PER_ENTRY, CYCLES_PER_STATE = 340.0, 40.0
# Of a tile for each entry of a power, whatever the tile's threads: blocks of an SM add up.
SM_CYCLES_PER_ENTRY = 52.0
# The launch that fills the workspace, the coefficients from an idle memory, and what makes powers of them.
CYCLES_OF_START = 28_500.0
# Of a state at each step, two when the tile's end is made and two when its results are; in double precision, which an SM of
# compute capability 9.0 has 64 of in a cycle (CUDA C++ Programming Guide, arithmetic instruction throughput).
PRODUCTS_PER_STATE, PRODUCTS_PER_SM_CYCLE = 4, 64
ARRAYS = {"filter": 2, "filter_backward": 4}
READ = {"filter": 1, "filter_backward": 3}
# Powers of the recursion, a matrix for each lane: for the steps of a lane, of a warp and of a tile. At each of the levels half
# the lanes multiply their own, which they read and write.
TABLES, LEVELS = 3, 5
BANKS, BANK_BYTES = 32, 4
# One for each lane of the warp that reads what they publish.
GROUP_TILES = limits.WARP_LANES
# Beyond it powers and states would fill the registers.
ORDER_MOST = 4


def _order(problem: Problem) -> int:
    return len(problem.cell.states)


def _registers(problem: Problem) -> int:
    return REGISTERS[problem.kernel_pass][_order(problem) - 1]


def _shared_map(problem: Problem, threads: int, steps_per_thread: int, stages: int) -> Mapping[str, int]:
    order, warps = _order(problem), threads // limits.WARP_LANES
    doubles = TABLES * limits.WARP_LANES * order**2 + 2 * warps * order
    numbers, flags = stages + 1, TABLES
    exchange = doubles * DOUBLE_BYTES + (numbers + numbers % 2 + flags + flags % 2) * COUNTER_BYTES
    tile = threads * (steps_per_thread * problem.precision.storage_bytes + VECTOR_BYTES)
    sums = warps * (2 * order + 2) * DOUBLE_BYTES if problem.kernel_pass == "filter_backward" else 0
    begin = -(-(exchange + sums) // VECTOR_BYTES) * VECTOR_BYTES
    parts = {"exchange": begin - sums, "steps": READ[problem.kernel_pass] * stages * tile}
    return parts | ({"sums": sums} if sums else {})


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    tile = ("threads", "steps_per_thread", "stages")
    return limits.hardware_constraints(
        problem.gpu,
        Quantity(("threads",), lambda threads: threads),
        Quantity(("threads",), lambda _: _registers(problem)),
        Quantity(tile, lambda *tile: sum(_shared_map(problem, *tile).values())),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    threads, steps = candidate["threads"], candidate["steps_per_thread"]
    shared_map = _shared_map(problem, threads, steps, candidate["stages"])
    return limits.resident(problem, threads, 1, _registers(problem), shared_map, threads * steps, GROUP_TILES)


def _cycles_per_powers(order: int) -> float:
    """Return the accesses to shared memory in which each lane of a warp reads its own power.

    Where powers are a multiple of the banks apart, lanes that read at once meet in the same banks.
    """
    entries = order**2
    words = entries * DOUBLE_BYTES // BANK_BYTES
    read_at_once = math.gcd(words, VECTOR_BYTES // BANK_BYTES)
    conflicts = max(1.0, math.gcd(words, BANKS) / read_at_once)
    return entries * DOUBLE_BYTES * limits.WARP_LANES / (BANKS * BANK_BYTES) * conflicts


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Return the cost model's terms in microseconds.

    `memory`: the signal, which tiles do not overlap. `exchange`: the turns of the blocks that are resident, each as long as the
    latency of a tile, what its SM does, and the tiles of its row that have started before. `chain`: the consecutive groups of
    tiles of a row. `fill_and_drain`: what comes before the first tile.
    """
    gpu, block, order = problem.gpu, resources(problem, candidate), _order(problem)
    cycle_us = 1e6 / gpu.sm_clock_hz
    rows = problem.batch * problem.hidden_size
    row_tiles = ceil(problem.time / block.tile_steps)
    tiles = rows * row_tiles
    resident = gpu.sm_count * block.blocks_per_sm
    steps, warps = candidate["steps_per_thread"], candidate["threads"] / limits.WARP_LANES
    signal_bytes = rows * problem.time * problem.precision.storage_bytes
    before = minimum(minimum(resident, tiles) / rows, GROUP_TILES)
    latency = CYCLES_PER_ENTRY * order**2 + CYCLES_PER_STATE * order * steps + CYCLES_PER_L2_TRIP * before
    # All warps read powers, and the first one twice.
    powers = _cycles_per_powers(order)
    products = candidate["threads"] * steps * order * PRODUCTS_PER_STATE
    of_sm = products / PRODUCTS_PER_SM_CYCLE + SM_CYCLES_PER_ENTRY * order**2 + (warps + 1) * powers
    last = ceil((tiles - tiles // resident * resident) / gpu.sm_count)
    turns = ceil(tiles / resident) * latency + (tiles // resident * block.blocks_per_sm + last) * of_sm
    starting = minimum(ceil(tiles / gpu.sm_count), block.blocks_per_sm) * TABLES * LEVELS * powers
    return {
        "memory": signal_bytes * ARRAYS[problem.kernel_pass] / gpu.bandwidth_bytes_per_s * 1e6,
        "exchange": turns * cycle_us,
        "chain": ceil(row_tiles / GROUP_TILES) * L2_TRIPS_PER_GROUP * CYCLES_PER_L2_TRIP * cycle_us,
        "fill_and_drain": (CYCLES_OF_START + starting) * cycle_us,
        "launch": launch_us(gpu),
    }


def _family(name: str) -> Family:
    return Family(
        name=name,
        entry=name,
        strategy="chained",
        copies=True,
        variables=lambda _: {"threads": (64, 128, 256), "steps_per_thread": (8, 16, 32, 64), "stages": (1, 2)},
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )


FORWARD = _family("filter_forward")
BACKWARD = _family("filter_backward")
