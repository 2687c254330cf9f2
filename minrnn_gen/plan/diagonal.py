"""The search space of diagonal_forward.cu.j2 and diagonal_backward.cu.j2: a thread takes all steps of its channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount
from minrnn_gen.plan.problem import REGISTER_BYTES, Problem
from minrnn_gen.plan.scan import cost
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

# Addresses, strides and loop state; the backward has pointers to twice as many arrays. Read off compiled kernels.
REGISTERS_FIXED = 40
BACKWARD_REGISTERS_FIXED = 24
# Of the values of one step, those that are needed at once: about a quarter of its operations, in a long one fewer.
TEMPORARIES_MAX = 16

# Of a result that the next instruction waits for (arXiv 1804.06826), and, as fitted, of a special function with what prepares
# its argument. How much of a step is such a chain is not known here: all of it is assumed to be.
CYCLES_PER_OPERATION = 4.0
CYCLES_PER_TRANSCENDENTAL = 16.0
# In fp64 functions are long programs: 716 cycles of a step with four of their results and 11 operations, on an H200.
CYCLES_PER_TRANSCENDENTAL_FP64 = 168.0
INSTRUCTIONS_PER_ACCESS = 4.0  # predicate, an address of 64 bits, and the load or store
# Around a tile: its loop and its place, and the latency of what ends it. Fitted to 29 passes of drawn problems on an H100.
INSTRUCTIONS_PER_TILE = 80.0
CYCLES_PER_TILE = 500.0
# Registers hold one tile under way, which is asked for when the one before has arrived: all warps of an SM wait for the same
# memory, which idles for one latency with every tile. Of 1 to 64 steps a tile takes 0.38 us and its bytes over the bandwidth.
MEMORY = cost.MemoryModel(
    wanted_per_read={},
    missing_power=0.0,
    excess_share=0.0,
    tiles_not_overlapped=0.3,
    narrow_share=0.1,
    latencies_per_tile=1.0,
)


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    return {
        "threads": (32, 64, 128, 256),
        # With time contiguous a thread's vectors are steps of one channel.
        "channels_per_lane": (1,) if problem.layout == "BDT" else (1, 2, 4, 8),
        "stages": (1, 2, 4, 8, 16, 32, 64),
    }


def whole_vector_values(problem: Problem, stages: int, channels_per_lane: int = 1) -> int:
    """Return the values moved by one instruction: neighbouring steps of a channel, or a step's neighbouring channels."""
    if problem.layout == "BDT":
        return min(problem.specialization.alignment_bytes // problem.precision.storage_bytes, stages)
    return channels_per_lane


def _vectors(problem: Problem, channels_per_lane: int, stages: int) -> int:
    """Vectors of a tile and array."""
    return stages * channels_per_lane // whole_vector_values(problem, stages, channels_per_lane)


def registers(problem: Problem, channels_per_lane: int, stages: int) -> int:
    """Return an estimate: the tile at hand and the one under way, what is carried on, and one step's own values."""
    cell, precision = problem.cell, problem.precision
    words = problem.registers_per_value
    values = stages * channels_per_lane
    vectors = _vectors(problem, channels_per_lane, stages)
    # The current tile may already be unpacked, each value in registers of its own; the next one is packed as in memory.
    at_hand = values * max(1, precision.storage_bytes // REGISTER_BYTES)
    under_way = vectors * max(1, values // vectors * precision.storage_bytes // REGISTER_BYTES)
    resets = 2 * stages if problem.specialization.resets else 0
    carried = cell.step_values + len(cell.parameters) + 4 * len(cell.states) + min(cell.operation_count // 4, TEMPORARIES_MAX)
    fixed = REGISTERS_FIXED
    if problem.kernel_pass == "backward":
        fixed += BACKWARD_REGISTERS_FIXED
        carried += 2 * cell.step_values + len(cell.parameters)
    return fixed + cell.read_count * (at_hand + under_way) + resets + words * channels_per_lane * carried


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    hidden_size = problem.hidden_size
    tile = ("channels_per_lane", "stages")
    return (
        limits.whole_vectors_constraint(problem),
        limits.vector_width_constraint(problem),
        Constraint(
            "channels_per_block",
            "a block much wider than the hidden size is dominated: its lanes idle",
            ("threads", "channels_per_lane"),
            # With time contiguous a block takes channels of several sequences.
            lambda threads, channels_per_lane: 0 if problem.layout == "BDT" else threads * channels_per_lane,
            lambda *_: max(2 * hidden_size - 1, limits.WARP_LANES),
            "channels",
            drops_dominated=True,
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("threads",), lambda threads: threads),
            Quantity(tile, lambda *of_tile: registers(problem, *of_tile)),
            Quantity(("threads",), lambda _: 0),
        ),
        limits.unrolled_constraint(problem, Quantity(tile, lambda channels_per_lane, steps: channels_per_lane * steps)),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    threads, channels_per_lane, steps = (candidate[name] for name in ("threads", "channels_per_lane", "stages"))
    return limits.resident(
        problem,
        threads=threads,
        channels_per_block=threads * channels_per_lane,
        registers_estimated=registers(problem, channels_per_lane, steps),
        shared_map={},
        tile_steps=steps,
    )


@dataclass(frozen=True)
class TileWork:
    """Work of a warp's tile: what it executes, how long its steps take, one after the other, and its accesses to memory."""

    instructions: float
    latency_cycles: float
    accesses: int


def work_of_tile(problem: Problem, channels_per_lane: int, steps: int, *, gradients: int = 1, writes: bool = True) -> TileWork:
    """Return the work of a tile whose cell is computed once, and its gradients so many times."""
    cell, elements = problem.cell, steps * channels_per_lane
    arrays = cell.read_count + (cell.written_count if writes else 0)
    vectors = arrays * _vectors(problem, channels_per_lane, steps)
    # Gradients are products: about as many of a step's operations as it has states, and half of the rest.
    again = (gradients - 1) * cell.operation_count / 2
    instructions = elements * (gpu_rates.operations_per_element(problem) + again) + vectors * INSTRUCTIONS_PER_ACCESS
    instructions += INSTRUCTIONS_PER_TILE
    per_function = CYCLES_PER_TRANSCENDENTAL_FP64 if problem.precision.name == "fp64" else CYCLES_PER_TRANSCENDENTAL
    operations, special = cell.varying_counts if cell.keeps_constants else (cell.operation_count, cell.transcendental_count)
    step_cycles = CYCLES_PER_OPERATION * operations + per_function * special
    return TileWork(instructions, CYCLES_PER_TILE + max(steps * step_cycles, instructions), vectors)


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Return the cost model's terms in microseconds, those of a block that takes time tile by tile."""
    cell, block = problem.cell, resources(problem, candidate)
    threads, channels_per_lane, steps = (candidate[name] for name in ("threads", "channels_per_lane", "stages"))
    elements = steps * channels_per_lane
    work = work_of_tile(problem, channels_per_lane, steps)
    is_by_time = problem.layout == "BDT"
    blocks = (
        -(-problem.batch * problem.hidden_size // threads)
        if is_by_time
        else problem.batch * -(-problem.hidden_size // block.channels_per_block)
    )
    at_once = problem.gpu.sm_count * block.blocks_per_sm
    in_flight_bytes = threads * elements * cell.read_count * problem.precision.storage_bytes
    return cost.predicted_us(
        problem,
        cost.TiledWork(
            blocks=blocks,
            at_once=at_once,
            warps=threads // limits.WARP_LANES,
            tile_steps=steps,
            in_flight_bytes=in_flight_bytes,
            instructions=work.instructions,
            latency_cycles=work.latency_cycles,
            elements_per_lane=elements,
            memory=MEMORY,
            # Where time is contiguous each lane has a row of its own: an access takes as many lines, one in a cycle of the SM.
            shared_waves=work.accesses * limits.WARP_LANES if is_by_time else 0.0,
            row_bytes=(steps if is_by_time else limits.WARP_LANES * channels_per_lane) * problem.precision.storage_bytes,
            full_congestion=cost.congestion_of(problem, MEMORY, at_once, in_flight_bytes),
        ),
    )


def _family(name: str) -> Family:
    return Family(
        name=name,
        entry=name,
        strategy="serial",
        copies=False,
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )


FORWARD = _family("diagonal_forward")
BACKWARD = _family("diagonal_backward")
