"""The search space of coupled_forward.cu.j2: coupled states as maps, composed over lanes, warps and blocks along time."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.diagonal import whole_vector_values
from minrnn_gen.plan.limits import LINE_BYTES, SECTOR_BYTES, Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum, minimum, where
from minrnn_gen.plan.problem import PhaseShape, Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

DOUBLE_BYTES = 8
# Of the kernel's struct, which has vectors.
SHARED_ALIGNMENT = 16
# Addresses, strides and loop state, and maps that are held at once: a thread's own, another, their product, a block's and one
# that arrives. Read off compiled kernels.
REGISTERS_FIXED = 50
MAPS_AT_ONCE = 5
# Where lanes share a map, besides the tile, which is read twice. Read off kernels of 3 and 4 states.
REGISTERS_OF_SHARED_MAPS = 175
# Where a thread takes many tiles, without states in double precision and with.
REGISTERS_OF_CHUNK = (8, 32)
# Of the values of one step and of one composition, those that are needed at once.
TEMPORARIES_MAX = 16
# Of a wider search most kernels would differ in nothing that matters.
PHASES_MOST = 4
# Neighbouring lanes that share a full map of so many states or more, where it changes with time, a column of A each.
MAP_LANES, SHARED_SIZE_LEAST = 4, 3
# Tiles that share the states before them: as many as a warp has lanes, or those that a lane composes one after the other.
GROUP_TILES_OF_LANE = 4
# A product or sum in double precision is issued at half the rate.
INSTRUCTIONS_PER_DOUBLE = 2.0
# Address, predicate, and the load or store; along time also the passing through shared memory. Rows without gaps have
# addresses at constant distances.
INSTRUCTIONS_PER_ACCESS = 4.0
INSTRUCTIONS_PER_DENSE_ACCESS = 1.5
INSTRUCTIONS_PER_VALUE = 3.0  # of a map, from lane to lane
# A profiler counted 810 of a warp's tile of 16 steps of a biquad in all.
INSTRUCTIONS_PER_TILE = 140.0
# Time of an instruction over that at which a scheduler issues: half of them compute addresses, at half the rate. This and what
# follows was fitted to an H200.
ISSUE_FACTOR = 1.6
# Between a block's tiles: a barrier in each phase; where blocks share a column, publishing a map, waiting for others and
# composing them, once more for each phase.
CYCLES_PER_PHASE = 400.0
CYCLES_OF_SHARING = 2000.0
CYCLES_PER_SHARED_PHASE = 1200.0
# A block that composes has no loads under way; others of the SM have.
TIME_OF_LOADS = 0.5
# A warp by itself: from one instruction to the next, waits for loads apart, and a load while memory is busy. From a
# profiler's stalls.
CYCLES_PER_INSTRUCTION = 2.9
CYCLES_OF_LOAD = 2000.0
# Lines of memory read in parts, by several warps: half lines took 1.06 and 1.09 times as long as whole ones. Of rows that begin
# within a sector each part ends in a sector of its own: linoss of 214 channels took 138 us in parts of 8, 105 of 16, 78 of 32.
FACTOR_OF_PARTS = 1.08
# From one group of tiles that share the states before them to the next, in the same round.
CYCLES_PER_GROUP = 800.0
# Many tiles of a thread were not measured: they have to be predicted to be so many times as fast to be preferred.
FACTOR_OF_CHUNKS = 1.6
# A first tile arrives, and the last one is computed, without overlap; and all blocks begin at once.
FILL_AND_DRAIN_US = 5.0


def _is_shared(phase: PhaseShape, map_lanes: int) -> bool:
    """Whether lanes share a phase's map."""
    return map_lanes > 1 and phase.form == "full" and phase.size >= SHARED_SIZE_LEAST and not phase.is_constant


def _values(problem: Problem, phase: PhaseShape, map_lanes: int = 1) -> int:
    """Numbers of a map that a lane exchanges."""
    entries = 0 if phase.is_constant else _entries(phase, map_lanes)
    return entries + phase.size + (problem.specialization.resets or phase.form == "memory")


def _entries(phase: PhaseShape, map_lanes: int = 1) -> int:
    """Numbers of A that a lane keeps."""
    if _is_shared(phase, map_lanes):
        return phase.size
    return {"memory": 0, "full": phase.size**2}.get(phase.form, phase.size)


