"""Costs of means over the units of a head in a persistent kernel: shared memory, registers, memory of a grid, and time."""

from __future__ import annotations

from collections.abc import Callable

from minrnn_gen.plan.gpu_rates import scales_of
from minrnn_gen.plan.limits import MBARRIER_BYTES, WARP_LANES
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, Problem
from minrnn_gen.plan.solver import Constraint

# Addends of a lane in a sum over units or blocks, where a warp has enough lanes (templates/parts/means_of_group.cuh.j2).
ADDENDS_OF_LANE = 8
# Registers of the values of a unit that a lane adds up, and of the merge under way.
REGISTERS = 16
# Of an exchange two barriers, sums over lanes and reading them; and between the blocks of a cluster or of a grid, with so much
# for every thousand words of 4 bytes that a block reads there. On an H100: layer_norm_lstm less lstm, 128, 512 and 1,024 units.
BLOCK_NS, CLUSTER_NS, GRID_NS, GATHERED_NS = 380.0, 330.0, 900.0, 490.0
# A mean, and the squares of differences from it.
MOMENTS = 2


def lanes_of_sum(addends: int) -> int:
    """Return how many lanes share a sum."""
    return next(lanes for lanes in (1, 2, 4, 8, 16, WARP_LANES) if lanes * ADDENDS_OF_LANE >= addends or lanes == WARP_LANES)


def _at_once(problem: Problem, batch_tile: int) -> int:
    return batch_tile * max((count for count, _ in problem.cell.waits), default=0)


def norm_units(problem: Problem) -> int:
    """Return the units of a part of a head that means over a head are over."""
    return problem.head_dim // problem.cell.norm_parts


def parts_of_block(problem: Problem, units: int, group_blocks: int) -> int:
    """Return how many of these parts a block of `units` units has, 1 if it has less than one."""
    return problem.cell.norm_parts if group_blocks == 1 else max(1, units // norm_units(problem))


def blocks_of_part(problem: Problem, units: int, group_blocks: int) -> int:
    """Return how many blocks have one of these parts together."""
    return 1 if group_blocks == 1 else max(1, norm_units(problem) // units)


def parts_of_warp(problem: Problem, units: int) -> int:
    """Return the most parts that the units of a warp may belong to."""
    of_part = norm_units(problem)
    return min(problem.cell.norm_parts, 1 if of_part % units == 0 else (units - 1) // of_part + 2)


def units_apart(problem: Problem, units: int, group_blocks: int) -> int:
    """Return how many units of a block or blocks of a group are beyond whole parts; 0 if either has whole ones of the other."""
    of_part = norm_units(problem)
    if problem.cell.norm_parts == 1 or group_blocks == 1:
        return 0
    return (of_part % units or group_blocks % (of_part // units)) if of_part >= units else units % of_part


def whole_parts(problem: Problem, variables: tuple[str, ...], blocks_of: Callable[..., tuple[int, int]]) -> Constraint:
    """Return the constraint on parts of a head that means are over; `blocks_of`: units of a block, blocks of a group."""
    return Constraint(
        "whole_parts",
        "blocks have whole parts of the head that means are over, or parts have whole blocks",
        variables,
        lambda *values: units_apart(problem, *blocks_of(*values)),
        lambda *_: 0,
        "units",
    )


def shared_map(problem: Problem, units: int, batch_tile: int, cluster_blocks: int, group_blocks: int) -> dict[str, int]:
    """Return the part of shared memory for the values of a block's units, what blocks send, and a step's means."""
    waits, arithmetic_bytes = problem.cell.waits, problem.precision.arithmetic_bytes
    if not waits:
        return {}
    values = max(rows for _, rows in waits) * batch_tile * (units + lanes_of_sum(units))
    of_step = MOMENTS * batch_tile * parts_of_block(problem, units, group_blocks) * sum(count for count, _ in waits)
    received = 2 * MOMENTS * cluster_blocks * _at_once(problem, batch_tile) if cluster_blocks > 1 else 0
    mbarriers = 2 * MBARRIER_BYTES
    if problem.cell.norm_parts > 1 and cluster_blocks > 1:
        received += 2 * MOMENTS * blocks_of_part(problem, units, group_blocks) * _at_once(problem, batch_tile)
        mbarriers *= 2
    # Each part begins at a multiple of what is moved at once.
    return {"means": arithmetic_bytes * (values + of_step + received) + mbarriers + 4 * WIDEST_COPY_BYTES}


def warpgroups_bytes(problem: Problem, units: int, columns: int, row_tiles: int) -> int:
    """Return the bytes of shared memory for means of warpgroups of so many units each, with `columns` sequences in all.

    These are values, their moments, and the means of a step, which the warpgroups of `row_tiles` tiles share.
    """
    waits = problem.cell.waits
    if not waits:
        return 0
    at_once, rows = (max(counts) for counts in zip(*waits, strict=True))
    values, of_step = rows * (units + lanes_of_sum(units)), MOMENTS * sum(count for count, _ in waits)
    words: int = columns * (values + MOMENTS * at_once) + columns // row_tiles * of_step
    return problem.precision.arithmetic_bytes * words


def exchange_bytes(problem: Problem, items: int, counter_bytes: int) -> int:
    """Return the bytes of memory for moments of so many tiles and sequences, of even and of odd exchanges, and a counter."""
    most = _at_once(problem, 1)
    return 2 * MOMENTS * problem.precision.arithmetic_bytes * items * most + counter_bytes if most else 0


def in_plan(problem: Problem, grid_blocks: int, batch_tile: int) -> dict[str, int]:
    """Return the bytes of memory through which the blocks of a grid exchange means, by their name in a plan."""
    if not problem.cell.waits:
        return {}
    words = MOMENTS * problem.precision.arithmetic_bytes // 4
    # Of even and of odd exchanges, each word with the number of its exchange; means of parts of a head apart.
    scopes = 2 if problem.cell.norm_parts > 1 else 1
    return {
        "means_exchange_bytes": scopes * 2 * grid_blocks * _at_once(problem, batch_tile) * words * 8 if grid_blocks > 1 else 0
    }


def registers(problem: Problem, cells: int) -> int:
    """Return a lane's registers for means and for the values that parts of a step keep for later parts."""
    cell = problem.cell
    if not cell.waits:
        return 0
    # A step back prepares much more than it reads; most of that is kept.
    kept = cell.held_count + (cell.prepared_count * 3 // 4 if problem.kernel_pass == "backward" else 0)
    return problem.registers_per_value * (cells * kept + REGISTERS)


def terms_ns(problem: Problem, units: int, cluster_blocks: int, grid_blocks: int, batch_tile: int) -> dict[str, float]:
    """Return the time of a step's exchanges as a term of the cost model, where there are any."""
    if not problem.cell.waits:
        return {}
    scales, exchanges = scales_of(problem.gpu), len(problem.cell.waits)
    # Means of parts of a head are not exchanged where a block has whole parts.
    is_exchanged = blocks_of_part(problem, units, cluster_blocks * grid_blocks) > 1
    between_blocks = exchanges - (0 if is_exchanged else problem.cell.waits_within_parts)
    words = MOMENTS * problem.precision.arithmetic_bytes / 4 * batch_tile * sum(count for count, _ in problem.cell.waits)
    between = between_blocks * CLUSTER_NS * scales.cluster if cluster_blocks > 1 else 0.0
    if grid_blocks > 1:
        between = scales.grid * (between_blocks * GRID_NS + words * grid_blocks / 1000 * GATHERED_NS)
    return {"means": exchanges * BLOCK_NS * scales.block + between}
