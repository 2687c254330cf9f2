"""The search space of the scans with lanes along the channels and along time (layouts BTD and TBD), forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import CANDIDATES_AT_ONCE, Amount, ceil, column_of, maximum, minimum
from minrnn_gen.plan.occupancy import clusters_at_once
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, Problem
from minrnn_gen.plan.scan import cost
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources, can_copy_asynchronously

# Registers besides the steps of a tile: addresses, strides, loop state and loads under way, read off compiled kernels.
REGISTERS_FIXED = 42
REGISTERS_PER_GATE_AND_CHANNEL = 3
# The backward has pointers to four arrays instead of two.
BACKWARD_REGISTERS_FIXED = 16
# Loads of a tile that the compiler keeps in flight with the steps already computed.
REGISTERS_PER_STEP_VALUE = 1.25
# A tile reads the aggregates of so many tiles before it, so that only every so many tiles one waits for another's state.
GROUP_TILES = 32
TILE_STATES_PER_SEGMENT_MAX = 4  # more under way at once cost more registers than the steps of a tile
REGISTERS_PER_TILE_STATE = 5

# What follows was fitted to the candidates of 42 passes of problems on an H200 (docs/lab-notes.md), the next two and the cycles
# of an instruction to drawn problems, too. What prepares the arguments of special functions shows in rg_lru, which has nine.
INSTRUCTIONS_PER_TRANSCENDENTAL = 2.5
TEXT_NS_PER_OPERATION = 11.0  # several instructions, read from memory where the first tile needs them
INSTRUCTIONS_PER_SHUFFLE = 33.0  # a pair exchanged and composed, and waited for
INSTRUCTIONS_PER_CLUSTER_BLOCK = 12.0  # a block's aggregate sent, received and applied
INSTRUCTIONS_PER_FOLD = 6.12  # one warp's aggregate read and applied
INSTRUCTIONS_PER_ROUND = {"forward": 67.0, "backward": 370.0}  # of a cluster, besides
PARTITIONS = 4
# Of one warp. Those that share a partition's scheduler fill each other's waits: a tile takes longer by a power of their number.
CYCLES_PER_INSTRUCTION, WARPS_POWER = 2.7, 0.5
SHARED_WAVE_BYTES = 128  # 32 banks of 4 bytes (CUDA C++ Programming Guide, shared memory of compute capability 5.x and on)
# A tile state published and read through L2, and the wait for the slowest of the tiles before it.
CYCLES_PER_HANDOVER = 7550.0
# What follows was fitted to problems drawn on an H100, too. The blocks of an SM exchange one after the other: rg_lru 55 x 2,284
# x 160 takes 265 us backward with tiles of one warp and 170 with tiles of four, however many blocks a cluster has.
CYCLES_PER_CLUSTER_TILE = 68.0
# For each doubling of the bytes in flight, where blocks read rows of one burst, without a cluster that keeps them together.
NARROW_EXCESS_SHARE = 0.15
CLUSTER_EXCESS_SHARE = {"forward": 0.0, "backward": -0.08}  # blocks of a cluster read rows next to each other
# Of the time of a tile, until its stage is free for the next copy: the forward reads first, the backward passes over it twice.
BUSY_SHARE_OF_TILE = {"forward": 0.082, "backward": 0.203}
MEMORY = cost.MemoryModel(
    wanted_per_read={"forward": 1.732, "backward": 1.119},
    missing_power=0.306,
    excess_share=0.158,
    tiles_not_overlapped=0.0,
    narrow_share=0.021,
)


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    return {
        "channel_lanes": (8, 16, 32),
        "channels_per_lane": (1, 2, 4, 8),
        "time_warps": (1, 2, 4, 8, 16),
        # Longer segments were slower wherever measured: their unrolled code and registers cost more than they save.
        "steps_per_lane": (2, 4, 8, 16),
        "stages": (1, 2, 3, 4),
        "cluster_blocks": tuple(size for size in (1, 2, 4, 8, 16) if size <= problem.gpu.cluster_size_max),
        "lookback": (0,) if problem.specialization.packed else (0, 1),
    }


def _registers(
    problem: Problem,
    channel_lanes: int,
    channels_per_lane: int,
    time_warps: int,
    rows: int,
    cluster_blocks: int,
    lookback: int,
) -> int:
    cell = problem.cell
    words = problem.registers_per_value
    per_channel = REGISTERS_PER_GATE_AND_CHANNEL * cell.step_values + len(cell.parameters) + 4 * len(cell.states)
    if lookback:
        reads = max(GROUP_TILES // _segments(channel_lanes, time_warps), 1)
        per_channel += REGISTERS_PER_TILE_STATE * reads * len(cell.states)
    if problem.kernel_pass == "backward":
        # Coefficients are computed again for every row and pass; what stays are the sums and a few rows under way.
        sums = len(cell.gates) + len(cell.parameters)
        return REGISTERS_FIXED + BACKWARD_REGISTERS_FIXED + int(words * channels_per_lane * (2 * per_channel + sums))
    kept = 2 * len(cell.states) + cell.carried_count
    steps = REGISTERS_PER_STEP_VALUE * rows * kept
    if can_copy_asynchronously(problem):
        # Each piece has an address and a condition; those of the widest copies are among the fixed ones.
        narrow = 1 / problem.specialization.alignment_bytes - 1 / WIDEST_COPY_BYTES
        steps += rows * cell.read_count * problem.precision.storage_bytes * narrow / words
    else:
        steps += rows * cell.read_count  # copies go through registers, all rows of a tile under way at once
    if cluster_blocks > 1:
        steps += rows * kept + 4 * len(cell.states)  # of the tile read ahead
    return REGISTERS_FIXED + int(words * channels_per_lane * (steps + per_channel))


def _segments(channel_lanes: int, time_warps: int) -> int:
    """Segments of a block's tile."""
    return time_warps * (limits.WARP_LANES // channel_lanes)


def _stages_bytes(problem: Problem, channels_per_lane: int, time_warps: int, rows: int, stages: int) -> int:
    """Bytes of the stages: however a warp's lanes are arranged, it copies a row of every lane."""
    row_of_warp = limits.WARP_LANES * channels_per_lane * problem.precision.storage_bytes
    return time_warps * stages * problem.cell.read_count * rows * row_of_warp


def _exchange_bytes(
    problem: Problem, channel_lanes: int, channels_per_lane: int, time_warps: int, cluster_blocks: int, lookback: int
) -> int:
    """Bytes of the exchange between warps: aggregates (a, b) of their parts of two tiles, where there is more than one warp.

    With look-back: of one tile, of the earlier tiles that each warp read, and the state before the group; in the backward
    also a sum of each warp.
    """
    channels, value_bytes = channel_lanes * channels_per_lane, problem.precision.arithmetic_bytes
    states = len(problem.cell.states)
    if lookback:
        sums = time_warps if problem.kernel_pass == "backward" else 0
        return channels * value_bytes * (4 * time_warps * states + states + sums)
    blocks, mbarriers = (cluster_blocks, 2) if cluster_blocks > 1 else (0, 0)
    warps = time_warps if time_warps > 1 else 0
    # Rounded up to the alignment of an aggregate.
    mbarrier_bytes = max(limits.MBARRIER_BYTES * mbarriers, 2 * value_bytes) if mbarriers else 0
    return 4 * (warps + blocks) * states * channels * value_bytes + mbarrier_bytes


def _tile_number_bytes(problem: Problem, stages: int, lookback: int) -> int:
    """Bytes of the numbers of the tiles under way, rounded up to the alignment of an aggregate."""
    unit = max(2 * problem.precision.arithmetic_bytes, cost.DUAL_ALIGNMENT if problem.cell.is_dual else 0)
    return -(-4 * (stages + 2) // unit) * unit if lookback else 0


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    of_stages = ("channels_per_lane", "time_warps", "steps_per_lane", "stages")
    hidden_size, storage_bytes = problem.hidden_size, problem.precision.storage_bytes
    asynchronous, backward = can_copy_asynchronously(problem), problem.kernel_pass == "backward"

    def shared_bytes(
        channels_per_lane: int,
        time_warps: int,
        rows: int,
        stages: int,
        channel_lanes: int,
        cluster_blocks: int,
        lookback: int,
    ) -> int:
        exchange = _exchange_bytes(problem, channel_lanes, channels_per_lane, time_warps, cluster_blocks, lookback)
        in_stages = _stages_bytes(problem, channels_per_lane, time_warps, rows, stages)
        return in_stages + exchange + _tile_number_bytes(problem, stages, lookback)

    def in_flight(channels_per_lane: int, time_warps: int, rows: int, stages: int) -> int:
        return _stages_bytes(problem, channels_per_lane, time_warps, rows, max(1, stages - 1))

    return (
        limits.whole_vectors_constraint(problem),
        limits.vector_width_constraint(problem, ", and copied as a whole"),
        Constraint(
            "whole_copies",
            "a copy instruction moves a piece per lane; a segment with fewer rows leaves lanes idle",
            ("channels_per_lane", "steps_per_lane"),
            lambda *_: problem.specialization.alignment_bytes,
            lambda channels_per_lane, rows: channels_per_lane * rows * storage_bytes,
            "bytes",
        ),
        Constraint(
            "copy_within_row",
            "one copy stays within the block's part of a row",
            ("channel_lanes", "channels_per_lane"),
            lambda *_: problem.specialization.alignment_bytes,
            lambda lanes, channels: lanes * channels * storage_bytes,
            "bytes",
        ),
        Constraint(
            "whole_bursts",
            "a block that takes less than a memory burst of a row is dominated: the rest is fetched for nothing",
            ("channel_lanes", "channels_per_lane"),
            lambda *_: min(cost.BURST_BYTES, hidden_size * storage_bytes),
            lambda lanes, channels: lanes * channels * storage_bytes,
            "bytes",
            drops_dominated=True,
        ),
        Constraint(
            "channels_per_block",
            "a block much wider than the hidden size is dominated: its lanes idle",
            ("channel_lanes", "channels_per_lane"),
            lambda lanes, channels: lanes * channels,
            lambda *_: max(2 * hidden_size - 1, min(limits.WARP_LANES, 8)),
            "channels",
            drops_dominated=True,
        ),
        Constraint(
            "overlap",
            "with one stage a block copies and computes in turn, dominated unless its tiles wait for other blocks anyway "
            "(without cp.async a second cannot overlap)",
            ("stages", "cluster_blocks"),
            lambda _, cluster_blocks: 2 if asynchronous and (backward or cluster_blocks == 1) else 1,
            lambda stages, _: stages,
            "stages",
            drops_dominated=True,
        ),
        Constraint(
            "tile_read_ahead",
            "the backward of a cluster holds the tile it scans and the one it reads",
            ("stages", "cluster_blocks"),
            lambda _, cluster_blocks: 2 if cluster_blocks > 1 and backward else 1,
            lambda stages, _: stages,
            "stages",
        ),
        Constraint(
            "one_split_of_time",
            "time is split over the blocks of a cluster, or over any blocks, by look-back",
            ("cluster_blocks", "lookback"),
            lambda cluster_blocks, lookback: cluster_blocks if lookback else 1,
            lambda *_: 1,
            "blocks",
        ),
        Constraint(
            "packets_per_segment",
            "with look-back the segments of a tile read the aggregates of a group of tiles, each a few at once",
            ("channel_lanes", "time_warps", "lookback"),
            lambda lanes, warps, lookback: GROUP_TILES // _segments(lanes, warps) if lookback else 0,
            lambda *_: TILE_STATES_PER_SEGMENT_MAX,
            "tile states",
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("time_warps",), lambda time_warps: time_warps * limits.WARP_LANES),
            Quantity(
                ("channel_lanes", "channels_per_lane", "time_warps", "steps_per_lane", "cluster_blocks", "lookback"),
                lambda *values: _registers(problem, *values),
            ),
            Quantity((*of_stages, "channel_lanes", "cluster_blocks", "lookback"), shared_bytes),
        ),
        *limits.copy_constraints(problem, Quantity(of_stages, in_flight)),
        limits.unrolled_constraint(
            problem, Quantity(("channels_per_lane", "steps_per_lane"), lambda channels, rows: channels * rows)
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    channel_lanes, channels_per_lane = candidate["channel_lanes"], candidate["channels_per_lane"]
    time_warps, rows = candidate["time_warps"], candidate["steps_per_lane"]
    shared_map = {"stages": _stages_bytes(problem, channels_per_lane, time_warps, rows, candidate["stages"])}
    lookback = candidate["lookback"]
    segments = _segments(channel_lanes, time_warps)
    if exchange := _exchange_bytes(
        problem, channel_lanes, channels_per_lane, time_warps, candidate["cluster_blocks"], lookback
    ):
        shared_map["exchange"] = exchange
    if tile_numbers := _tile_number_bytes(problem, candidate["stages"], lookback):
        shared_map["tile_counter"] = tile_numbers
    return limits.resident(
        problem,
        threads=time_warps * limits.WARP_LANES,
        channels_per_block=channel_lanes * channels_per_lane,
        registers_estimated=_registers(
            problem, channel_lanes, channels_per_lane, time_warps, rows, candidate["cluster_blocks"], lookback
        ),
        shared_map=shared_map,
        tile_steps=segments * rows,
        group_tiles=max(GROUP_TILES, segments) if lookback else 0,
    )


class _Shape(NamedTuple):
    """Inputs of the cost model for a candidate, whatever the sizes; for many candidates, arrays with a row for each."""

    columns_per_sequence: Amount
    cluster_blocks: Amount
    tile_steps: Amount
    at_once: Amount
    warps: Amount
    in_flight_bytes: Amount
    instructions: Amount
    latency_cycles: Amount
    elements_per_lane: Amount
    row_bytes: Amount
    full_congestion: Amount
    excess_share: Amount
    shared_waves: Amount
    text_us: Amount


def _shape(problem: Problem, candidate: Candidate) -> _Shape:
    block = resources(problem, candidate)
    time_warps, rows, stages = candidate["time_warps"], candidate["steps_per_lane"], candidate["stages"]
    channels_per_lane, cluster_blocks = candidate["channels_per_lane"], candidate["cluster_blocks"]
    segments_per_warp = limits.WARP_LANES // candidate["channel_lanes"]
    # Doublings to compose the segments of a warp, and one shuffle more to shift the result by a segment.
    shuffles = math.log2(segments_per_warp) + 1 if segments_per_warp > 1 else 0
    elements, streams = rows * channels_per_lane, problem.cell.read_count
    per_state = shuffles * INSTRUCTIONS_PER_SHUFFLE
    if cluster_blocks > 1:
        per_state += cluster_blocks * INSTRUCTIONS_PER_CLUSTER_BLOCK
    operations = elements * gpu_rates.operations_per_element(problem, INSTRUCTIONS_PER_TRANSCENDENTAL)
    instructions = (
        operations
        + rows * (streams + problem.cell.written_count + 1)
        + channels_per_lane * len(problem.cell.states) * per_state
        + (INSTRUCTIONS_PER_ROUND[problem.kernel_pass] if cluster_blocks > 1 else 0)
        + (time_warps * INSTRUCTIONS_PER_FOLD if time_warps > 1 else 0)
    )
    latency_cycles = instructions * CYCLES_PER_INSTRUCTION * max(1.0, time_warps / PARTITIONS) ** WARPS_POWER
    at_once = cluster_blocks * clusters_at_once(problem.gpu, cluster_blocks, block.blocks_per_sm)
    ahead = stages - BUSY_SHARE_OF_TILE[problem.kernel_pass]
    in_flight_bytes = int(block.shared_map["stages"] * ahead / stages)
    row_bytes = block.channels_per_block * problem.precision.storage_bytes
    of_cluster, narrow = CLUSTER_EXCESS_SHARE[problem.kernel_pass], NARROW_EXCESS_SHARE * cost.BURST_BYTES / row_bytes
    excess_share = of_cluster if cluster_blocks > 1 else narrow
    return _Shape(
        columns_per_sequence=-(-problem.hidden_size // block.channels_per_block),
        cluster_blocks=cluster_blocks,
        tile_steps=block.tile_steps,
        at_once=at_once,
        warps=time_warps,
        in_flight_bytes=in_flight_bytes,
        instructions=instructions,
        latency_cycles=latency_cycles + (CYCLES_PER_HANDOVER if candidate["lookback"] else 0),
        elements_per_lane=elements,
        row_bytes=row_bytes,
        full_congestion=cost.congestion_of(problem, MEMORY, at_once, in_flight_bytes, excess_share),
        excess_share=excess_share,
        shared_waves=_shared_waves(problem, elements, time_warps * channels_per_lane if time_warps > 1 else 0),
        text_us=operations * TEXT_NS_PER_OPERATION * 1e-3,
    )


def _predicted_us(problem: Problem, shape: _Shape, lookback: int) -> Mapping[str, Amount]:
    columns = problem.batch * shape.columns_per_sequence
    blocks, steps_at_once = shape.cluster_blocks * columns, shape.cluster_blocks * shape.tile_steps
    if lookback:
        blocks = minimum(shape.at_once, columns * -(-problem.time // shape.tile_steps))
        steps_at_once = maximum(1, shape.tile_steps * blocks // columns)
    work = cost.TiledWork(
        blocks=blocks,
        at_once=shape.at_once,
        warps=shape.warps,
        tile_steps=steps_at_once,
        in_flight_bytes=shape.in_flight_bytes,
        instructions=shape.instructions,
        latency_cycles=shape.latency_cycles,
        elements_per_lane=shape.elements_per_lane,
        memory=MEMORY,
        row_bytes=shape.row_bytes,
        full_congestion=shape.full_congestion,
        shared_waves=shape.shared_waves,
        excess_share=shape.excess_share,
    )
    terms = cost.predicted_us(problem, work)
    exchanges = minimum(shape.cluster_blocks - 1, 1) * ceil(blocks / problem.gpu.sm_count) * ceil(problem.time / steps_at_once)
    exchange_us = exchanges * CYCLES_PER_CLUSTER_TILE / (problem.gpu.sm_clock_hz / 1e6)
    return {**terms, "exchange": exchange_us, "fill_and_drain": terms["fill_and_drain"] + shape.text_us}


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    return _predicted_us(problem, _shape(problem, candidate), candidate["lookback"])


def predicted_us_of_all(problem: Problem, candidates: Sequence[Candidate]) -> Iterator[tuple[list[int], Mapping[str, Amount]]]:
    for lookback in (0, 1):
        own = [number for number, candidate in enumerate(candidates) if candidate["lookback"] == lookback]
        for first in range(0, len(own), CANDIDATES_AT_ONCE):
            part = own[first : first + CANDIDATES_AT_ONCE]
            shapes = [_shape(problem, candidates[number]) for number in part]
            yield part, _predicted_us(problem, _Shape(*map(column_of, zip(*shapes, strict=True))), lookback)


def _shared_waves(problem: Problem, elements: int, aggregates: int) -> float:
    """Return the accesses in which a warp writes and reads its stage, and reads so many aggregates in each lane."""
    of_stage = 2 * elements * problem.cell.read_count * problem.precision.storage_bytes
    of_aggregates = aggregates * len(problem.cell.states) * 2 * problem.precision.arithmetic_bytes
    return limits.WARP_LANES * (of_stage + of_aggregates) / SHARED_WAVE_BYTES


def _family(name: str, entry: str) -> Family:
    return Family(
        name=name,
        entry=entry,
        strategy="channels",
        copies=True,
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
        predicted_us_of_all=predicted_us_of_all,
    )


FORWARD = _family("scan_forward_channels", entry="scan_forward")
BACKWARD = _family("scan_backward_channels", entry="scan_backward")
