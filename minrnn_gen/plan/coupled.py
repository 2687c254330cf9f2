"""The search space of coupled_forward.cu.j2: coupled states as maps, composed over lanes, warps and blocks along time."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.diagonal import whole_vector_values
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum, minimum, where
from minrnn_gen.plan.problem import PhaseShape, Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

DOUBLE_BYTES = 8
# Addresses, strides and loop state. Read off compiled kernels.
REGISTERS_FIXED = 80
# Where a thread takes many tiles, without states in double precision and with.
REGISTERS_OF_CHUNK = (8, 32)
# Of the values of one step and of one composition, those that are needed at once.
TEMPORARIES_MAX = 16
# Of a wider search most kernels would differ in nothing that matters.
PHASES_MOST = 4
# Tiles that share the states before them: as many as a warp has lanes, or those that a lane composes one after the other.
GROUP_TILES_OF_LANE = 4
# A product or sum in double precision is issued at half the rate.
INSTRUCTIONS_PER_DOUBLE = 2.0
INSTRUCTIONS_PER_ACCESS = 4.0  # address, predicate, and the load or store
INSTRUCTIONS_PER_VALUE = 3.0  # of a map, from lane to lane
INSTRUCTIONS_PER_TILE = 100.0
# Of a block's tile: what waits for each other from its loads to its stores, in each phase, and of its steps.
CYCLES_PER_TILE = 700.0
CYCLES_PER_PHASE = 500.0
CYCLES_PER_WARP = 60.0
CYCLES_PER_STEP = 20.0
# A block publishes, and others read: trips through L2, with what is composed around them.
L2_TRIPS_PER_HOP = 8.0


def _values(problem: Problem, phase: PhaseShape) -> int:
    """Numbers of a map that are exchanged."""
    entries = {"memory": 0, "full": phase.size**2}.get(phase.form, phase.size)
    return entries + phase.size + (problem.specialization.resets or phase.form == "memory")


def _is_double(problem: Problem, phase: PhaseShape) -> bool:
    return phase.form == "full" or problem.precision.arithmetic_bytes == DOUBLE_BYTES


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    lanes = (1,) if problem.layout == "BDT" else (8, 16, 32)
    return {
        "threads": (64, 128, 256, 512),
        "channel_lanes": lanes,
        "channels_per_lane": (1,),
        "stages": (2, 4, 8, 16, 32),
        "chunk_tiles": (1, 32),
    }


def _registers(problem: Problem, steps: int, chunk_tiles: int) -> int:
    """Return an estimate: the tile at hand and the one under way, maps that are composed, and one step's own values."""
    cell, precision, words = problem.cell, problem.precision, problem.registers_per_value
    at_hand = steps * max(1, precision.storage_bytes // 4)
    results = 1 + len(cell.states) * (problem.specialization.states_out == "storage")
    values = max((_values(problem, phase) * (2 if _is_double(problem, phase) else words) for phase in cell.phases), default=0)
    carried = cell.step_values + len(cell.parameters) + 4 * len(cell.states) + min(cell.operation_count // 4, TEMPORARIES_MAX)
    resets = 2 * steps if problem.specialization.resets else 0
    packed = -(-steps * precision.storage_bytes // 4)
    fixed = REGISTERS_FIXED
    if chunk_tiles > 1:
        fixed += REGISTERS_OF_CHUNK[any(phase.form == "full" for phase in cell.phases)]
    return fixed + cell.read_count * (at_hand + packed) + results * packed + resets + 4 * values + words * carried


def _shared_map(problem: Problem, threads: int, channel_lanes: int) -> Mapping[str, int]:
    values = max((_values(problem, phase) for phase in problem.cell.phases), default=0)
    warps = threads // limits.WARP_LANES
    return {"exchange": DOUBLE_BYTES * channel_lanes * (2 * warps * values + len(problem.cell.states))}


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    cell, storage_bytes = problem.cell, problem.precision.storage_bytes
    memory = max((phase.size for phase in cell.phases if phase.form == "memory"), default=0)
    return (
        Constraint(
            "phases",
            "each phase has a composition of its own over time; beyond a few of them a thread for all steps is better",
            ("stages",),
            lambda _: len(cell.phases) if cell.phases else PHASES_MOST + 1,
            lambda _: PHASES_MOST,
            "phases",
        ),
        Constraint(
            "tiles_known",
            "sequences that lie one after the other have numbers of tiles that are unknown before the launch",
            ("stages",),
            lambda _: int(problem.specialization.packed),
            lambda _: 0,
        ),
        Constraint(
            "chunk_of_doubles",
            "a phase after a full map would read its states in the cell's arithmetic over all steps of a thread",
            ("chunk_tiles",),
            lambda chunk_tiles: (
                len(cell.phases) if chunk_tiles > 1 and any(phase.form == "full" for phase in cell.phases) else 1
            ),
            lambda _: 1,
            "phases",
        ),
        Constraint(
            "steps_of_memory",
            "finite memory is that of a thread's own steps",
            ("stages",),
            lambda _: memory,
            lambda steps: steps,
            "steps",
        ),
        Constraint(
            "channels_per_block",
            "lanes without a channel idle",
            ("channel_lanes",),
            lambda channel_lanes: channel_lanes,
            lambda _: max(2 * problem.hidden_size - 1, 8),
            "channels",
            drops_dominated=True,
        ),
        Constraint(
            "whole_bursts",
            "neighbouring channels of a step, or steps of a channel, are read in whole sectors",
            ("channel_lanes", "stages"),
            lambda *_: 16 if problem.layout == "BDT" else 0,
            lambda _, steps: steps * storage_bytes,
            "bytes",
            drops_dominated=True,
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("threads",), lambda threads: threads),
            Quantity(("stages", "chunk_tiles"), lambda *of_thread: _registers(problem, *of_thread)),
            Quantity(("threads", "channel_lanes"), lambda *of: sum(_shared_map(problem, *of).values())),
        ),
        Constraint(
            "unrolled_operations",
            "the loops over a thread's steps are unrolled, so that they stay in registers; more takes the compiler too long",
            ("stages",),
            lambda steps: round(steps * _operations_of_step(problem)),
            lambda _: limits.UNROLLED_OPERATIONS_MAX,
            "operations",
            "split the cell's equations into fewer operations",
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    threads, channel_lanes, steps = (candidate[name] for name in ("threads", "channel_lanes", "stages"))
    turns = limits.WARP_LANES // channel_lanes
    phases = problem.cell.phases
    return limits.resident(
        problem,
        threads=threads,
        channels_per_block=channel_lanes,
        registers_estimated=_registers(problem, steps, candidate["chunk_tiles"]),
        shared_map=_shared_map(problem, threads, channel_lanes),
        tile_steps=threads // channel_lanes * steps,
        group_tiles=turns * max(1, min(GROUP_TILES_OF_LANE, 32 // turns)),
        partition={
            "map_bytes": DOUBLE_BYTES * channel_lanes * sum(_values(problem, phase) for phase in phases),
            "state_bytes": DOUBLE_BYTES * channel_lanes * len(problem.cell.states),
        },
    )


def _composition(problem: Problem, phase: PhaseShape) -> float:
    """Instructions of one map after another."""
    columns = {"memory": 0, "full": phase.size}.get(phase.form, 1)
    rate = INSTRUCTIONS_PER_DOUBLE if _is_double(problem, phase) else 1.0
    return rate * phase.size**2 * (columns + 1)


def _operations_of_step(problem: Problem) -> float:
    """Instructions of a step in every phase and in the last pass over it."""
    cell = problem.cell
    operations, special = cell.varying_counts
    own = operations + special * gpu_rates.INSTRUCTIONS_PER_TRANSCENDENTAL[problem.precision.name]
    passes = (1 + len(cell.phases)) * (own + cell.read_count) + cell.written_count

    def of_map(phase: PhaseShape) -> float:
        return phase.operation_count + phase.size**2 + (0.0 if phase.is_constant else _composition(problem, phase))

    return passes + sum(map(of_map, cell.phases))


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """The longest of memory, instructions, and of a block's tiles, one after the other.

    Where blocks share a column each tile waits for those before it.
    """
    cell, gpu, block = problem.cell, problem.gpu, resources(problem, candidate)
    threads, channel_lanes, steps = (candidate[name] for name in ("threads", "channel_lanes", "stages"))
    cycle_us, warps, phases = 1e6 / gpu.sm_clock_hz, threads // limits.WARP_LANES, len(cell.phases)
    columns = problem.batch * -(-problem.hidden_size // channel_lanes)
    tiles, resident = ceil(problem.time / block.tile_steps), gpu.sm_count * block.blocks_per_sm
    sharing = minimum(maximum(resident // columns, 1), tiles)
    blocks = minimum(columns * sharing, resident)
    rounds = ceil(columns * sharing / blocks) * ceil(tiles / sharing)
    of_busiest_sm = ceil(blocks / gpu.sm_count)
    in_flight_bytes = blocks / gpu.sm_count * threads * steps * cell.read_count * problem.precision.storage_bytes
    starved = maximum(1.0, gpu.bytes_in_flight_per_sm / in_flight_bytes)
    values = sum(_values(problem, phase) for phase in cell.phases)
    composition = sum(_composition(problem, phase) for phase in cell.phases)
    levels = (limits.WARP_LANES // channel_lanes).bit_length() - 1
    accesses = (cell.read_count + cell.written_count) * steps / whole_vector_values(problem, steps)
    instructions = (
        steps * _operations_of_step(problem)
        + accesses * INSTRUCTIONS_PER_ACCESS
        + (levels + warps) * (INSTRUCTIONS_PER_VALUE * values + composition)
        + INSTRUCTIONS_PER_TILE
    )
    cycles = CYCLES_PER_TILE + phases * (CYCLES_PER_PHASE + CYCLES_PER_WARP * warps) + CYCLES_PER_STEP * (1 + phases) * steps
    cycles = cycles + where(sharing > 1, phases * L2_TRIPS_PER_HOP * gpu_rates.CYCLES_PER_L2_TRIP, 0.0)
    return {
        "memory": problem.traffic_bytes / gpu.bandwidth_bytes_per_s * 1e6 * starved,
        "issue": rounds * of_busiest_sm * warps * instructions / gpu.partitions_per_sm * cycle_us,
        "chain": rounds * cycles * cycle_us,
        "launch": where(sharing > 1, 2.0, 1.0) * gpu_rates.launch_us(gpu),
    }


FORWARD = Family(
    name="coupled_forward",
    entry="diagonal_forward",
    strategy="coupled",
    copies=False,
    variables=variables,
    constraints=constraints,
    resources=resources,
    predicted_us=predicted_us,
)