def _is_double(problem: Problem, phase: PhaseShape) -> bool:
    return phase.form == "full" or problem.precision.arithmetic_bytes == DOUBLE_BYTES


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    lanes = (1,) if problem.layout == "BDT" else (8, 16, 32)
    return {
        "threads": (64, 128, 256, 512),
        "channel_lanes": lanes,
        "channels_per_lane": (1,),
        "stages": (1, 2, 4, 8, 16, 32),
        "chunk_tiles": (1, 32),
        "map_lanes": (1, MAP_LANES) if any(_is_shared(phase, MAP_LANES) for phase in problem.cell.phases) else (1,),
    }


def _registers(problem: Problem, steps: int, chunk_tiles: int, map_lanes: int) -> int:
    """Return an estimate: the current tile, the maps under composition, a step's own values."""
    cell, precision, words = problem.cell, problem.precision, problem.registers_per_value
    at_hand = steps * max(1, precision.storage_bytes // 4)
    if map_lanes > 1:
        return REGISTERS_OF_SHARED_MAPS + cell.read_count * at_hand
    results = 1 + len(cell.states) * (problem.specialization.states_out == "storage")
    widths = ((phase, 2 if _is_double(problem, phase) else words) for phase in cell.phases)
    values = max((_values(problem, phase, map_lanes) * width for phase, width in widths), default=0)
    carried = cell.step_values + len(cell.parameters) + 4 * len(cell.states) + min(cell.operation_count // 4, TEMPORARIES_MAX)
    resets = 2 * steps if problem.specialization.resets else 0
    packed = -(-steps * precision.storage_bytes // 4)
    fixed = REGISTERS_FIXED
    if chunk_tiles > 1:
        fixed += (
            REGISTERS_OF_CHUNK[any(phase.form == "full" for phase in cell.phases)] + cell.read_count * at_hand + resets // 2
        )
    tiles = cell.read_count * at_hand + (cell.read_count * packed if chunk_tiles > 1 else 0)
    return fixed + tiles + results * packed + resets + MAPS_AT_ONCE * values + words * carried


def _group_tiles(step_lanes: int) -> int:
    turns = max(1, limits.WARP_LANES // step_lanes)
    return turns * max(1, min(GROUP_TILES_OF_LANE, 32 // turns))


def _shared_map(
    problem: Problem, threads: int, channel_lanes: int, steps: int, chunk_tiles: int, map_lanes: int
) -> Mapping[str, int]:
    phases, step_lanes = problem.cell.phases, channel_lanes * map_lanes
    values = max((_values(problem, phase, map_lanes) for phase in phases), default=0)
    warps = threads // limits.WARP_LANES
    exchange = DOUBLE_BYTES * step_lanes * (2 * warps * values + len(problem.cell.states))
    table = channel_lanes * (limits.WARP_LANES // step_lanes + 1 + _group_tiles(step_lanes))
    powers = 0
    for phase in phases:
        if phase.is_constant:
            number_bytes = DOUBLE_BYTES if _is_double(problem, phase) else problem.precision.arithmetic_bytes
            powers += -(-number_bytes * _entries(phase) * table // DOUBLE_BYTES) * DOUBLE_BYTES
    powers += DOUBLE_BYTES * (powers > 0)  # whether they are finite
    stretch = _stretch_bytes(problem, threads, steps, chunk_tiles * map_lanes)
    exchange += -(stretch + powers + exchange) % SHARED_ALIGNMENT
    return {"stretch": stretch, "exchange": exchange} | ({"powers": powers} if powers else {})


def _stretch_bytes(problem: Problem, threads: int, steps: int, alike: int) -> int:
    """Return the bytes through which warps pass whole tiles, of which a vector of each warp is there in any case.

    `alike`: tiles of a thread, or lanes of a map; warps with more than one pass none.
    """
    vector_values = whole_vector_values(problem, steps)
    vector_bytes = vector_values * problem.precision.storage_bytes
    if problem.layout == "BDT" and alike == 1 and steps > vector_values:
        return threads * (steps // vector_values + 1) * vector_bytes
    return -(-threads // limits.WARP_LANES * vector_bytes // DOUBLE_BYTES) * DOUBLE_BYTES


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
            ("stages", "map_lanes"),
            lambda _, map_lanes: 16 if problem.layout == "BDT" and map_lanes == 1 else 0,
            lambda steps, _: steps * storage_bytes,
            "bytes",
            drops_dominated=True,
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("threads",), lambda threads: threads),
            Quantity(("stages", "chunk_tiles", "map_lanes"), lambda *of_thread: _registers(problem, *of_thread)),
            Quantity(
                ("threads", "channel_lanes", "stages", "chunk_tiles", "map_lanes"),
                lambda *of: sum(_shared_map(problem, *of).values()),
            ),
        ),
        Constraint(
            "lanes_of_maps",
            "lanes that share a map are lanes of one warp, and each has the same tile",
            ("channel_lanes", "chunk_tiles", "map_lanes"),
            lambda channel_lanes, chunk_tiles, map_lanes: channel_lanes * map_lanes * (chunk_tiles if map_lanes > 1 else 1),
            lambda *_: limits.WARP_LANES,
            "lanes",
        ),
        Constraint(
            "unrolled_operations",
            "the loops over a thread's steps are unrolled, so that they stay in registers; more takes the compiler too long",
            ("stages", "map_lanes"),
            lambda steps, map_lanes: round(steps * _operations_of_step(problem, map_lanes)),
            lambda *_: limits.UNROLLED_OPERATIONS_MAX,
            "operations",
            "split the cell's equations into fewer operations",
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    threads, channel_lanes, steps = (candidate[name] for name in ("threads", "channel_lanes", "stages"))
    phases, chunk_tiles, map_lanes = problem.cell.phases, candidate["chunk_tiles"], candidate["map_lanes"]
    step_lanes = channel_lanes * map_lanes
    return limits.resident(
        problem,
        threads=threads,
        channels_per_block=channel_lanes,
        registers_estimated=_registers(problem, steps, chunk_tiles, map_lanes),
        shared_map=_shared_map(problem, threads, channel_lanes, steps, chunk_tiles, map_lanes),
        tile_steps=threads // step_lanes * steps,
        group_tiles=_group_tiles(step_lanes),
        partition={
            "map_bytes": DOUBLE_BYTES * step_lanes * sum(_values(problem, phase, map_lanes) for phase in phases),
            "state_bytes": DOUBLE_BYTES * step_lanes * len(problem.cell.states),
        },
    )


def _composition(problem: Problem, phase: PhaseShape, map_lanes: int) -> float:
    """Instructions of a lane to compose two maps; powers of a constant A are made, and b alone is composed."""
    if _is_shared(phase, map_lanes):
        # A column and b, and all columns of the other lanes.
        return phase.size**2 * (2 * INSTRUCTIONS_PER_DOUBLE + INSTRUCTIONS_PER_VALUE)
    columns = 0 if phase.is_constant else {"memory": 0, "full": phase.size}.get(phase.form, 1)
    rate = INSTRUCTIONS_PER_DOUBLE if _is_double(problem, phase) else 1.0
    return rate * phase.size**2 * (columns + 1)


def _operations_of_step(problem: Problem, map_lanes: int) -> float:
    """Instructions of a step in every phase and in the last pass over it."""
    cell = problem.cell
    operations, special = cell.varying_counts
    own = operations + special * gpu_rates.INSTRUCTIONS_PER_TRANSCENDENTAL[problem.precision.name]
    passes = (1 + len(cell.phases)) * (own + cell.read_count) + cell.written_count

    def of_map(phase: PhaseShape) -> float:
        of_column = INSTRUCTIONS_PER_DOUBLE * phase.size**2
        composition = of_column if _is_shared(phase, map_lanes) else _composition(problem, phase, map_lanes)
        return phase.operation_count + phase.size**2 + (0.0 if phase.is_constant else composition)

    return passes + sum(map(of_map, cell.phases))


def _moved(problem: Problem, channel_lanes: int) -> float:
    """Bytes of memory that are moved for each of the arrays: whole sectors, of which neighbouring warps want the rest."""
    storage_bytes = problem.precision.storage_bytes
    row_bytes = problem.hidden_size * storage_bytes
    if problem.layout == "BDT":
        return 1.0
    if row_bytes % SECTOR_BYTES:
        return 1.0 + -(-problem.hidden_size // channel_lanes) * (SECTOR_BYTES - storage_bytes) / row_bytes
    return FACTOR_OF_PARTS if channel_lanes * storage_bytes < LINE_BYTES else 1.0


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """The longest of memory, instructions and the chain of a block's tiles.

    Blocks that share a column all compute, then all wait. Many tiles of a thread are read again in every pass.
    """
    cell, gpu, block = problem.cell, problem.gpu, resources(problem, candidate)
    threads, channel_lanes, steps = (candidate[name] for name in ("threads", "channel_lanes", "stages"))
    map_lanes = candidate["map_lanes"]
    cycle_us, warps, phases = 1e6 / gpu.sm_clock_hz, threads // limits.WARP_LANES, len(cell.phases)
    columns = problem.batch * -(-problem.hidden_size // channel_lanes)
    tiles, resident = ceil(problem.time / block.tile_steps), gpu.sm_count * block.blocks_per_sm
    sharing = minimum(maximum(resident // columns, 1), tiles)
    chunk = minimum(ceil(tiles / sharing), candidate["chunk_tiles"])
    blocks = minimum(columns * sharing, resident)
    rounds = ceil(columns * sharing / blocks) * ceil(tiles / (sharing * chunk))
    read_bytes = threads // map_lanes * steps * cell.read_count * problem.precision.storage_bytes
    starved = maximum(1.0, gpu.bytes_in_flight_per_sm / (blocks / gpu.sm_count * read_bytes * TIME_OF_LOADS))
    memory_us = problem.traffic_bytes / gpu.bandwidth_bytes_per_s * 1e6 * starved
    memory_us *= _moved(problem, channel_lanes)
    is_read_again = candidate["chunk_tiles"] > 1
    if is_read_again:
        again_bytes = problem.element_count * cell.read_count * problem.precision.storage_bytes * phases
        in_l2 = blocks * read_bytes * chunk <= gpu.l2_bytes
        bandwidth = gpu.bandwidth_bytes_per_s * where(in_l2, gpu_rates.L2_BANDWIDTH_FACTOR, 1.0)
        memory_us = (memory_us + again_bytes / bandwidth * 1e6) * FACTOR_OF_CHUNKS
    values = sum(_values(problem, phase, map_lanes) for phase in cell.phases)
    composition = sum(_composition(problem, phase, map_lanes) for phase in cell.phases)
    levels = (limits.WARP_LANES // (channel_lanes * map_lanes)).bit_length() - 1
    passes = 1 + phases * is_read_again
    accesses = (cell.read_count * passes + cell.written_count) * steps / whole_vector_values(problem, steps)
    of_access = INSTRUCTIONS_PER_DENSE_ACCESS if problem.layout == "BTD" else INSTRUCTIONS_PER_ACCESS
    is_carried_wide = is_read_again and any(phase.form == "full" for phase in cell.phases)
    of_tile = steps * _operations_of_step(problem, map_lanes) * (1.4 if is_carried_wide else 1.0) + accesses * of_access
    of_tile += INSTRUCTIONS_PER_TILE * (0.4 * passes if is_read_again else 1.0) + composition * is_read_again
    of_round = (levels + warps) * (INSTRUCTIONS_PER_VALUE * values + composition)
    of_busiest_sm = ceil(blocks / gpu.sm_count) * warps / gpu.partitions_per_sm * ISSUE_FACTOR
    busy_cycles = of_busiest_sm * (chunk * of_tile + of_round) * (FACTOR_OF_CHUNKS if is_read_again else 1.0)
    groups = ceil(sharing / block.group_tiles) - 1
    shared_cycles = busy_cycles + CYCLES_OF_SHARING + phases * (CYCLES_PER_SHARED_PHASE + groups * CYCLES_PER_GROUP)
    alone_cycles = maximum(phases * CYCLES_PER_PHASE, CYCLES_OF_LOAD + CYCLES_PER_INSTRUCTION * (chunk * of_tile + of_round))
    return {
        "memory": memory_us,
        "issue": rounds * busy_cycles * cycle_us,
        "chain": rounds * where(sharing > 1, shared_cycles, alone_cycles) * cycle_us,
        "fill_and_drain": FILL_AND_DRAIN_US,
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
