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

DOUBLE_BYTES = 8
# Addresses, sizes and loop state; and numbers in double precision, two registers each: coefficients, states and earlier inputs,
# a power's line and sums. Read off compiled kernels.
REGISTERS_FIXED = {"filter": 46, "filter_backward": 40}
REGISTERS_PER_ORDER = {"filter": 14, "filter_backward": 18}
# A block stores the state after its tile, and the next one reads it, over and over, while all else moves through L2; assumed.
L2_TRIPS_PER_TILE = 4.0
# Of a result in double precision that the next instruction waits for; assumed.
CYCLES_PER_OPERATION = 8.0
# Of a step in both passes over it: those of any order, and for each earlier result; of products in double precision two, since
# these are issued at half the rate. Counted in the source.
INSTRUCTIONS_PER_STEP = 14.0
INSTRUCTIONS_PER_ORDER = {"filter": 12.0, "filter_backward": 16.0}
LOADS_AT_ONCE = 8  # as in the template
ARRAYS = {"filter": 2, "filter_backward": 4}
# Beyond it powers and states would fill the registers.
ORDER_MOST = 4


def _order(problem: Problem) -> int:
    return len(problem.cell.states)


def _registers(problem: Problem) -> int:
    return REGISTERS_FIXED[problem.kernel_pass] + REGISTERS_PER_ORDER[problem.kernel_pass] * _order(problem)


def _shared_map(problem: Problem, threads: int, steps_per_thread: int) -> Mapping[str, int]:
    order, warps = _order(problem), threads // limits.WARP_LANES
    levels = threads.bit_length() - 1
    doubles = (levels + 1) * order**2 + (warps + 1) * order + 1
    tiles = threads * (steps_per_thread + 1) * problem.precision.storage_bytes
    if problem.kernel_pass == "filter":
        return {"exchange": doubles * DOUBLE_BYTES, "steps": tiles}
    sums = warps * (2 * order + 1)
    return {"exchange": doubles * DOUBLE_BYTES, "sums": sums * DOUBLE_BYTES, "steps": 3 * tiles}


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    tile = ("threads", "steps_per_thread")
    return limits.hardware_constraints(
        problem.gpu,
        Quantity(("threads",), lambda threads: threads),
        Quantity(("threads",), lambda _: _registers(problem)),
        Quantity(tile, lambda threads, steps: sum(_shared_map(problem, threads, steps).values())),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    threads, steps = candidate["threads"], candidate["steps_per_thread"]
    shared_map = _shared_map(problem, threads, steps)
    return limits.resident(problem, threads, 1, _registers(problem), shared_map, tile_steps=threads * steps)


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """The longest of memory, instructions and a row's tiles, each of which waits for the state before it.

    A block loads, computes and stores by turns: what memory and instructions do meanwhile is up to the other blocks of an SM.
    """
    gpu, block, order = problem.gpu, resources(problem, candidate), _order(problem)
    steps, cycle_us = candidate["steps_per_thread"], 1e6 / gpu.sm_clock_hz
    rows = problem.batch * problem.hidden_size
    tiles = ceil(problem.time / block.tile_steps)
    itemsize, arrays = problem.precision.storage_bytes, ARRAYS[problem.kernel_pass]
    in_flight_bytes = block.blocks_per_sm * block.threads * min(steps, LOADS_AT_ONCE) * itemsize
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
        "chain": tiles * L2_TRIPS_PER_TILE * CYCLES_PER_L2_TRIP * cycle_us,
        "prefetch": minimum(memory_us, issue_us) / block.blocks_per_sm,
        "launch": launch_us(gpu),
    }


def _family(name: str) -> Family:
    return Family(
        name=name,
        entry=name,
        strategy="chained",
        copies=False,
        variables=lambda _: {"threads": (64, 128, 256, 512), "steps_per_thread": (8, 16, 32)},
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )


FORWARD = _family("filter_forward")
BACKWARD = _family("filter_backward")
