"""The search space of scan_forward_channels.cu.j2: lanes along the channels and along time (layouts BTD and TBD)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from minrnn_gen.plan import scan
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.scan import Quantity
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

# Registers besides the steps of a tile: addresses, strides, loop state and loads under way, read off compiled kernels.
REGISTERS_FIXED = 42
REGISTERS_PER_GATE_AND_CHANNEL = 3
# Loads of a tile that the compiler keeps under way beside the steps already computed.
REGISTERS_PER_STEP_VALUE = 1.25


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    del problem
    return {
        "channel_lanes": (8, 16, 32),
        "channels_per_lane": (1, 2, 4, 8),
        "time_warps": (1, 2, 4, 8, 16),
        # Longer segments were slower wherever measured: their unrolled code and registers cost more than they save.
        "rows": (2, 4, 8, 16),
        "stages": (1, 2, 3, 4, 6, 8),
    }


def _registers(problem: Problem, channels_per_lane: int, rows: int) -> int:
    cell = problem.cell
    words = problem.precision.arithmetic_bytes // 4
    kept = 2 * len(cell.states) + cell.carried_count
    per_channel = REGISTERS_PER_GATE_AND_CHANNEL * len(cell.gates) + len(cell.parameters) + 4 * len(cell.states)
    steps = REGISTERS_PER_STEP_VALUE * rows * kept
    return REGISTERS_FIXED + int(words * channels_per_lane * (steps + per_channel))


def _ring_bytes(problem: Problem, channels_per_lane: int, time_warps: int, rows: int, stages: int) -> int:
    """However a warp's lanes are arranged, it copies a row of every lane."""
    row_of_warp = scan.WARP_LANES * channels_per_lane * problem.precision.storage_bytes
    return time_warps * stages * len(problem.cell.gates) * rows * row_of_warp


