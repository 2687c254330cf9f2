"""The search space of scan_forward_channels.cu.j2: lanes along the channels, warps along time (layouts BTD and TBD)."""

from __future__ import annotations

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
        "channels_per_lane": (1, 2, 4, 8),
        "time_warps": (1, 2, 4, 8, 16),
        "rows_per_warp": (4, 8, 16, 32),
        "stages": (1, 2, 3, 4, 6, 8),
    }


def _registers(problem: Problem, channels_per_lane: int, rows_per_warp: int) -> int:
    cell = problem.cell
    words = problem.precision.arithmetic_bytes // 4
    kept = 2 * len(cell.states) + cell.carried_count
    per_channel = REGISTERS_PER_GATE_AND_CHANNEL * len(cell.gates) + len(cell.parameters) + 4 * len(cell.states)
    steps = REGISTERS_PER_STEP_VALUE * rows_per_warp * kept
    return REGISTERS_FIXED + int(words * channels_per_lane * (steps + per_channel))


def _ring_bytes(problem: Problem, channels_per_lane: int, time_warps: int, rows_per_warp: int, stages: int) -> int:
    row = scan.WARP_LANES * channels_per_lane * problem.precision.storage_bytes
    return time_warps * stages * len(problem.cell.gates) * rows_per_warp * row


def _composed_bytes(problem: Problem, channels_per_lane: int, time_warps: int) -> int:
    """Two tiles' compositions (a, b) of every warp, where there is more than one warp to exchange them."""
    if time_warps == 1:
        return 0
    per_channel = 2 * problem.precision.arithmetic_bytes * len(problem.cell.states)
    return 2 * time_warps * scan.WARP_LANES * channels_per_lane * per_channel


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    ring = ("channels_per_lane", "time_warps", "rows_per_warp", "stages")
    hidden_size = problem.hidden_size

    def shared_bytes(channels_per_lane: int, time_warps: int, rows_per_warp: int, stages: int) -> int:
        ring_bytes = _ring_bytes(problem, channels_per_lane, time_warps, rows_per_warp, stages)
        return ring_bytes + _composed_bytes(problem, channels_per_lane, time_warps)

    def in_flight(channels_per_lane: int, time_warps: int, rows_per_warp: int, stages: int) -> int:
        return _ring_bytes(problem, channels_per_lane, time_warps, rows_per_warp, max(1, stages - 1))

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
            "one instruction moves at most 16 bytes per lane",
            ("channels_per_lane",),
            lambda channels_per_lane: channels_per_lane * problem.precision.storage_bytes,
            lambda _: 16,
            "bytes",
        ),
        Constraint(
            "channels_per_block",
            "a block wider than the hidden size is dominated: its lanes idle",
            ("channels_per_lane",),
            lambda channels_per_lane: channels_per_lane,
            lambda _: -(-hidden_size // scan.WARP_LANES),
            "channels per lane",
        ),
        *scan.hardware_constraints(
            problem.gpu,
            Quantity(("time_warps",), lambda time_warps: time_warps * scan.WARP_LANES),
            Quantity(("channels_per_lane", "rows_per_warp"), lambda channels, rows: _registers(problem, channels, rows)),
            Quantity(ring, shared_bytes),
        ),
        *scan.copy_constraints(problem, Quantity(ring, in_flight)),
        scan.unrolled_constraint(
            problem, Quantity(("channels_per_lane", "rows_per_warp"), lambda channels, rows: channels * rows)
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    channels_per_lane, time_warps = candidate["channels_per_lane"], candidate["time_warps"]
    rows_per_warp = candidate["rows_per_warp"]
    shared_map = {"ring": _ring_bytes(problem, channels_per_lane, time_warps, rows_per_warp, candidate["stages"])}
    if time_warps > 1:
        shared_map["composed"] = _composed_bytes(problem, channels_per_lane, time_warps)
    return scan.resident(
        problem,
        threads=time_warps * scan.WARP_LANES,
        channels_per_block=scan.WARP_LANES * channels_per_lane,
        registers_estimated=_registers(problem, channels_per_lane, rows_per_warp),
        shared_map=shared_map,
    )


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, float]:
    taken = resources(problem, candidate)
    time_warps, rows_per_warp = candidate["time_warps"], candidate["rows_per_warp"]
    blocks = problem.batch * -(-problem.hidden_size // taken.channels_per_block)
    elements = rows_per_warp * candidate["channels_per_lane"]
    walks = 2 if time_warps > 1 else 1
    exchange = scan.BARRIER_CYCLES + time_warps * (scan.BARRIER_CYCLES_PER_WARP + scan.DEPENDENT_CYCLES)
    tile_chain_cycles = (
        2 * scan.SHARED_LATENCY_CYCLES
        + elements * scan.operations_per_element(problem)
        + walks * rows_per_warp * scan.DEPENDENT_CYCLES
        + (exchange + scan.SHARED_LATENCY_CYCLES if time_warps > 1 else 0)
    )
    return scan.predicted_us(
        problem,
        taken,
        blocks=blocks,
        in_flight_bytes=taken.shared_map["ring"] * max(1, candidate["stages"] - 1) // candidate["stages"],
        tile_steps=time_warps * rows_per_warp,
        tile_chain_cycles=tile_chain_cycles,
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
