"""The search space of the scans that all blocks of a GPU run together (layouts BTD and TBD): few channels over a long time."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.kernel_plan import OVERLAP_NORM
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum, minimum, where
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

# Registers besides what the tiles take: addresses, strides, loop state and loads under way; for each gate its copies, and for a
# parameter what a step makes of it. Read off kernels of two and three gates, compiled by NVRTC 13.0 and 13.4.
REGISTERS_FIXED, REGISTERS_PER_GATE, REGISTERS_PER_PARAMETER = 28, 8, 10
# The backward has pointers to four arrays instead of two, and of its tiles a few rows under way.
BACKWARD_REGISTERS_FIXED, BACKWARD_REGISTERS_PER_GATE_AND_CHANNEL = 58, 10
# Aggregates of other blocks that a warp has under way while it reduces a tile.
READS_AT_ONCE = 2
# What follows was fitted to 309 forwards and 308 backwards on an H200 (docs/lab-notes.md), each to its pass. Warps that share a
# partition's scheduler take less than one after the other, by a power of their number.
CYCLES_PER_OPERATION = {"forward": 1.635, "backward": 1.12}
WARPS_POWER = {"forward": 0.563, "backward": 0.692}
CYCLES_PER_TILE = {"forward": 186.0, "backward": 877.0}  # of a block: its copies, and the barrier
CYCLES_PER_SHARED_TILE = {"forward": 147.0, "backward": 471.0}  # besides, where blocks share a column: its aggregate published
CYCLES_PER_FOLD = {"forward": 34.6, "backward": 49.2}  # a warp's aggregate of one state read from shared memory and applied
CYCLES_PER_READ = {"forward": 336.0, "backward": 323.0}  # a tile's aggregate waited for through L2 and composed
CYCLES_OF_ENDS = {"forward": 12_000.0, "backward": 17_700.0}  # the first tile from an idle memory, and the last one scanned
# Additional time of the memory where an SM reads rows far apart, with three blocks or more, or whole columns next to each
# other: 7 to 9 % of forwards of 8 x 16,384 x 1,536 and 1 x 262,144 x 4,096.
SHARE_OF_ROWS_APART = 0.07
# What a tile takes, of what it would, where it is finished two tiles later: a forward holds both in registers, and a backward
# waits for less.
SHARE_OF_TWO_TILES_LATER = {"forward": 1.077, "backward": 0.959}


def variables(_: Problem) -> Mapping[str, tuple[int, ...]]:
    return {
        "channels_per_lane": (1, 2),
        "time_warps": (4, 8, 16),
        "steps_per_lane": (4, 8, 12, 16, 20, 24, 32),
        "stages": (2, 3, 4),
        "lag": (1, 2),
    }


def _registers(problem: Problem, channels_per_lane: int, steps: int, lag: int) -> int:
    cell = problem.cell
    states = len(cell.states)
    if problem.kernel_pass == "backward":
        # Coefficients are computed again for every row and pass; what stays are the sums.
        gates = (BACKWARD_REGISTERS_PER_GATE_AND_CHANNEL + 1) * cell.step_values
        per_channel = gates + 2 * len(cell.parameters) + states * (2 + 2 * READS_AT_ONCE)
        return BACKWARD_REGISTERS_FIXED + problem.registers_per_value * channels_per_lane * per_channel
    of_tile = steps * (2 * states + cell.carried_count)
    once = cell.step_values + len(cell.parameters) + states * (1 + 2 * READS_AT_ONCE)
    fixed = REGISTERS_FIXED + REGISTERS_PER_GATE * cell.step_values + REGISTERS_PER_PARAMETER * len(cell.parameters)
    return fixed + problem.registers_per_value * channels_per_lane * ((lag + 1) * of_tile + once)


def _stages_bytes(problem: Problem, channels_per_lane: int, time_warps: int, steps: int, stages: int) -> int:
    row_bytes = limits.WARP_LANES * channels_per_lane * problem.precision.storage_bytes
    return time_warps * stages * problem.cell.read_count * steps * row_bytes


def _exchange_bytes(problem: Problem, channels_per_lane: int, time_warps: int, lag: int) -> int:
    """Bytes of the aggregates in shared memory: of each warp's own segments, and those that it gathered for two tiles."""
    lane_bytes = channels_per_lane * len(problem.cell.states) * 2 * problem.precision.arithmetic_bytes
    return (lag + 4) * time_warps * limits.WARP_LANES * lane_bytes


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    storage_bytes = problem.precision.storage_bytes
    alignment_bytes = problem.specialization.alignment_bytes
    of_stages = ("channels_per_lane", "time_warps", "steps_per_lane", "stages")
    return (
        limits.whole_vectors_constraint(problem),
        limits.vector_width_constraint(problem, ", and copied as a whole"),
        Constraint(
            "whole_copies",
            "a copy instruction moves a piece per lane, of whole rows of a segment",
            ("channels_per_lane", "steps_per_lane"),
            lambda channels_per_lane, steps: steps * channels_per_lane * storage_bytes % alignment_bytes,
            lambda *_: 0,
            "bytes left over",
        ),
        Constraint(
            "tiles_kept",
            "a backward keeps the tile that it scans and those that it reduced since, and one more is copied",
            ("stages", "lag"),
            lambda _, lag: lag + 2 if problem.kernel_pass == "backward" else 1,
            lambda stages, _: stages,
            "stages",
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("time_warps",), lambda time_warps: time_warps * limits.WARP_LANES),
            Quantity(("channels_per_lane", "steps_per_lane", "lag"), lambda *values: _registers(problem, *values)),
            Quantity(
                (*of_stages, "lag"),
                lambda channels_per_lane, time_warps, steps, stages, lag: (
                    _stages_bytes(problem, channels_per_lane, time_warps, steps, stages)
                    + _exchange_bytes(problem, channels_per_lane, time_warps, lag)
                ),
            ),
        ),
        limits.unrolled_constraint(
            problem, Quantity(("channels_per_lane", "steps_per_lane"), lambda channels, steps: channels * steps)
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    channels_per_lane, time_warps = candidate["channels_per_lane"], candidate["time_warps"]
    steps, stages, lag = candidate["steps_per_lane"], candidate["stages"], candidate["lag"]
    return limits.resident(
        problem,
        threads=time_warps * limits.WARP_LANES,
        channels_per_block=limits.WARP_LANES * channels_per_lane,
        registers_estimated=_registers(problem, channels_per_lane, steps, lag),
        shared_map={
            "stages": _stages_bytes(problem, channels_per_lane, time_warps, steps, stages),
            "exchange": _exchange_bytes(problem, channels_per_lane, time_warps, lag),
        },
        tile_steps=time_warps * steps,
        partition={"reads_at_once": READS_AT_ONCE},
    )


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Return the cost model's terms in microseconds.

    `chain`: the consecutive tiles of a block, each with the instructions and waits of its warps, and the special functions of
    all warps of the SM. `launch`: includes the launch that fills the workspace with ones. `fill_and_drain`: what does not
    overlap at both ends.
    """
    block, gpu, kernel_pass = resources(problem, candidate), problem.gpu, problem.kernel_pass
    channels_per_lane, time_warps = candidate["channels_per_lane"], candidate["time_warps"]
    cycles_per_us = gpu.sm_clock_hz / 1e6
    resident = gpu.sm_count * block.blocks_per_sm
    columns = problem.batch * -(-problem.hidden_size // block.channels_per_block)
    tiles = ceil(problem.time / block.tile_steps)
    column_blocks = maximum(1, minimum(resident // columns, tiles))
    rounds = ceil(columns * column_blocks / resident)
    elements = candidate["steps_per_lane"] * channels_per_lane
    operations = elements * gpu_rates.operations_per_element(problem) * CYCLES_PER_OPERATION[kernel_pass]
    folds = time_warps * channels_per_lane * len(problem.cell.states) * CYCLES_PER_FOLD[kernel_pass]
    warps_per_scheduler = maximum(1.0, time_warps * block.blocks_per_sm / gpu.partitions_per_sm)
    sharing = warps_per_scheduler ** WARPS_POWER[kernel_pass]
    on_sm = minimum(block.blocks_per_sm, ceil(columns * column_blocks / gpu.sm_count))
    functions = on_sm * time_warps * elements * problem.cell.transcendental_count * limits.WARP_LANES
    # Neither hides the other quite, as in `total_us`.
    of_elements = (
        (operations * sharing) ** OVERLAP_NORM + (functions / gpu_rates.transcendentals_per_sm_cycle(gpu)) ** OVERLAP_NORM
    ) ** (1 / OVERLAP_NORM)
    is_shared = minimum(column_blocks - 1, 1)
    of_tile = (
        CYCLES_PER_TILE[kernel_pass]
        + is_shared * CYCLES_PER_SHARED_TILE[kernel_pass]
        + of_elements
        + folds * sharing
        + (column_blocks - 1) / time_warps * CYCLES_PER_READ[kernel_pass]
    )
    iterations = rounds * (ceil(tiles / column_blocks) + candidate["lag"])
    of_tile = of_tile * (SHARE_OF_TWO_TILES_LATER[kernel_pass] if candidate["lag"] == 2 else 1.0)
    state_bytes = 2 * problem.precision.arithmetic_bytes * len(problem.cell.states)
    workspace_us = is_shared * columns * tiles * block.channels_per_block * state_bytes / gpu.bandwidth_bytes_per_s * 1e6
    # In a last round of few blocks the others' share of the bandwidth is lost.
    in_last_round = where(rounds > 1, rounds * resident / (columns * column_blocks), 1.0)
    has_rows_apart = maximum(block.blocks_per_sm > 2, (1 - is_shared) * (columns > gpu.sm_count))
    of_memory = in_last_round * (1 + SHARE_OF_ROWS_APART * has_rows_apart)
    return {
        "memory": problem.traffic_bytes / gpu.bandwidth_bytes_per_s * 1e6 * of_memory + 2 * workspace_us,
        "chain": iterations * of_tile / cycles_per_us,
        "fill_and_drain": rounds * CYCLES_OF_ENDS[kernel_pass] / cycles_per_us,
        "launch": 2 * gpu_rates.launch_us(gpu) + workspace_us,
    }


def _family(name: str, entry: str) -> Family:
    return Family(
        name=name,
        entry=entry,
        strategy="cooperative",
        copies=True,
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )


FORWARD = _family("scan_forward_cooperative", entry="scan_forward")
BACKWARD = _family("scan_backward_cooperative", entry="scan_backward")
