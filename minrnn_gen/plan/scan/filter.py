"""The search space of filter_forward.cu.j2 and filter_backward.cu.j2: tiles of a row, one after the other.

A problem's cell is the recursion of the filter, whose states are its last results.
"""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import limits
from minrnn_gen.plan.gpu_rates import CYCLES_PER_L2_TRIP, launch_us
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

DOUBLE_BYTES, COUNTER_BYTES, VECTOR_BYTES = 8, 4, 16
# Addresses, sizes and loop state; and numbers in double precision, two registers each: coefficients, states, a power's line and
# sums. By orders from 1 on, read off compiled kernels.
REGISTERS = {"filter": (48, 72, 96, 112), "filter_backward": (80, 96, 112, 128)}
# Per group of tiles: its last tile publishes the state after it, and the first tile of the next group reads it.
L2_TRIPS_PER_GROUP = 2.0
# Of a tile from its first load to its last store: any, for each entry of a power, for each step of a thread, and for each block
# of the SM. All blocks wait for each other's ends, and memory for them. Fitted to 22 measurements on an H200.
CYCLES_PER_TILE, CYCLES_PER_ENTRY, CYCLES_PER_STEP, CYCLES_PER_BLOCK = 5200.0, 700.0, 40.0, 300.0
ARRAYS = {"filter": 2, "filter_backward": 4}
READ = {"filter": 1, "filter_backward": 3}
# Powers of the recursion, a matrix for each lane: for the steps of a lane, of a warp and of a tile.
TABLES = 3
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


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Memory, then the latencies of the tiles of a block, and the consecutive groups of tiles of a row."""
    gpu, block = problem.gpu, resources(problem, candidate)
    cycle_us = 1e6 / gpu.sm_clock_hz
    rows = problem.batch * problem.hidden_size
    tiles = ceil(problem.time / block.tile_steps)
    signal_bytes = rows * problem.time * problem.precision.storage_bytes
    cycles = CYCLES_PER_TILE + CYCLES_PER_ENTRY * _order(problem) ** 2
    cycles += CYCLES_PER_STEP * candidate["steps_per_thread"] + CYCLES_PER_BLOCK * block.blocks_per_sm
    rounds = ceil(rows * tiles / (gpu.sm_count * block.blocks_per_sm))
    return {
        "memory": signal_bytes * ARRAYS[problem.kernel_pass] / gpu.bandwidth_bytes_per_s * 1e6,
        "exchange": rounds * cycles * cycle_us,
        "chain": ceil(tiles / GROUP_TILES) * L2_TRIPS_PER_GROUP * CYCLES_PER_L2_TRIP * cycle_us,
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
