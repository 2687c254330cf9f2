"""The search space of vector_forward, vector_backward and vector_step: lanes share the n values of a channel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum, minimum
from minrnn_gen.plan.occupancy import shared_bytes_allocated
from minrnn_gen.plan.problem import REGISTER_BYTES, WIDEST_COPY_BYTES, Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

# Addresses, strides and loop state; of a backward those of twice as many arrays. Read off compiled kernels.
REGISTERS_FIXED = {"forward": 48, "backward": 72, "step": 28}
# More of a backward in parts of time: with less, candidates are taken for feasible of which the compiler spills.
REGISTERS_IN_PARTS = 52
# Values that one step needs at once beside those that it has of each array, as of the diagonal cells.
TEMPORARIES_MAX = 16
# Beyond this many operations in the loop over a lane's values, which is unrolled, compiling takes too long.
UNROLLED_OPERATIONS_MAX = 2400
# Of a result that the next instruction waits for (arXiv 1804.06826), of a special function with what prepares its argument, of
# a shuffle, and of a value read from shared memory.
CYCLES_PER_OPERATION, CYCLES_PER_TRANSCENDENTAL, CYCLES_PER_SHUFFLE, CYCLES_PER_SHARED = 4.0, 24.0, 25.0, 30.0
# Of operations on n values products and sums are fused, and exponentials are powers of 2: counted in the machine code of
# selective, as are all counts of instructions here.
INSTRUCTIONS_PER_WIDE_OPERATION = 0.7
# Per step: its loop, and per value moved through shared memory its address and access.
INSTRUCTIONS_PER_STEP, INSTRUCTIONS_PER_ACCESS = 8.0, 3.0
# Around a tile: what every thread does, and what it does for each vector of an array and for each value of S.* that it moves.
INSTRUCTIONS_PER_TILE, INSTRUCTIONS_PER_VECTOR, INSTRUCTIONS_PER_SHARED_VALUE = 40.0, 14.0, 12.0
# At the barrier of a tile a block waits for its slowest warp; other blocks of the SM go on. Each warp of a backward waits for
# the states at its begin, from memory.
CYCLES_PER_TILE, CYCLES_PER_CHECKPOINT = 150.0, 800.0
# Around steps at once: what they read of what was prepared, the first exponential behind it, and the sums of the steps before.
CYCLES_PER_STEPS_AT_ONCE = 180.0
# Loads under way need room in L1, which is what shared memory leaves of both. These have 28 KiB more than shared memory can
# take, which takes them in steps of some 32 KiB (CUDA C++ Programming Guide, compute capabilities 8.0 to 9.0). Where there is
# too little room, the rest of a tile waits for its first part to come.
L1_BYTES_LEAST, CARVEOUT_BYTES, CYCLES_PER_LOAD = 28 * 1024, 32 * 1024, 800.0
# What is read at once, and what of it is read again for each halving of what neighbouring lanes read together: assumed.
SECTOR_BYTES, NARROW_SHARE = 32, 0.25
SHARED_ALIGNMENT, RESET_BYTES, BANKS_BYTES = 16, 4, 128
# Into how many parts the time of a sequence is divided, each for blocks of its own, where channels are few.
TIME_PARTS = (1, 2, 4, 8, 16, 32)
# What a part makes of each state: a product and a sum, and for gradients another sum.
PART_ENDS = {"forward": 2, "backward": 3, "step": 0}
# Of the instructions and functions of a step, the share that the end of a part takes besides: no sums, no y, but products.
ENDS_SHARE = {"forward": 0.85, "backward": 0.3}
# Of time in parts: memory is made ready or a kernel launched; and for each part that another waits for, a read of what its
# blocks have written.
CYCLES_OF_PARTS, CYCLES_PER_PART = 10000.0, 700.0
# Steps, and values of a lane in all of them, that overlap: with two or four steps instead of one at a time, selective scans of
# 16 values take 13 % less on an H200.
STEPS_AT_ONCE_MAX, VALUES_AT_ONCE = 4, 32


@dataclass(frozen=True)
class Block:
    """What a block has by a candidate's variables."""

    problem: Problem
    threads: int
    lanes: int
    tile_steps: int
    time_parts: int = 1

    @property
    def values(self) -> int:
        """Values of a lane, of the n of a channel."""
        return -(-self.problem.state_size // self.lanes)

    @property
    def channels(self) -> int:
        return self.threads // self.lanes

    @property
    def group_channels(self) -> int:
        return self.problem.hidden_size // self.problem.groups

    @property
    def blocks_per_sequence(self) -> int:
        return self.problem.groups * -(-self.group_channels // self.channels)

    @property
    def vector(self) -> int:
        """Values of x and y that one load or store moves."""
        problem = self.problem
        aligned = problem.specialization.alignment_bytes // problem.precision.storage_bytes
        if problem.layout == "BDT":
            return min(aligned, self.tile_steps)
        return math.gcd(aligned, self.group_channels, self.channels)

    @property
    def steps_at_once(self) -> int:
        """Steps of a tile without a loop around each, so that they overlap but for the states."""
        return max(1, min(self.tile_steps, STEPS_AT_ONCE_MAX, VALUES_AT_ONCE // self.values))

    @property
    def gradients_at_once(self) -> int:
        """The same of steps back, which have several times as many values under way."""
        return max(1, self.steps_at_once // 2)

    @property
    def prepared_alignment(self) -> int:
        """Bytes that what is prepared of one step and channel is aligned to: those of one load if there are so many."""
        size_bytes = max(1, self.problem.cell.prepared_count) * self.problem.precision.arithmetic_bytes
        return min(1 << (size_bytes - 1).bit_length(), WIDEST_COPY_BYTES)

    @property
    def prepared_bytes(self) -> int:
        """Bytes of what is prepared of one step and channel."""
        size_bytes = max(1, self.problem.cell.prepared_count) * self.problem.precision.arithmetic_bytes
        return -(-size_bytes // self.prepared_alignment) * self.prepared_alignment

    @property
    def prepared_padding(self) -> int:
        """Channels between the rows of what is prepared, so that lanes that write several rows do so in different banks."""
        return max(1, BANKS_BYTES // self.prepared_bytes // self.lanes) if self.lanes > 1 else 0

    @property
    def state_rows(self) -> int:
        """Values of a lane of all states."""
        wide = len(self.problem.cell.vector_states)
        return wide * self.values + len(self.problem.cell.states) - wide

    @property
    def row_alignment(self) -> int:
        """Bytes that a lane's values of an input S.* are aligned to."""
        return math.gcd(self.values * self.problem.precision.arithmetic_bytes, WIDEST_COPY_BYTES)

    def shared_map(self) -> dict[str, int]:
        """The parts of the block's shared memory: both buffers of each."""
        cell, precision = self.problem.cell, self.problem.precision
        if self.problem.kernel_pass == "step":
            return {}
        pitch = self.channels + (self.problem.layout == "BDT")
        row = self.tile_steps * pitch * precision.storage_bytes
        is_backward = self.problem.kernel_pass == "backward"
        gates = _aligned(len(cell.gates) * row)
        arithmetic = precision.arithmetic_bytes
        inputs = self.tile_steps * max(1, len(cell.shared)) * self.lanes * self.values * arithmetic
        parts = {"gates": 2 * gates, "y": 2 * _aligned(row), "shared_inputs": 2 * _aligned(inputs)}
        parts["resets"] = 2 * _aligned(self.tile_steps * RESET_BYTES)
        parts["prepared"] = _aligned(self.tile_steps * (self.channels + self.prepared_padding) * self.prepared_bytes)
        if is_backward:
            warps = self.threads // limits.WARP_LANES
            of_warp = max(1, len(cell.shared) * self.values) * self.lanes
            parts["gradients"] = gates
            parts["shared_gradients"] = _aligned(self.tile_steps * warps * of_warp * arithmetic)
            parts["states"] = _aligned(self.tile_steps * self.state_rows * self.threads * arithmetic)
        return parts

    def registers(self) -> int:
        """Return an estimate: the tile under way, what is carried on, and one step's own values."""
        problem, cell, precision = self.problem, self.problem.cell, self.problem.precision
        words = problem.registers_per_value
        wide_states, wide_parameters = len(cell.vector_states), len(cell.vector_parameters)
        narrow = len(cell.states) - wide_states + len(cell.parameters) - wide_parameters + 2 * len(cell.gates)
        of_value = 2 * wide_states + wide_parameters
        under_way = 0
        if problem.kernel_pass != "step":
            of_lane = -(-self.tile_steps // self.lanes) * precision.storage_bytes
            tile = -(-len(cell.gates) * of_lane // REGISTER_BYTES)
            of_step = 1 << (self.lanes * self.values - 1).bit_length()
            inputs = len(cell.shared) * -(-self.tile_steps * of_step // self.threads)
            # In parts of time two loops have them, which the compiler does not always let share registers.
            under_way = tile + inputs * (2 if self.time_parts > 1 else 1)
            # Of the other steps at once, what they read.
            is_forward = problem.kernel_pass == "forward"
            others = (self.steps_at_once if is_forward else self.gradients_at_once) - 1
            narrow += others * (cell.prepared_count + (0 if is_forward else len(cell.gates)))
            of_value += others * (len(cell.shared) + (0 if is_forward else 2 * wide_states))
        if problem.kernel_pass == "backward":
            of_value += wide_states + wide_parameters + len(cell.shared)
            narrow += len(cell.gates) + len(cell.parameters) - wide_parameters
            under_way += -(-of_lane // REGISTER_BYTES)
            under_way += REGISTERS_IN_PARTS if self.time_parts > 1 else 0
        temporaries = min(cell.operation_count // 4, TEMPORARIES_MAX)
        return REGISTERS_FIXED[problem.kernel_pass] + under_way + words * (of_value * self.values + narrow + temporaries)

    def partition(self) -> dict[str, int]:
        """What the templates need to know beside the variables."""
        problem = self.problem
        return {
            "state_size": problem.state_size,
            "groups": problem.groups,
            "vector": self.vector,
            "row_alignment": self.row_alignment,
            "prepared_alignment": self.prepared_alignment,
            "prepared_padding": self.prepared_padding,
            "steps_at_once": self.steps_at_once,
            "gradients_at_once": self.gradients_at_once,
            "state_rows": self.state_rows,
            "blocks_per_sequence": self.blocks_per_sequence,
            "group_blocks": self.blocks_per_sequence // problem.groups,
            "part_values": PART_ENDS[problem.kernel_pass] * self.state_rows * self.threads if self.time_parts > 1 else 0,
        }


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


def _at(problem: Problem, point: tuple[int, ...]) -> Block:
    """Return the block of the first variables, those of a step alone being two."""
    return Block(problem, *point, *(() if len(point) > len(("threads", "lanes")) else (1,)))


def _block(problem: Problem, candidate: Candidate) -> Block:
    return Block(
        problem, candidate["threads"], candidate["lanes"], candidate.get("tile_steps", 1), candidate.get("time_parts", 1)
    )


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    lanes = tuple(1 << power for power in range(6) if 1 << power < 2 * problem.state_size)
    threads = {"threads": (32, 64, 128, 256), "lanes": lanes}
    if problem.kernel_pass == "step":
        return threads
    # Of packed sequences each has few steps, or one of them many.
    is_divided = problem.cell.divides_time and not problem.specialization.packed
    return {**threads, "tile_steps": (4, 8, 16, 32), "time_parts": TIME_PARTS if is_divided else (1,)}


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    of_lanes = ("threads", "lanes")
    of_block = of_lanes if problem.kernel_pass == "step" else (*of_lanes, "tile_steps")
    of_registers = tuple(variables(problem))

    def unrolled(lanes: int) -> int:
        block = Block(problem, limits.WARP_LANES, lanes, 1)
        narrow = problem.cell.operation_count - problem.cell.wide_operation_count
        return narrow + block.values * problem.cell.wide_operation_count

    return (
        Constraint(
            "channels_per_block",
            "a block much wider than a group of channels is dominated: its lanes idle",
            of_lanes,
            lambda threads, lanes: 0 if problem.kernel_pass == "step" else threads // lanes,
            lambda _, lanes: max(2 * problem.hidden_size // problem.groups - 1, limits.WARP_LANES // lanes),
            "channels",
            drops_dominated=True,
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("threads",), lambda threads: threads),
            Quantity(of_registers, lambda *point: _at(problem, point).registers()),
            Quantity(of_block, lambda *point: sum(_at(problem, point).shared_map().values())),
        ),
        Constraint(
            "unrolled_operations",
            "the loop over a lane's values is unrolled, so that they stay in registers; beyond this compiling takes too long",
            ("lanes",),
            unrolled,
            lambda _: UNROLLED_OPERATIONS_MAX,
            "operations",
            "split the cell's equations into fewer operations, or give a smaller state_size",
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    block = _block(problem, candidate)
    return limits.resident(
        problem,
        threads=block.threads,
        channels_per_block=block.channels,
        registers_estimated=block.registers(),
        shared_map=block.shared_map(),
        tile_steps=block.tile_steps,
        partition=block.partition(),
    )


@dataclass(frozen=True)
class _StepOfLane:
    """What a lane does at a step: instructions, results of the special-function unit, cycles until its results are there."""

    instructions: float
    functions: float
    latency: float


def _step_of_lane(problem: Problem, block: Block) -> _StepOfLane:
    cell = problem.cell
    is_backward, is_step = problem.kernel_pass == "backward", problem.kernel_pass == "step"
    # What is prepared is shared out among the lanes of a channel.
    share = 1 / block.lanes if problem.kernel_pass == "forward" else 1.0
    operations = share * (cell.operation_count - cell.wide_operation_count)
    functions = share * (cell.transcendental_count - cell.wide_transcendental_count)
    shuffles = cell.sum_count * math.log2(block.lanes)
    accesses = share * (len(cell.gates) + cell.prepared_count) + 1 + block.values * len(cell.shared) / 4
    if is_backward:
        accesses += 2 * block.state_rows + len(cell.gates)
        shuffles += block.values * len(cell.shared) + math.log2(limits.WARP_LANES / block.lanes)
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
        instructions += INSTRUCTIONS_PER_TILE / block.tile_steps
        instructions += times * (vectors * INSTRUCTIONS_PER_VECTOR + values * INSTRUCTIONS_PER_SHARED_VALUE)
    latency = (
        CYCLES_PER_SHARED
        + CYCLES_PER_OPERATION * (operations + block.values * cell.wide_operation_count)
        + CYCLES_PER_TRANSCENDENTAL * (functions + cell.wide_transcendental_count)
        + CYCLES_PER_SHUFFLE * shuffles
        + (0.0 if is_step else CYCLES_PER_STEPS_AT_ONCE)
    )
    # Steps at once wait together.
    at_once = 1 if is_step else block.gradients_at_once if is_backward else block.steps_at_once
    return _StepOfLane(instructions, functions + block.values * cell.wide_transcendental_count, latency / at_once)


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Whichever is longest: bytes moved, instructions or special functions of the busiest SM, the chain of steps."""
    cell, gpu, block = problem.cell, problem.gpu, _block(problem, candidate)
    held, step = resources(problem, candidate), _step_of_lane(problem, block)
    cycles_per_us = gpu.sm_clock_hz / 1e6
    time: Amount = problem.time
    if problem.kernel_pass == "step":
        blocks: Amount = ceil(problem.batch * problem.hidden_size * block.lanes / block.threads)
    else:
        blocks = problem.batch * block.blocks_per_sequence * block.time_parts
        if block.time_parts > 1:
            # Twice through all tiles of a part: to its end, and again from where it begins.
            time = (
                ceil(problem.time / block.tile_steps / block.time_parts)
                * block.tile_steps
                * (1 + ENDS_SHARE[problem.kernel_pass])
            )
    warps = block.threads / limits.WARP_LANES
    of_busiest_sm = ceil(blocks / gpu.sm_count)
    rounds = ceil(of_busiest_sm / held.blocks_per_sm)
    warp_steps = of_busiest_sm * warps * time
    special = warp_steps * step.functions * limits.WARP_LANES
    together = maximum(1.0, minimum(held.blocks_per_sm, of_busiest_sm))
    # What a block has under way is a tile; the memory's latency passes while another is computed.
    in_flight = len(cell.gates) * block.tile_steps * block.channels * problem.precision.storage_bytes
    carved_out = ceil(together * shared_bytes_allocated(gpu, held.shared_bytes) / CARVEOUT_BYTES) * CARVEOUT_BYTES
    room = maximum(L1_BYTES_LEAST, gpu.shared_bytes_per_sm + L1_BYTES_LEAST - carved_out)
    loads = maximum(1.0, together * in_flight / room) if problem.kernel_pass != "step" else 1.0
    waiting = (CYCLES_PER_TILE + CYCLES_PER_LOAD * (loads - 1.0)) / block.tile_steps / together
    if problem.kernel_pass == "backward":
        waiting = waiting + CYCLES_PER_CHECKPOINT / block.tile_steps / maximum(1.0, together * warps / gpu.partitions_per_sm)
    states = (
        problem.batch * problem.hidden_size * problem.state_size * len(cell.vector_states) * problem.precision.arithmetic_bytes
    )
    # Of a step whose lanes read less than a sector of memory at once, some is read again.
    narrow = 1 + NARROW_SHARE * max(0.0, math.log2(SECTOR_BYTES / (block.lanes * problem.precision.arithmetic_bytes)))
    traffic = problem.traffic_bytes + 2 * states * (narrow if problem.kernel_pass == "step" else 1.0)
    if problem.kernel_pass == "backward":
        traffic = traffic + 2 * states * problem.time / block.tile_steps
    if block.time_parts > 1:
        traffic = traffic + problem.element_count * len(cell.gates) * problem.precision.storage_bytes
    parts_us = (CYCLES_OF_PARTS + CYCLES_PER_PART * block.time_parts) / cycles_per_us if block.time_parts > 1 else 0.0
    resident = held.blocks_per_sm * in_flight
    starved = max(1.0, gpu.bytes_in_flight_per_sm / resident) if problem.kernel_pass != "step" else 1.0
    return {
        "memory": traffic / gpu.bandwidth_bytes_per_s * starved * 1e6,
        "issue": (warp_steps * step.instructions / gpu.partitions_per_sm + rounds * time * waiting) / cycles_per_us + parts_us,
        "transcendental": special / gpu_rates.transcendentals_per_sm_cycle(gpu) / cycles_per_us + parts_us,
        "chain": rounds * time * (max(step.latency, step.instructions) + waiting) / cycles_per_us + parts_us,
        "launch": gpu_rates.launch_us(gpu),
    }


def _family(name: str) -> Family:
    return Family(
        name=name,
        entry=name,
        strategy="elementwise" if name == "vector_step" else "serial",
        copies=False,
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )


FORWARD = _family("vector_forward")
BACKWARD = _family("vector_backward")
STEP = _family("vector_step")
