"""The search space of the scans with lanes along time, one or more warps per channel (layout BDT), forward and backward."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil, log2, maximum, minimum
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, Problem
from minrnn_gen.plan.scan import cost
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources, can_copy_asynchronously

# Registers besides the steps of a lane, read off compiled kernels.
REGISTERS_FIXED = 38
# The backward keeps each gate's sum over time, and its strides and pointers to more arrays.
BACKWARD_REGISTERS_PER_GATE = 3
# A step of the backward as it was read, and partly widened; its coefficients are computed again in each pass over it.
BACKWARD_REGISTERS_PER_VALUE = 1.25
# exp, log and tanh in fp64 are inlined code with values of their own.
REGISTERS_OF_FP64_FUNCTIONS = 12
# Tile number, column and workspace; in the backward they fit with what only the second pass over the tile needs.
FORWARD_REGISTERS_OF_LOOKBACK = 10
# The resets that are read, their bits, and what is composed with a constant: with fewer, kernels spilled.
FORWARD_REGISTERS_OF_RESETS = 8
# Five doublings of the distance, a shift by one lane, and the last lane's state to all.
SHUFFLES = 7
VECTOR_BYTES = WIDEST_COPY_BYTES  # what a lane reads of shared memory at once
# With look-back each tile costs a tile number and a tile state, so that longer ones pay; beyond this, steps fill the registers.
LOOKBACK_VECTORS_MAX = 4
# Neighbouring vectors of a lane are set off by so many bytes in all, what shared memory moves at once.
BANKS_BYTES = 128
# A tile reads the aggregates of the earlier ones of its group, a lane of the warp each.
GROUP_TILES = limits.WARP_LANES
# Tile numbers are taken off one address, in L2 one after the other; an estimate, of one in two cycles.
TILE_NUMBERS_PER_US = 800.0
# What follows was fitted to the candidates of 32 passes of problems on an H200 (docs/lab-notes.md).
INSTRUCTIONS_PER_COPY = 19.0  # address and predicate of one asynchronous piece
INSTRUCTIONS_PER_SHUFFLE = 1.7  # a pair exchanged and composed
INSTRUCTIONS_PER_FOLD = 3.0  # a warp's aggregate of one state read from shared memory, and applied
INSTRUCTIONS_PER_HANDOVER = 1500.0  # a tile number, its column's constants, the tile states waited for, and one more warp scan
# The next three to problems drawn on an H100: with two, three and four stages rg_lru 32 x 109 x 3,296 takes 162, 179, 192 us.
INSTRUCTIONS_PER_EMPTY_COPY = 6.0  # of a piece, where no tile is left to copy
INSTRUCTIONS_PER_EXCHANGE = 15.0  # of a tile whose warps load through registers, and wait for each other's loads
INSTRUCTIONS_PER_COLUMN = 20.0  # its states, constants and ends
CYCLES_PER_TILE = 54.0
CYCLES_PER_INSTRUCTION = 1.3  # of one warp by itself
CYCLES_PER_BARRIER_WARP = 50.0
# Copies of less than 16 bytes go through L1 (PTX ISA, cp.async), and each of a warp's touches all lines of its tile, which have
# to stay for the next one. Tiles of an SM beyond so many bytes are partly read again: by this share for each doubling.
L1_BYTES_OF_TILES, REFETCHED_SHARE = 32 * 1024, 0.4
# No power of what is missing: as long as the latency is hidden at all (Little's law), fewer bytes in flight are as good.
MEMORY = cost.MemoryModel(
    wanted_per_read={"forward": 2.0, "backward": 2.2},
    missing_power=0.0,
    excess_share=0.019,
    tiles_not_overlapped=0.05,
    narrow_share=0.55,
)


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    return {
        "warps": (1, 2, 4, 8),
        "time_warps": (1, 2, 4, 8, 16),
        "steps_per_lane": (1, 2, 4, 8, 16, 32),
        "stages": (1, 2, 3, 4, 6, 8),
        "lookback": (0,) if problem.specialization.packed else (0, 1),
    }


def _registers(problem: Problem, steps_per_lane: int, lookback: int) -> int:
    cell = problem.cell
    words = problem.registers_per_value
    per_lane = 3 * cell.step_values + len(cell.parameters) + 4 * len(cell.states)
    fixed = REGISTERS_FIXED + (REGISTERS_OF_FP64_FUNCTIONS if words > 1 and cell.transcendental_count else 0)
    if problem.kernel_pass == "backward":
        per_lane += BACKWARD_REGISTERS_PER_GATE * cell.step_values + len(cell.parameters)
        steps = BACKWARD_REGISTERS_PER_VALUE * steps_per_lane * cell.read_count
        return fixed + int(words * (steps + per_lane))
    kept = 2 * len(cell.states) + cell.carried_count
    if problem.specialization.resets:
        fixed += FORWARD_REGISTERS_OF_RESETS
    return fixed + lookback * FORWARD_REGISTERS_OF_LOOKBACK + words * (steps_per_lane * kept + per_lane)


def _result_count(problem: Problem) -> int:
    """Values written of every step that leave through shared memory."""
    if problem.kernel_pass == "backward":
        return problem.cell.step_values
    return 1 + (len(problem.cell.states) if problem.specialization.states_out == "storage" else 0)


def _stages_bytes(problem: Problem, warps: int, time_warps: int, steps_per_lane: int, stages: int) -> int:
    """Each warp's tiles under way; a stream whose lanes have several vectors sets these off against each other.

    The backward also copies, for every state, a piece with the step next to the tile.
    """
    vector_bytes = steps_per_lane * problem.precision.storage_bytes
    stream = limits.WARP_LANES * vector_bytes + (BANKS_BYTES if vector_bytes > VECTOR_BYTES else 0)
    beside = len(problem.cell.states) * VECTOR_BYTES if problem.kernel_pass == "backward" else 0
    return warps * time_warps * stages * (max(problem.cell.read_count, _result_count(problem)) * stream + beside)


def _exchange_bytes(problem: Problem, time_warps: int) -> int:
    """Bytes of the exchange between warps of a column: aggregates (a, b) of two rounds, in the backward also sums."""
    if time_warps == 1:
        return 0
    cell = problem.cell
    sums = len(cell.gates) + len(cell.parameters) if problem.kernel_pass == "backward" else 0
    exchange = time_warps * (4 * len(cell.states) + sums) * problem.precision.arithmetic_bytes
    return -(-exchange // cost.DUAL_ALIGNMENT) * cost.DUAL_ALIGNMENT if cell.is_dual else exchange


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    of_stages = ("warps", "time_warps", "steps_per_lane", "stages")
    storage_bytes = problem.precision.storage_bytes
    return (
        Constraint(
            "vectors_per_lane",
            f"a lane holds its steps as one {VECTOR_BYTES}-byte vector, with look-back as up to {LOOKBACK_VECTORS_MAX}",
            ("steps_per_lane", "lookback"),
            lambda steps_per_lane, _: steps_per_lane * storage_bytes,
            lambda _, lookback: VECTOR_BYTES * (LOOKBACK_VECTORS_MAX if lookback else 1),
            "bytes",
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("warps", "time_warps"), lambda warps, time_warps: warps * time_warps * limits.WARP_LANES),
            Quantity(("steps_per_lane", "lookback"), lambda steps, lookback: _registers(problem, steps, lookback)),
            Quantity(
                of_stages,
                lambda warps, time_warps, steps, stages: (
                    _stages_bytes(problem, warps, time_warps, steps, stages) + _exchange_bytes(problem, time_warps)
                ),
            ),
        ),
        *limits.copy_constraints(
            problem,
            Quantity(
                of_stages,
                lambda warps, time_warps, steps, stages: _stages_bytes(problem, warps, time_warps, steps, max(1, stages - 1)),
            ),
        ),
        Constraint(
            "one_column_per_block",
            "warps that share a column meet at a barrier, which would hold up the columns of others",
            ("warps", "time_warps"),
            lambda warps, time_warps: warps if time_warps > 1 else 1,
            lambda *_: 1,
            "columns",
        ),
        Constraint(
            "one_split_of_time",
            "time is split over the warps of a block, or over any warps, by look-back",
            ("time_warps", "lookback"),
            lambda time_warps, lookback: time_warps if lookback else 1,
            lambda *_: 1,
            "warps",
        ),
        Constraint(
            "overlap",
            "with cp.async one stage is dominated: it is filled again only when its tile has been read, if not scanned",
            ("stages",),
            lambda _: 2 if can_copy_asynchronously(problem) else 1,
            lambda stages: stages,
            "stages",
            drops_dominated=True,
        ),
        limits.unrolled_constraint(problem, Quantity(("steps_per_lane",), lambda steps: steps)),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    warps, time_warps, steps_per_lane = candidate["warps"], candidate["time_warps"], candidate["steps_per_lane"]
    shared_map = {"stages": _stages_bytes(problem, warps, time_warps, steps_per_lane, candidate["stages"])}
    if exchange := _exchange_bytes(problem, time_warps):
        shared_map["exchange"] = exchange
    return limits.resident(
        problem,
        threads=warps * time_warps * limits.WARP_LANES,
        channels_per_block=warps,
        registers_estimated=_registers(problem, steps_per_lane, candidate["lookback"]),
        shared_map=shared_map,
        tile_steps=time_warps * limits.WARP_LANES * steps_per_lane,
        group_tiles=GROUP_TILES if candidate["lookback"] else 0,
    )


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    block = resources(problem, candidate)
    warps, time_warps, steps_per_lane = candidate["warps"], candidate["time_warps"], candidate["steps_per_lane"]
    lookback, stages, storage_bytes = candidate["lookback"], candidate["stages"], problem.precision.storage_bytes
    tiles_of_column = ceil(problem.time / block.tile_steps)
    streams = problem.cell.read_count + problem.cell.written_count
    pieces = steps_per_lane * storage_bytes / problem.specialization.alignment_bytes
    # Copies run ahead by all stages but one: a column ends with so many that have no tile.
    empty = 0.0 if lookback else (stages - 1) * problem.cell.read_count * max(1.0, pieces) * INSTRUCTIONS_PER_EMPTY_COPY
    shuffles = SHUFFLES * len(problem.cell.states)
    exchanges = time_warps > 1
    folds = time_warps * len(problem.cell.states) if exchanges else 0
    instructions = (
        steps_per_lane * gpu_rates.operations_per_element(problem)
        + streams * max(1.0, pieces) * INSTRUCTIONS_PER_COPY
        + shuffles * INSTRUCTIONS_PER_SHUFFLE
        + folds * INSTRUCTIONS_PER_FOLD
        + (0.0 if can_copy_asynchronously(problem) else exchanges * INSTRUCTIONS_PER_EXCHANGE)
        + (empty + INSTRUCTIONS_PER_COLUMN) / tiles_of_column
        + lookback * INSTRUCTIONS_PER_HANDOVER
    )
    latency_cycles = (
        CYCLES_PER_TILE
        + instructions * CYCLES_PER_INSTRUCTION
        + exchanges * time_warps * CYCLES_PER_BARRIER_WARP
        + (2 * lookback + problem.specialization.resets) * gpu_rates.CYCLES_PER_L2_TRIP  # a tile waits for its resets
    )
    columns = problem.batch * problem.hidden_size
    tiles = columns * tiles_of_column
    blocks, steps_at_once = -(-columns // warps), block.tile_steps
    if lookback:
        # All resident warps share the tiles of all columns: so many steps of every column are in progress at once.
        blocks = minimum(problem.gpu.sm_count * block.blocks_per_sm, -(-tiles // warps))
        steps_at_once = maximum(1, block.tile_steps * blocks * warps // columns)
    at_once, in_flight_bytes = problem.gpu.sm_count * block.blocks_per_sm, block.shared_map["stages"]
    refetched: Amount = 0.0
    if can_copy_asynchronously(problem) and problem.specialization.alignment_bytes < WIDEST_COPY_BYTES:
        tiles_bytes = minimum(block.blocks_per_sm, ceil(blocks / problem.gpu.sm_count)) * in_flight_bytes / stages
        refetched = REFETCHED_SHARE * log2(maximum(1.0, tiles_bytes / L1_BYTES_OF_TILES))
    terms = cost.predicted_us(
        problem,
        cost.TiledWork(
            blocks=blocks,
            at_once=at_once,
            warps=warps * time_warps,
            tile_steps=steps_at_once,
            in_flight_bytes=in_flight_bytes,
            instructions=instructions,
            latency_cycles=latency_cycles,
            elements_per_lane=steps_per_lane,
            memory=MEMORY,
            row_bytes=block.tile_steps * storage_bytes,
            full_congestion=cost.congestion_of(problem, MEMORY, at_once, in_flight_bytes),
        ),
    )
    terms = {**terms, "memory": terms["memory"] * (1 + refetched)}
    if not lookback:
        return terms
    first_numbers_us = stages * gpu_rates.CYCLES_PER_L2_TRIP / (problem.gpu.sm_clock_hz / 1e6)
    return {
        **terms,
        "tile_counter": tiles / TILE_NUMBERS_PER_US,
        "fill_and_drain": terms["fill_and_drain"] + first_numbers_us,
        # The workspace is filled by a launch of its own.
        "launch": 2 * terms["launch"],
    }


def _family(name: str, entry: str) -> Family:
    return Family(
        name=name,
        entry=entry,
        strategy="time",
        copies=True,
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )


FORWARD = _family("scan_forward_time", entry="scan_forward")
BACKWARD = _family("scan_backward_time", entry="scan_backward")
