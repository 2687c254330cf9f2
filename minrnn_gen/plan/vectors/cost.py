"""The cost of kernels for n values per channel: bytes, instructions, special functions, and the chain of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.limits import LINE_BYTES, SECTOR_BYTES
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum, minimum, where
from minrnn_gen.plan.occupancy import blocks_per_sm, shared_bytes_allocated
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Resources
from minrnn_gen.plan.vectors.block import Block

# Latencies: of a result that the next instruction waits for (arXiv 1804.06826), of a special function with the preparation of
# its argument, of a shuffle, and of a value read from shared memory.
CYCLES_PER_OPERATION, CYCLES_PER_TRANSCENDENTAL, CYCLES_PER_SHUFFLE, CYCLES_PER_SHARED = 4.0, 24.0, 25.0, 30.0
# Latency of operations on a lane's values, which are independent: fitted to selective scans on an H200, as is the share of
# issue slots that their warps fill, two on each scheduler.
CYCLES_PER_WIDE_OPERATION = {"forward": 5.7, "backward": 1.2, "step": 4.0}
ISSUE_SHARE = {"forward": 1.0, "backward": 0.67}
# Fewer warps fill fewer, more of them a little more: fitted to n of 32, 64 and 128.
WARPS_OF_SHARE, FEWER_WARPS_POWER, MORE_WARPS, MORE_WARPS_POWER = 2.0, 0.75, 2.0, 0.25
# Of operations on n values products and sums are fused, and exponentials are powers of 2: counted in the machine code of
# selective, as are all counts of instructions here.
INSTRUCTIONS_PER_WIDE_OPERATION = 0.7
# Per step: its loop, and per value moved through shared memory its address and access.
INSTRUCTIONS_PER_STEP, INSTRUCTIONS_PER_ACCESS = 8.0, 3.0
# Around a tile: what every thread does, and what it does for each vector of an array and for each value of S.* that it moves.
INSTRUCTIONS_PER_TILE = {"forward": 530.0, "backward": 400.0}
INSTRUCTIONS_PER_VECTOR, INSTRUCTIONS_PER_SHARED_VALUE = 8.0, 20.0
# At the barrier of a tile a block waits for its slowest warp, the longer the more there are; other blocks of the SM go on. Each
# warp of a backward waits for the states at its begin, from memory.
CYCLES_PER_TILE, CYCLES_PER_CHECKPOINT = {"forward": 740.0, "backward": 900.0}, 800.0
WARPS_AT_BARRIER = 4
# Around steps at once: reads of prepared values, the first exponential after them, and the sums of the steps before.
CYCLES_PER_STEPS_AT_ONCE = 180.0
# Loads to registers under way need room in L1, which is what shared memory leaves of both. These have 28 KiB more than shared
# memory can take, which takes them in steps of some 32 KiB (CUDA C++ Programming Guide, compute capabilities 8.0 to 9.0). Where
# there is too little room, the rest of a tile waits for its first part to come.
L1_BYTES_LEAST, CARVEOUT_BYTES, CYCLES_PER_LOAD = 28 * 1024, 32 * 1024, 800.0
# What of a sector is read again for each halving of what neighbouring lanes read together: assumed.
NARROW_SHARE = 0.25
# A load or store of a warp takes L1 a cycle for each line that it touches: one for each channel whose lanes have less than a
# line of its state. Steps of 64 x 64 x 128 in fp32, 64 sequences, took 83 us with 2 lanes on an H200, and 75 with 8, although
# these read parameters of n values, too.
# A load of a step waits for its address, and a state for what is read with it: latencies of memory one after the other. The
# blocks of an SM start one after the other. Both fitted to decode steps of selective on an H200.
STEP_LATENCIES, CYCLES_PER_BLOCK = 2.5, 100.0
# Between decode steps the text of their kernel leaves the caches. What each of its instructions takes to come, as kernels with
# one, two and four sequences for each lane showed on an H200.
INSTRUCTION_NS = 1.6
# Steps of the draft that is planned for, four of its own and two of the last one again; and instructions around them, of loads,
# addresses and stores, counted in the machine code of selective scans of 64 x 64 x 128 next to 107 of a step.
STEPS_OF_DRAFT, INSTRUCTIONS_AROUND_DRAFT = 6, 550.0
# The share of a step's instructions and functions that the end of a part adds: no sums and no y.
ENDS_SHARE = {"forward": 0.73, "backward": 0.3}
# Time in parts, which begins when all else has ended: memory is made ready or a kernel launched; and for each part that another
# waits for, the values that its blocks have written go through L2. Other blocks of a forward compute meanwhile, if there are
# any left. Fitted to drawn problems on an H100.
CYCLES_OF_PARTS, CYCLES_PER_PART = 1000.0, {"forward": 1520.0, "backward": 2200.0}
# More blocks than planned for count only where they fit with so many registers more than estimated. Then none of 501 compiled
# kernels has fewer blocks on an SM than it is counted with, where 14 had: 256 threads of 133 registers for 127, one for two.
REGISTERS_OFF = 10


@dataclass(frozen=True)
class _StepOfLane:
    """Work of a lane at a step: instructions, results of the special-function unit, cycles until its results are ready."""

    instructions: float
    functions: float
    latency: float


def _step_of_lane(problem: Problem, block: Block) -> _StepOfLane:
    cell = problem.cell
    is_backward, is_step = problem.kernel_pass == "backward", problem.kernel_pass == "step"
    # The lanes of a channel share the preparation.
    share = 1 / block.lanes if problem.kernel_pass == "forward" or problem.specialization.replays else 1.0
    operations = share * (cell.operation_count - cell.wide_operation_count)
    functions = share * (cell.transcendental_count - cell.wide_transcendental_count)
    # Those at one distance between lanes wait for each other, and not within.
    distances = math.log2(block.lanes) if cell.sum_count else 0.0
    shuffles = cell.sum_count * distances
    accesses = share * (len(cell.gates) + cell.prepared_count) + 1 + block.values * len(cell.shared) / 4
    if is_backward:
        # The states before the first of steps at once are kept, those before the others computed again: a product and a sum.
        accesses += 2 * block.state_rows / block.gradients_at_once + len(cell.gates)
        operations += 2 * block.state_rows * (1 - 1 / block.gradients_at_once)
        across = math.log2(limits.WARP_LANES / block.lanes)
        shuffles += block.values * len(cell.shared) + across
        distances += across
    instructions = (
        operations
        + functions * gpu_rates.INSTRUCTIONS_PER_TRANSCENDENTAL[problem.precision.name]
        + block.values * cell.wide_operation_count * INSTRUCTIONS_PER_WIDE_OPERATION
        + 2 * shuffles
        + accesses * INSTRUCTIONS_PER_ACCESS
        + INSTRUCTIONS_PER_STEP
    )
    if not is_step:
        times = 2 if is_backward else 1
        vectors = (times * len(cell.gates) + 1) / block.lanes / block.vector
        values = len(cell.shared) * block.lanes * block.values / block.threads
        instructions += INSTRUCTIONS_PER_TILE[problem.kernel_pass] / block.tile_steps
        instructions += times * (vectors * INSTRUCTIONS_PER_VECTOR + values * INSTRUCTIONS_PER_SHARED_VALUE)
    latency = (
        CYCLES_PER_SHARED
        + CYCLES_PER_OPERATION * operations
        + CYCLES_PER_WIDE_OPERATION[problem.kernel_pass] * block.values * cell.wide_operation_count
        + CYCLES_PER_TRANSCENDENTAL * (functions + cell.wide_transcendental_count)
        + CYCLES_PER_SHUFFLE * distances
        + (0.0 if is_step else CYCLES_PER_STEPS_AT_ONCE)
    )
    # Steps at once wait together.
    at_once = 1 if is_step else block.gradients_at_once if is_backward else block.steps_at_once
    return _StepOfLane(instructions, functions + block.values * cell.wide_transcendental_count, latency / at_once)


def predicted_us(problem: Problem, block: Block, held: Resources) -> Mapping[str, Amount]:
    """Whichever is longest: bytes moved, instructions or special functions of the busiest SM, the chain of steps."""
    return _step_us(problem, block, held) if problem.kernel_pass == "step" else _walk_us(problem, block, held)


def _step_us(problem: Problem, block: Block, held: Resources) -> Mapping[str, Amount]:
    """The cost of a single step."""
    cell, gpu, step = problem.cell, problem.gpu, _step_of_lane(problem, block)
    cycles_per_us = gpu.sm_clock_hz / 1e6
    blocks = ceil(problem.batch * problem.hidden_size * block.lanes / block.threads)
    of_busiest_sm = ceil(blocks / gpu.sm_count)
    warps = of_busiest_sm * block.threads / limits.WARP_LANES
    rounds = ceil(of_busiest_sm / held.blocks_per_sm)
    wide_parameters = len(cell.vector_parameters)
    instructions = step.instructions + INSTRUCTIONS_PER_ACCESS * block.values * wide_parameters
    steps, around = (STEPS_OF_DRAFT, INSTRUCTIONS_AROUND_DRAFT) if problem.specialization.replays else (1, 0.0)
    instructions += (steps - 1) * step.instructions + around
    special = warps * steps * step.functions * limits.WARP_LANES
    state_bytes = block.values * len(cell.vector_states) * problem.state_value_bytes
    # If the lanes of a step read less than a sector of memory at once, some of it is read again.
    read_at_once = block.lanes * block.chunk * problem.state_value_bytes
    narrow = 1 + NARROW_SHARE * max(0.0, math.log2(SECTOR_BYTES / read_at_once))
    channels_of_warp, row_bytes = limits.WARP_LANES / block.lanes, problem.state_size * problem.state_value_bytes
    of_channel = math.ceil(read_at_once / LINE_BYTES) if row_bytes >= LINE_BYTES else row_bytes / LINE_BYTES
    lines = 2 * len(cell.vector_states) * block.values / block.chunk * channels_of_warp * of_channel
    # Parameters are read for each sequence, from L2 but for the first.
    parameters = problem.batch * problem.hidden_size * problem.state_size * wide_parameters * problem.precision.arithmetic_bytes
    traffic = problem.traffic_bytes + 2 * _state_bytes(problem) * narrow
    through_l2 = (traffic + parameters) / gpu_rates.L2_BANDWIDTH_FACTOR
    resident = minimum(held.blocks_per_sm, of_busiest_sm) * (block.threads * max(1, state_bytes))
    starved = maximum(1.0, gpu.bytes_in_flight_per_sm / resident)
    waiting = STEP_LATENCIES * gpu.memory_latency_ns * 1e-3
    starts = minimum(held.blocks_per_sm, of_busiest_sm) * CYCLES_PER_BLOCK / cycles_per_us
    text_us = step.instructions * INSTRUCTION_NS * 1e-3
    return {
        "memory": maximum(traffic, through_l2) / gpu.bandwidth_bytes_per_s * starved * 1e6,
        "issue": warps * instructions / gpu.partitions_per_sm / cycles_per_us,
        "lines": warps * lines / cycles_per_us,
        "transcendental": special / gpu_rates.transcendentals_per_sm_cycle(gpu) / cycles_per_us,
        "chain": rounds * ((steps * (step.latency + step.instructions) + around) / cycles_per_us + waiting) + starts + text_us,
        "launch": gpu_rates.launch_us(gpu),
    }


def _share_of_warps(warps: Amount) -> Amount:
    """Return the share of issue slots that so many warps on a scheduler fill, relative to two warps."""
    fewer, more = minimum(1.0, warps / WARPS_OF_SHARE), maximum(1.0, warps / WARPS_OF_SHARE)
    return fewer**FEWER_WARPS_POWER * minimum(more, MORE_WARPS) ** MORE_WARPS_POWER


def _sums_bytes(problem: Problem, block: Block) -> Amount:
    of_block = problem.batch * problem.time * problem.state_size * len(problem.cell.shared) * problem.precision.arithmetic_bytes
    return block.blocks_per_sequence * of_block


def _blocks_per_sm(problem: Problem, block: Block, held: Resources) -> int:
    """Return how many blocks an SM holds: those planned for, or more where the compiler surely needs fewer registers."""
    if problem.kernel_pass == "backward":
        return held.blocks_per_sm
    registers = min(block.registers_compiled() + REGISTERS_OFF, problem.gpu.registers_per_thread_max)
    return max(held.blocks_per_sm, blocks_per_sm(problem.gpu, block.threads, registers, held.shared_bytes))


def _parts_us(problem: Problem, block: Block, rounds: Amount) -> Amount:
    """Return what parts of time add to the rest: blocks of all `rounds` but one compute while others wait."""
    if block.time_parts == 1:
        return 0.0
    gpu, kernel_pass = problem.gpu, problem.kernel_pass
    waiting = CYCLES_PER_PART[kernel_pass] * block.time_parts
    if kernel_pass == "backward":
        return (CYCLES_OF_PARTS + waiting) / (gpu.sm_clock_hz / 1e6)
    # Each part reads a map, a product and an end, for every state of each part before it.
    reads = block.time_parts * (block.time_parts - 1) / 2
    of_part = problem.batch * block.blocks_per_sequence * block.threads * block.state_rows
    maps_bytes = reads * of_part * 2 * problem.precision.arithmetic_bytes
    reading_us = maps_bytes / (gpu_rates.L2_BANDWIDTH_FACTOR * gpu.bandwidth_bytes_per_s) * 1e6
    return waiting / rounds / (gpu.sm_clock_hz / 1e6) + reading_us


def _state_bytes(problem: Problem) -> Amount:
    states = problem.batch * problem.hidden_size * problem.state_size * len(problem.cell.vector_states)
    return states * problem.state_value_bytes


def _steps_walked(problem: Problem, block: Block, share_of_parts: float) -> Amount:
    """Return the steps of a block: twice through a part, to its end, where it has to find it, and from where it begins."""
    if block.time_parts == 1:
        return problem.time
    steps = ceil(problem.time / block.tile_steps / block.time_parts) * block.tile_steps
    return steps * (1 + share_of_parts * ENDS_SHARE[problem.kernel_pass])


def _walk_us(problem: Problem, block: Block, held: Resources) -> Mapping[str, Amount]:
    """The cost of a walk over time."""
    cell, gpu, step = problem.cell, problem.gpu, _step_of_lane(problem, block)
    cycles_per_us = gpu.sm_clock_hz / 1e6
    blocks = problem.batch * block.blocks_per_sequence * block.time_parts
    warps = block.threads / limits.WARP_LANES
    of_busiest_sm = ceil(blocks / gpu.sm_count)
    most = _blocks_per_sm(problem, block, held)
    rounds = ceil(of_busiest_sm / most)
    time = walked = _steps_walked(problem, block, 1.0)
    if problem.kernel_pass == "forward":
        # The last part has no end to find, which saves work where its blocks follow others.
        walked = where(rounds > 1, _steps_walked(problem, block, 1 - 1 / block.time_parts), time)
    warp_steps = of_busiest_sm * warps * walked
    special = warp_steps * step.functions * limits.WARP_LANES
    together = maximum(1.0, minimum(most, of_busiest_sm))
    # What a block has under way is a tile; the memory's latency passes while another is computed.
    in_flight = len(cell.gates) * block.tile_steps * block.channels * problem.precision.storage_bytes
    carved_out = ceil(together * shared_bytes_allocated(gpu, held.shared_bytes) / CARVEOUT_BYTES) * CARVEOUT_BYTES
    room = maximum(L1_BYTES_LEAST, gpu.shared_bytes_per_sm + L1_BYTES_LEAST - carved_out)
    loads = 1.0 if block.copies_gates else maximum(1.0, together * in_flight / room)
    slowest = math.log2(2 * warps) / math.log2(2 * WARPS_AT_BARRIER)
    waiting = (CYCLES_PER_TILE[problem.kernel_pass] * slowest + CYCLES_PER_LOAD * (loads - 1.0)) / block.tile_steps / together
    if problem.kernel_pass == "backward":
        waiting = waiting + CYCLES_PER_CHECKPOINT / block.tile_steps / maximum(1.0, together * warps / gpu.partitions_per_sm)
    traffic = problem.traffic_bytes + 2 * _state_bytes(problem)
    if problem.kernel_pass == "backward":
        traffic = traffic + 2 * _state_bytes(problem) * problem.time / block.tile_steps
    if block.time_parts > 1:
        traffic = traffic + problem.element_count * len(cell.gates) * problem.precision.storage_bytes
    parts_us = _parts_us(problem, block, rounds)
    if problem.kernel_pass == "backward":
        # Gradients of S.* of every block are added up by another launch.
        parts_us = parts_us + _sums_bytes(problem, block) / gpu.bandwidth_bytes_per_s * 1e6
    # Blocks left over after all others run with fewer, and take longer than their part.
    left = of_busiest_sm - (rounds - 1) * most
    filled = ISSUE_SHARE[problem.kernel_pass] * gpu.partitions_per_sm
    of_rounds = (rounds - 1) * most / _share_of_warps(most * warps / gpu.partitions_per_sm)
    of_rounds = of_rounds + left / _share_of_warps(left * warps / gpu.partitions_per_sm)
    issued = of_rounds * warps * walked * step.instructions / filled
    resident = most * in_flight
    starved = max(1.0, gpu.bytes_in_flight_per_sm / resident)
    return {
        "memory": traffic / gpu.bandwidth_bytes_per_s * starved * 1e6,
        "issue": (issued + rounds * walked * waiting) / cycles_per_us,
        "transcendental": special / gpu_rates.transcendentals_per_sm_cycle(gpu) / cycles_per_us,
        "chain": rounds * time * (max(step.latency, step.instructions) + waiting) / cycles_per_us,
        "exchange": parts_us,
        "launch": gpu_rates.launch_us(gpu),
    }
