"""Limits of the hardware as constraints, and the residency of a block: what every family of kernels has to keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.plan.gpu_rates import operations_per_element
from minrnn_gen.plan.occupancy import blocks_per_sm, registers_per_thread_budget
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Constraint, Resources, can_copy_asynchronously

WARP_LANES = 32
MBARRIER_BYTES = 8
# A line of L1 and L2, and its parts, each of which comes from memory whole.
LINE_BYTES, SECTOR_BYTES = 128, 32
# What an SM reads from shared memory in a cycle (CUDA C++ programming guide: 32 banks of 4 bytes).
SHARED_BYTES_PER_CYCLE = 128
# Beyond this many times the bytes that hide the latency, a deeper pipeline only takes memory from other blocks.
USEFUL_IN_FLIGHT_FACTOR = 4
# The loops over a tile are unrolled; above this many operations NVRTC needs more than about half a second.
UNROLLED_OPERATIONS_MAX = 1200


@dataclass(frozen=True)
class Quantity:
    """A function of the variables named in `over`."""

    over: tuple[str, ...]
    of: Callable[..., int]


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
            "the stages of the pipeline and the exchange between warps live in one block's shared memory",
            shared.over,
            shared.of,
            lambda *_: gpu.shared_bytes_per_block_max,
            "bytes",
            "choose a narrower precision or a GPU with more shared memory",
        ),
    )


def copy_constraints(problem: Problem, in_flight: Quantity) -> tuple[Constraint, ...]:
    """Return the constraints on the pipeline; `in_flight` is the bytes one block keeps under way."""
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


def whole_vectors_constraint(problem: Problem) -> Constraint:
    """Let every lane have a whole vector of channels, whose number is the variable `channels_per_lane`."""
    return Constraint(
        "vector_divides_channels",
        "a lane loads and stores its channels as one vector, so hidden_size must be a multiple of it",
        ("channels_per_lane",),
        lambda channels_per_lane: problem.hidden_size % channels_per_lane,
        lambda _: 0,
        "channels left over",
    )


def vector_width_constraint(problem: Problem, also: str = "") -> Constraint:
    """Let a lane's vector be no wider than arrays are aligned; `also` says what else moves it as a whole."""
    return Constraint(
        "vector_width",
        f"a lane's vector of channels is moved by one load or store{also}",
        ("channels_per_lane",),
        lambda channels_per_lane: channels_per_lane * problem.precision.storage_bytes,
        lambda _: problem.specialization.alignment_bytes,
        "bytes",
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
    partition: Mapping[str, int] = MappingProxyType({}),
) -> Resources:
    """Derive the residency: as many blocks per SM as the estimate allows, and the registers that leaves to each thread."""
    blocks = max(1, blocks_per_sm(problem.gpu, threads, registers_estimated, sum(shared_map.values())))
    budget = registers_per_thread_budget(problem.gpu, threads, blocks)
    return Resources(
        threads, channels_per_block, registers_estimated, budget, shared_map, blocks, tile_steps, group_tiles, partition
    )
