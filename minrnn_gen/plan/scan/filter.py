"""The search space of filter_forward.cu.j2 and filter_backward.cu.j2: tiles of a row, one after the other.

A problem's cell is the recursion of the filter, whose states are its last results.
"""

from __future__ import annotations

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
REGISTERS = {"filter": (48, 64, 96, 112), "filter_backward": (80, 96, 112, 128)}
# A tile publishes its end, and the next ones read it while others load or store; assumed.
L2_TRIPS_PER_TILE = 2.0
# Of a result in double precision that the next instruction waits for; assumed.
CYCLES_PER_OPERATION = 8.0
# Of a step in both passes over it: those of any order, and for each state; of products in double precision two, since these are
# issued at half the rate. Counted in the source.
INSTRUCTIONS_PER_STEP = 14.0
INSTRUCTIONS_PER_ORDER = {"filter": 12.0, "filter_backward": 16.0}
ARRAYS = {"filter": 2, "filter_backward": 4}
READ = {"filter": 1, "filter_backward": 3}
# Of powers of the recursion, a matrix for each lane: of the steps of a lane, of a warp and of a tile.
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
    """The longest of memory, instructions and a row's tiles, each of which waits for the state before it.

    A block loads, computes and stores by turns: what memory and instructions do meanwhile is up to the other blocks of an SM.
    """
    gpu, block, order = problem.gpu, resources(problem, candidate), _order(problem)
    steps, cycle_us = candidate["steps_per_thread"], 1e6 / gpu.sm_clock_hz
    rows = problem.batch * problem.hidden_size
    tiles = ceil(problem.time / block.tile_steps)
    itemsize, arrays = problem.precision.storage_bytes, ARRAYS[problem.kernel_pass]
    in_flight_bytes = block.blocks_per_sm * block.tile_steps * itemsize * READ[problem.kernel_pass] * candidate["stages"] / 2
    starved = max(1.0, gpu.bytes_in_flight_per_sm / in_flight_bytes)
    memory_us = rows * problem.time * itemsize * arrays / gpu.bandwidth_bytes_per_s * 1e6 * starved
    warps = block.blocks_per_sm * block.threads / limits.WARP_LANES
    instructions = steps * (INSTRUCTIONS_PER_STEP + INSTRUCTIONS_PER_ORDER[problem.kernel_pass] * order)
    latency_cycles = gpu.memory_latency_ns * 1e-9 * gpu.sm_clock_hz + 2 * steps * order * CYCLES_PER_OPERATION
    rounds = ceil(rows * tiles / (gpu.sm_count * block.blocks_per_sm))
    issue_us = rounds * max(warps * instructions / gpu.partitions_per_sm, latency_cycles) * cycle_us
    return {
        "memory": memory_us,
        "issue": issue_us,
        "chain": ceil(tiles / GROUP_TILES) * L2_TRIPS_PER_TILE * CYCLES_PER_L2_TRIP * cycle_us,
        "prefetch": minimum(memory_us, issue_us) / (block.blocks_per_sm * candidate["stages"]),
        "launch": launch_us(gpu),
    }


def _family(name: str) -> Family:
    return Family(
        name=name,
        entry=name,
        strategy="chained",
        copies=True,
        variables=lambda _: {"threads": (64, 128, 256, 512), "steps_per_thread": (8, 16, 32, 64), "stages": (1, 2)},
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )


FORWARD = _family("filter_forward")
BACKWARD = _family("filter_backward")
