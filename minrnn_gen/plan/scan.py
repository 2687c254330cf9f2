"""What the kernels of affine-diagonal cells have in common: the limits of the hardware and the terms of the cost model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minrnn_gen.gpu_profile import GpuProfile
from minrnn_gen.plan.occupancy import blocks_per_sm, registers_per_thread_budget
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Constraint, Resources, can_copy_asynchronously

WARP_LANES = 32
# Time from a launch on an idle stream to the kernel's end, measured with empty kernels on an H200.
LAUNCH_US = 2.5
# A dependent fused multiply-add issues after 4 cycles since Volta (arXiv 1804.06826, table 4.1).
DEPENDENT_CYCLES = 4
# A shared-memory load takes 23 to 33 cycles from Volta to Hopper (arXiv 2402.13499).
SHARED_LATENCY_CYCLES = 30
# Block barrier of 128 to 1024 threads on an H200: 17 to 46 ns, about this many cycles per warp beyond a fixed part.
BARRIER_CYCLES = 30
BARRIER_CYCLES_PER_WARP = 2
# Special-function results per SM and cycle (CUDA C++ Programming Guide, arithmetic instruction throughput).
TRANSCENDENTALS_PER_SM_CYCLE = 16
# Four schedulers per SM issue one instruction for 32 lanes each per cycle.
LANE_OPERATIONS_PER_SM_CYCLE = 128
# What one SM can draw from L2 when the others do not (64 B per cycle, arXiv 2402.13499), the bound of an uneven load.
SM_BYTES_PER_CYCLE = 64
# Beyond this many times the bytes that hide the latency, a deeper ring only takes memory from other blocks.
USEFUL_IN_FLIGHT_FACTOR = 4
# The loops over a tile are unrolled; above this many operations NVRTC needs more than about half a second.
UNROLLED_OPERATIONS_MAX = 1200
# fp64 functions are inlined polynomials, roughly this many times the instructions of their fp32 forms.
FP64_OPERATION_FACTOR = 4


@dataclass(frozen=True)
class Quantity:
    """A function of the variables named in `over`."""

    over: tuple[str, ...]
    of: Callable[..., int]


def operations_per_element(problem: Problem) -> int:
    """Instructions per channel and time step: the cell's own, the two walks over each state, loads, conversions and a store."""
    cell = problem.cell
    factor = FP64_OPERATION_FACTOR if problem.precision.arithmetic_bytes == 8 else 1
    own = cell.operation_count + 6 * cell.transcendental_count
    return factor * own + 5 * len(cell.states) + 3 * len(cell.gates) + 4


def hardware_constraints(gpu: GpuProfile, threads: Quantity, registers: Quantity, shared: Quantity) -> tuple[Constraint, ...]:
    """Return the limits every block has to keep; `registers` is the estimate per thread."""

    both = tuple(dict.fromkeys((*threads.over, *registers.over)))

    def registers_of_block(*values: int) -> int:
        point = dict(zip(both, values, strict=True))
        warps = threads.of(*(point[name] for name in threads.over)) // WARP_LANES
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
            "overlap",
            "with cp.async one stage is strictly dominated: it waits for every tile",
            ("stages",),
            lambda _: 2 if asynchronous else 1,
            lambda stages: stages,
            "stages",
        ),
        Constraint(
            "useful_bytes_in_flight",
            f"more than {USEFUL_IN_FLIGHT_FACTOR} times bandwidth x latency in one block hides nothing more",
            in_flight.over,
            in_flight.of,
            lambda *_: useful,
            "bytes",
        ),
    )


def unrolled_constraint(problem: Problem, elements: Quantity) -> Constraint:
    """Bound the unrolled code; `elements` is how many channel-steps a thread holds at once."""
    return Constraint(
        "unrolled_operations",
        "the loops over a tile are unrolled, so that steps stay in registers; beyond this the compiler takes too long",
        elements.over,
        lambda *values: elements.of(*values) * operations_per_element(problem),
        lambda *_: UNROLLED_OPERATIONS_MAX,
        "operations",
        "split the cell's equations into fewer operations",
    )


def resident(
    problem: Problem, threads: int, channels_per_block: int, registers_estimated: int, shared_map: Mapping[str, int]
) -> Resources:
    """Derive the residency: as many blocks per SM as the estimate allows, and the registers that leaves to each thread."""
    occupancy = blocks_per_sm(problem.gpu, threads, registers_estimated, sum(shared_map.values()))
    blocks = max(1, occupancy.blocks_per_sm)
    budget = registers_per_thread_budget(problem.gpu, threads, blocks)
    return Resources(threads, channels_per_block, registers_estimated, budget, shared_map, blocks)


def predicted_us(
    problem: Problem, resources: Resources, blocks: int, in_flight_bytes: int, tile_steps: int, tile_chain_cycles: float
) -> dict[str, float]:
    """Return the cost model's terms in microseconds; they overlap, so the slowest counts, plus the launch.

    `memory`: bytes over the bandwidth that the bytes in flight can sustain (Little's law). `busiest_sm`: the bytes of the SM
    with the most blocks over what one SM can draw. `issue`: instructions, `transcendental`: special functions.
    `chain`: the time-serial part, tiles times the latency of one.
    """
    gpu, cell = problem.gpu, problem.cell
    cycles_per_us = gpu.sm_clock_hz / 1e6
    rounds = -(-blocks // (gpu.sm_count * resources.blocks_per_sm))
    blocks_of_busiest_sm = -(-blocks // gpu.sm_count)
    resident_blocks = min(resources.blocks_per_sm, blocks / gpu.sm_count)
    sustained = min(1.0, resident_blocks * in_flight_bytes / gpu.bytes_in_flight_per_sm)
    busiest_share = blocks_of_busiest_sm / blocks
    tiles = -(-problem.time // tile_steps)
    work = problem.element_count * busiest_share
    return {
        "memory": problem.traffic_bytes / (gpu.bandwidth_bytes_per_s * sustained) * 1e6,
        "busiest_sm": problem.traffic_bytes * busiest_share / SM_BYTES_PER_CYCLE / cycles_per_us,
        "issue": work * operations_per_element(problem) / LANE_OPERATIONS_PER_SM_CYCLE / cycles_per_us,
        "transcendental": work * 2 * cell.transcendental_count / TRANSCENDENTALS_PER_SM_CYCLE / cycles_per_us,
        "chain": rounds * tiles * tile_chain_cycles / cycles_per_us,
        "launch": LAUNCH_US,
    }