def _composed_bytes(problem: Problem, channel_lanes: int, channels_per_lane: int, time_warps: int) -> int:
    """Two tiles' compositions (a, b) of every warp, where there is more than one warp to exchange them."""
    if time_warps == 1:
        return 0
    per_channel = 2 * problem.precision.arithmetic_bytes * len(problem.cell.states)
    return 2 * time_warps * channel_lanes * channels_per_lane * per_channel


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    ring = ("channels_per_lane", "time_warps", "rows", "stages")
    hidden_size, storage_bytes = problem.hidden_size, problem.precision.storage_bytes

    def shared_bytes(channels_per_lane: int, time_warps: int, rows: int, stages: int, channel_lanes: int) -> int:
        exchange = _composed_bytes(problem, channel_lanes, channels_per_lane, time_warps)
        return _ring_bytes(problem, channels_per_lane, time_warps, rows, stages) + exchange

    def in_flight(channels_per_lane: int, time_warps: int, rows: int, stages: int) -> int:
        return _ring_bytes(problem, channels_per_lane, time_warps, rows, max(1, stages - 1))

    return (
        Constraint(
            "vector_divides_channels",
            "a lane loads and stores its channels as one vector, so hidden_size must be a multiple of it",
            ("channels_per_lane",),
            lambda channels_per_lane: hidden_size % channels_per_lane,
            lambda _: 0,
            "channels left over",
        ),
        Constraint(
            "vector_width",
            "a lane's vector of channels is moved by one load or store, and copied as a whole",
            ("channels_per_lane",),
            lambda channels_per_lane: channels_per_lane * storage_bytes,
            lambda _: problem.regime.alignment_bytes,
            "bytes",
        ),
        Constraint(
            "whole_copies",
            "a copy instruction moves a piece per lane; a segment with fewer rows leaves lanes idle",
            ("channels_per_lane", "rows"),
            lambda *_: problem.regime.alignment_bytes,
            lambda channels_per_lane, rows: channels_per_lane * rows * storage_bytes,
            "bytes",
        ),
        Constraint(
            "copy_within_row",
            "one copy stays within the block's part of a row",
            ("channel_lanes", "channels_per_lane"),
            lambda *_: problem.regime.alignment_bytes,
            lambda lanes, channels: lanes * channels * storage_bytes,
            "bytes",
        ),
        Constraint(
            "whole_bursts",
            "a block that takes less than a memory burst of a row is dominated: the rest is fetched for nothing",
            ("channel_lanes", "channels_per_lane"),
            lambda *_: min(scan.BURST_BYTES, hidden_size * storage_bytes),
            lambda lanes, channels: lanes * channels * storage_bytes,
            "bytes",
        ),
        Constraint(
            "channels_per_block",
            "a block much wider than the hidden size is dominated: its lanes idle",
            ("channel_lanes", "channels_per_lane"),
            lambda lanes, channels: lanes * channels,
            lambda *_: max(2 * hidden_size - 1, min(scan.WARP_LANES, 8)),
            "channels",
        ),
        *scan.hardware_constraints(
            problem.gpu,
            Quantity(("time_warps",), lambda time_warps: time_warps * scan.WARP_LANES),
            Quantity(("channels_per_lane", "rows"), lambda channels, rows: _registers(problem, channels, rows)),
            Quantity((*ring, "channel_lanes"), shared_bytes),
        ),
        *scan.copy_constraints(problem, Quantity(ring, in_flight)),
        scan.unrolled_constraint(problem, Quantity(("channels_per_lane", "rows"), lambda channels, rows: channels * rows)),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    channel_lanes, channels_per_lane = candidate["channel_lanes"], candidate["channels_per_lane"]
    time_warps, rows = candidate["time_warps"], candidate["rows"]
    shared_map = {"ring": _ring_bytes(problem, channels_per_lane, time_warps, rows, candidate["stages"])}
    if time_warps > 1:
        shared_map["composed"] = _composed_bytes(problem, channel_lanes, channels_per_lane, time_warps)
    return scan.resident(
        problem,
        threads=time_warps * scan.WARP_LANES,
        channels_per_block=channel_lanes * channels_per_lane,
        registers_estimated=_registers(problem, channels_per_lane, rows),
        shared_map=shared_map,
    )


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, float]:
    taken = resources(problem, candidate)
    time_warps, rows = candidate["time_warps"], candidate["rows"]
    channels_per_lane, stages = candidate["channels_per_lane"], candidate["stages"]
    segments_per_warp = scan.WARP_LANES // candidate["channel_lanes"]
    # Doublings to compose the segments of a warp, and one shuffle more to shift the result by a segment.
    shuffles = math.log2(segments_per_warp) + 1 if segments_per_warp > 1 else 0
    elements, gates = rows * channels_per_lane, len(problem.cell.gates)
    copies = elements * gates * problem.precision.storage_bytes / problem.regime.alignment_bytes
    folds = time_warps if time_warps > 1 else 1
    instructions = (
        elements * scan.operations_per_element(problem)
        + rows * (gates + 2)
        + copies * scan.INSTRUCTIONS_PER_COPY
        + channels_per_lane
        * len(problem.cell.states)
        * (shuffles * scan.INSTRUCTIONS_PER_SHUFFLE + folds * scan.INSTRUCTIONS_PER_FOLD)
        + scan.INSTRUCTIONS_PER_TILE
    )
    barrier = scan.CYCLES_PER_BARRIER + time_warps * scan.CYCLES_PER_BARRIER_WARP if time_warps > 1 else 0
    latency_cycles = (
        scan.CYCLES_PER_TILE + instructions * scan.CYCLES_PER_INSTRUCTION + barrier + shuffles * scan.CYCLES_PER_SHUFFLE
    )
    return scan.predicted_us(
        problem,
        taken,
        scan.Walk(
            blocks=problem.batch * -(-problem.hidden_size // taken.channels_per_block),
            warps=time_warps,
            tile_steps=time_warps * rows * segments_per_warp,
            in_flight_bytes=taken.shared_map["ring"] * max(1, stages - 1) // stages,
            instructions=instructions,
            latency_cycles=latency_cycles,
            elements_per_lane=elements,
        ),
    )


FAMILY = Family(
    name="scan_forward_channels",
    template="scan_forward_channels.cu.j2",
    entry="scan_forward",
    variables=variables,
    constraints=constraints,
    resources=resources,
    predicted_us=predicted_us,
)
