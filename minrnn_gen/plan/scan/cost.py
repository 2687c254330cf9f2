"""What the kernels of affine-diagonal cells have in common: the limits of the hardware and the terms of the cost model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.plan.gpu_rates import launch_us, transcendentals_per_sm_cycle
from minrnn_gen.plan.kernel_plan import total_us
from minrnn_gen.plan.occupancy import blocks_per_sm, registers_per_thread_budget
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Constraint, Resources, can_copy_asynchronously

WARP_LANES = 32
# Memory is read in bursts of 64 bytes: half of a shorter row is fetched for nothing.
BURST_BYTES = 64
# Beyond this many times the bytes that hide the latency, a deeper ring only takes memory from other blocks.
USEFUL_IN_FLIGHT_FACTOR = 4
# The loops over a tile are unrolled; above this many operations NVRTC needs more than about half a second.
UNROLLED_OPERATIONS_MAX = 1200

# Cells over complex numbers call no functions.
INSTRUCTIONS_PER_TRANSCENDENTAL = {"fp64": 20.0, "fp32": 4.5, "fp16": 4.3, "bf16": 4.3, "complex64": 0.0, "complex128": 0.0}
INSTRUCTIONS_PER_THREAD = 13.0  # where a thread begins: its indices and addresses, counted in the source of the single step
SM_BYTES_PER_CYCLE = 64.0  # what one SM draws from L2 when the others do not (arXiv 2402.13499)


@dataclass(frozen=True)
class MemoryModel:
    """How a family's copies fill the memory, fitted to measured candidates (docs/performance.md).

    Of every value that a step reads, `wanted_per_read` times the bytes that hide an idle memory's latency are wanted in flight;
    with fewer the time grows by the power `missing_power` of what is missing, with more by `excess_share` for each doubling.
    `tiles_not_overlapped`: the first tile is loaded and the last one walked without overlap. Where a block reads rows of one
    burst at a time, the memory takes longer by `narrow_share`, of two bursts half that, and so on.
    """

    wanted_per_read: Mapping[str, float]  # forward and backward
    missing_power: float
    excess_share: float
    tiles_not_overlapped: float
    narrow_share: float


@dataclass(frozen=True)
class Quantity:
    """A function of the variables named in `over`."""

    over: tuple[str, ...]
    of: Callable[..., int]


@dataclass(frozen=True)
class Walk:
    """How one block walks time: its tiles, and what a warp executes and waits for in each; `at_once` blocks are resident."""

    blocks: int
    at_once: int
    warps: int
    tile_steps: int
    in_flight_bytes: int
    instructions: float
    latency_cycles: float
    elements_per_lane: int
    memory: MemoryModel
    row_bytes: int


def operations_per_element(problem: Problem, per_transcendental: float | None = None) -> float:
    """Instructions per channel and time step: the cell's own, two walks over each state, unpacking and packing."""
    cell = problem.cell
    if per_transcendental is None:
        per_transcendental = INSTRUCTIONS_PER_TRANSCENDENTAL[problem.precision.name]
    own = cell.operation_count + cell.transcendental_count * per_transcendental
    return own + 2 * cell.read_count + cell.written_count - 1 + 4 * len(cell.states)


def hardware_constraints(gpu: GpuProfile, threads: Quantity, registers: Quantity, shared: Quantity) -> tuple[Constraint, ...]:
    """Return the limits every block has to keep; `registers` is the estimate per thread."""

    both = tuple(dict.fromkeys((*threads.over, *registers.over)))

    def registers_of_block(*values: int) -> int:
        point = dict(zip(both, values, strict=True))
        warps = threads.of(*(point[name] for name in threads.over)) // WARP_LANES
        # Each partition of the SM has its part of the registers, and one of them the most warps.
        warps = -(-warps // gpu.partitions_per_sm) * gpu.partitions_per_sm
        estimate = registers.of(*(point[name] for name in registers.over))
        unit = gpu.register_unit_per_warp
        return warps * (-(-estimate * WARP_LANES // unit) * unit)

    return (
        Constraint(
            "threads_per_block",
            "a block may not have more threads than the GPU allows",
            threads.over,
            threads.of,
            lambda *_: gpu.max_threads_per_block,
            "threads",
        ),
        Constraint(
            "registers_per_thread",
            "the steps of a tile live in registers; what does not fit is spilled to memory",
            registers.over,
            registers.of,
            lambda *_: gpu.registers_per_thread_max,
            "registers",
            "give the cell fewer gates and states, or choose a precision with narrower arithmetic",
        ),
        Constraint(
            "registers_per_block",
            "all threads of a block are resident at once, with registers allocated per warp",
            both,
            registers_of_block,
            lambda *_: gpu.registers_per_block_max,
            "registers",
        ),
        Constraint(
            "shared_bytes_per_block",
            "the ring of tiles and the exchange between warps live in one block's shared memory",
            shared.over,
            shared.of,
            lambda *_: gpu.shared_bytes_per_block_max,
            "bytes",
            "choose a narrower precision or a GPU with more shared memory",
        ),
    )


def copy_constraints(problem: Problem, in_flight: Quantity) -> tuple[Constraint, ...]:
    """Return the constraints on the ring; `in_flight` is the bytes one block keeps under way."""
    useful = USEFUL_IN_FLIGHT_FACTOR * problem.gpu.bytes_in_flight_per_sm
    asynchronous = can_copy_asynchronously(problem)
    return (
        Constraint(
            "copies_without_cp_async",
            "where copies are not asynchronous (before sm_80, or rows aligned to 2 bytes) a second stage cannot overlap",
            ("stages",),
            lambda stages: stages,
            lambda _: 1_000 if asynchronous else 1,
            "stages",
        ),
        Constraint(
            "useful_bytes_in_flight",
            f"more than {USEFUL_IN_FLIGHT_FACTOR} times bandwidth x latency in one block hides nothing more",
            in_flight.over,
            in_flight.of,
            lambda *_: useful,
            "bytes",
            drops_dominated=True,
        ),
    )


def unrolled_constraint(problem: Problem, elements: Quantity) -> Constraint:
    """Bound the unrolled code; `elements` is how many channel-steps a thread holds at once."""
    return Constraint(
        "unrolled_operations",
        "the loops over a tile are unrolled, so that steps stay in registers; beyond this the compiler takes too long",
        elements.over,
        lambda *values: round(elements.of(*values) * operations_per_element(problem)),
        lambda *_: UNROLLED_OPERATIONS_MAX,
        "operations",
        "split the cell's equations into fewer operations",
    )


def resident(
    problem: Problem,
    threads: int,
    channels_per_block: int,
    registers_estimated: int,
    shared_map: Mapping[str, int],
    tile_steps: int = 1,
    group_tiles: int = 0,
) -> Resources:
    """Derive the residency: as many blocks per SM as the estimate allows, and the registers that leaves to each thread."""
    blocks = max(1, blocks_per_sm(problem.gpu, threads, registers_estimated, sum(shared_map.values())))
    budget = registers_per_thread_budget(problem.gpu, threads, blocks)
    return Resources(threads, channels_per_block, registers_estimated, budget, shared_map, blocks, tile_steps, group_tiles)


def _congestion(problem: Problem, memory: MemoryModel, in_flight_bytes: float) -> float:
    """Return how many times the time of a copy the memory takes with so many bytes in flight on each SM."""
    gpu = problem.gpu
    wanted = memory.wanted_per_read[problem.kernel_pass] * problem.cell.read_count
    ratio = in_flight_bytes / (wanted * gpu.bytes_in_flight_per_sm)
    if ratio >= 1:
        return 1 + memory.excess_share * math.log2(ratio)
    # Never better than an idle memory would allow (Little's law).
    return float(max(ratio**-memory.missing_power, gpu.bytes_in_flight_per_sm / in_flight_bytes))


def _congestion_of_rounds(problem: Problem, walk: Walk) -> float:
    """Return the congestion on average over the blocks: in the last round there may be few of them, with little in flight."""

    def of(blocks: int) -> float:
        return blocks * _congestion(problem, walk.memory, blocks / problem.gpu.sm_count * walk.in_flight_bytes)

    rounds, left = divmod(walk.blocks, walk.at_once)
    return (rounds * of(walk.at_once) + (of(left) if left else 0.0)) / walk.blocks


def predicted_us(problem: Problem, walk: Walk) -> dict[str, float]:
    """Return the cost model's terms in microseconds.

    `memory`: bytes over the bandwidth that the bytes in flight sustain. `busiest_sm`: the bytes of the SM with
    the most blocks over what one SM can draw. `issue`: its instructions. `transcendental`: its special functions. `chain`: the
    time-serial part, tiles times the latency of one. `fill_and_drain`: what does not overlap at both ends.
    """
    gpu = problem.gpu
    cycles_per_us = gpu.sm_clock_hz / 1e6
    blocks_of_busiest_sm = math.ceil(walk.blocks / gpu.sm_count)
    rounds = math.ceil(walk.blocks / walk.at_once)
    tiles = math.ceil(problem.time / walk.tile_steps)
    warp_tiles = blocks_of_busiest_sm * tiles * walk.warps
    special = walk.elements_per_lane * WARP_LANES * problem.cell.transcendental_count
    narrow = 1 + walk.memory.narrow_share * BURST_BYTES / walk.row_bytes
    overlapping = {
        "memory": problem.traffic_bytes / gpu.bandwidth_bytes_per_s * _congestion_of_rounds(problem, walk) * narrow * 1e6,
        "busiest_sm": problem.traffic_bytes / walk.blocks * blocks_of_busiest_sm / SM_BYTES_PER_CYCLE / cycles_per_us,
        "issue": warp_tiles * walk.instructions / gpu.partitions_per_sm / cycles_per_us,
        "transcendental": warp_tiles * special / transcendentals_per_sm_cycle(gpu) / cycles_per_us,
        "chain": rounds * tiles * walk.latency_cycles / cycles_per_us,
    }
    alone = walk.memory.tiles_not_overlapped / tiles
    ends = total_us(overlapping) * alone if alone else 0.0
    return {**overlapping, "fill_and_drain": ends, "launch": launch_us(gpu)}
