"""The search space of decode_step.cu.j2 and decode_rounds.cu.j2: one time step of a dense cell, R read by all SMs together."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.dense import means
from minrnn_gen.plan.dense.mma import CYCLES_PER_MULTIPLY_ADD, CYCLES_PER_SHUFFLE
from minrnn_gen.plan.dense.step_model import MODELS
from minrnn_gen.plan.gpu_rates import launch_us, scales_of
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum, minimum, where
from minrnn_gen.plan.problem import REGISTER_BYTES, Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

# Addresses, strides, places and what is under way of the outputs; an upper bound of what compiled kernels take.
REGISTERS_FIXED = 56
# A tile with a quarter of its sequences, or less, is computed as one of so many (templates/decode_step.cu.j2).
FEWER = 4
# Loads of outputs that a thread has under way at once (as in the template).
FILLS_UNDER_WAY = 8
# The products of a round are unrolled, for a tile and its quarters; with more of them NVRTC takes seconds.
UNROLLED_PRODUCTS_MAX = 1100
# A warp's places, the barrier and its part in the cell, counted in the source.
INSTRUCTIONS_PER_WARP = 120.0
# Words on their way between blocks, with their numbers and places.
REGISTERS_OF_EXCHANGE = 24
# What is published at once, a word and its number (templates/parts/decode_exchange.cuh.j2).
WORD_BYTES, PUBLISHED_BYTES = 4, 8


def _values(problem: Problem) -> int:
    """Return how many values of a row a lane loads at once: as many as leave no lane idle."""
    values, storage_bytes = 1, problem.precision.storage_bytes
    while (
        values * limits.WARP_LANES < problem.head_dim and 2 * values * storage_bytes <= problem.specialization.alignment_bytes
    ):
        values *= 2
    return values


def _pieces_of_row(problem: Problem) -> int:
    """The number of reads of a lane per row."""
    return -(-problem.head_dim // (_values(problem) * limits.WARP_LANES))


def _rounds(problem: Problem, stages: int) -> int:
    return -(-_pieces_of_row(problem) // stages)


def _rows(problem: Problem, units: int) -> int:
    """The rows of R that a warp has."""
    return units * len(problem.cell.recurrent_gates)


def _waits(problem: Problem) -> bool:
    """Whether the blocks of a head wait for each other: for a round of products, or for means over units."""
    return bool(problem.cell.rounds or problem.cell.waits)


def _rows_at_once(problem: Problem, units: int) -> int:
    """The rows that a warp multiplies in the same round."""
    gates, of_rounds = len(problem.cell.recurrent_gates), tuple(map(len, problem.cell.rounds))
    return units * max(gates - sum(of_rounds), *of_rounds, 0)


def _group_blocks(problem: Problem, units: int, warps: int) -> int:
    """The blocks that share a head."""
    return -(-problem.head_dim // (warps * units))


def variables(_: Problem) -> Mapping[str, tuple[int, ...]]:
    return {"units": (1, 2, 4), "warps": (1, 2, 4, 8), "batch_tile": (1, 2, 4, 8, 16), "stages": (1, 2, 4, 8)}


def _registers(problem: Problem, units: int, batch_tile: int, stages: int) -> int:
    cell, precision, rows = problem.cell, problem.precision, _rows_at_once(problem, units)
    words = problem.registers_per_value
    under_way = rows * stages * max(1, _values(problem) * precision.storage_bytes // REGISTER_BYTES)
    # Of 16 bits, a piece of each row once more, widened; and of a sequence's output, of any width.
    widened = (rows if precision.storage_bytes == 2 else 0) * _values(problem) + words * _values(problem)
    of_cell = words * (cell.step_values + len(cell.recurrent_gates) + len(cell.parameters) + 2 * len(cell.states))
    of_exchange = REGISTERS_OF_EXCHANGE + means.registers(problem, 1) if _waits(problem) else 0
    return REGISTERS_FIXED + under_way + widened + words * rows * batch_tile + of_cell + of_exchange


def _shared_map(problem: Problem, units: int, warps: int, batch_tile: int, stages: int) -> dict[str, int]:
    row_values = _rounds(problem, stages) * stages * limits.WARP_LANES * _values(problem)
    operand = {"operand": batch_tile * row_values * problem.precision.storage_bytes}
    return operand | means.shared_map(
        problem, warps * units, batch_tile, cluster_blocks=1, group_blocks=_group_blocks(problem, units, warps)
    )


def _in_plan(problem: Problem, units: int, warps: int, batch_tile: int) -> dict[str, int]:
    """The blocks of a group, and the bytes of memory through which they exchange operands and means."""
    if not _waits(problem):
        return {}
    group = _group_blocks(problem, units, warps)
    words = max(1, problem.precision.storage_bytes // WORD_BYTES)
    operands = len(problem.cell.rounds) * batch_tile * group * warps * units * words * PUBLISHED_BYTES
    of_means = means.in_plan(problem, group, batch_tile).get("means_exchange_bytes", 0)
    return {"grid_blocks": group, "exchange_bytes": operands + of_means}


def _constraints_of_groups(problem: Problem) -> tuple[Constraint, ...]:
    every = tuple(variables(problem))
    if not _waits(problem):
        return ()
    return (
        Constraint(
            "blocks_of_group",
            "the blocks of a head wait for each other, so the GPU has to hold all of them at once",
            every,
            lambda units, warps, *_: _group_blocks(problem, units, warps),
            lambda *values: problem.gpu.sm_count * resources(problem, dict(zip(every, values, strict=True))).blocks_per_sm,
            "blocks",
            "split the hidden size into more heads",
        ),
        means.whole_parts(
            problem, ("units", "warps"), lambda units, warps: (units * warps, _group_blocks(problem, units, warps))
        ),
        Constraint(
            "pair_of_units",
            "two neighbouring values of an operand are read at once, so a block has an even number of units",
            ("units", "warps"),
            lambda *_: 2,
            lambda units, warps: units * warps,
            "units",
        ),
    )


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    values, of_registers = _values(problem), ("units", "batch_tile", "stages")
    return (
        Constraint(
            "one_cell_per_lane",
            "a lane has the products of one unit of one sequence at most",
            ("units", "batch_tile"),
            lambda units, batch_tile: units * batch_tile,
            lambda *_: limits.WARP_LANES,
            "cells",
        ),
        Constraint(
            "units_wasted",
            "with a warp less in every block the units would fit as well",
            ("units", "warps"),
            lambda units, warps: (warps - 1) * units + 1,
            lambda *_: problem.head_dim,
            "units",
        ),
        Constraint(
            "pieces_of_row",
            "with half as many stages under way a lane would have its whole part of a row as well",
            ("stages",),
            lambda stages: stages // 2 + 1,
            lambda _: _pieces_of_row(problem),
            "stages",
        ),
        Constraint(
            "unrolled_operations",
            "the products of a round are unrolled, so that sums stay in registers; beyond this the compiler takes too long",
            of_registers,
            lambda units, batch_tile, stages: _rows(problem, units) * batch_tile * stages * values,
            lambda *_: UNROLLED_PRODUCTS_MAX,
            "operations",
            "split the cell's equations into fewer products",
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("warps",), lambda warps: warps * limits.WARP_LANES),
            Quantity(of_registers, lambda *of: _registers(problem, *of)),
            Quantity(("units", "warps", "batch_tile", "stages"), lambda *of: sum(_shared_map(problem, *of).values())),
        ),
        *_constraints_of_groups(problem),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    units, warps, batch_tile, stages = (candidate[name] for name in ("units", "warps", "batch_tile", "stages"))
    return limits.resident(
        problem,
        threads=warps * limits.WARP_LANES,
        channels_per_block=warps * units,
        registers_estimated=_registers(problem, units, batch_tile, stages),
        shared_map=_shared_map(problem, units, warps, batch_tile, stages),
        partition=_in_plan(problem, units, warps, batch_tile),
    )


def _sequences(problem: Problem, batch_tile: int) -> Amount:
    """The number of sequences that a tile computes for the typical batch."""
    sequences: Amount = batch_tile
    # Where blocks wait for each other, all of a group take the whole tile.
    smaller = 0 if _waits(problem) else batch_tile // FEWER
    while smaller:
        sequences = where(problem.batch <= smaller, smaller, sequences)
        smaller //= FEWER
    return sequences


def _waits_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """The exchanges of a group, which takes heads and tiles in turn: of operands as in a grid over time, and of means."""
    if not _waits(problem):
        return {}
    units, warps, batch_tile = (candidate[name] for name in ("units", "warps", "batch_tile"))
    gpu, model, threads = problem.gpu, MODELS["forward"], warps * limits.WARP_LANES
    group, resident = _group_blocks(problem, units, warps), resources(problem, candidate).blocks_per_sm * gpu.sm_count
    groups = problem.heads * ceil(problem.batch / batch_tile)
    turns = ceil(groups / max(1, resident // group))
    blocks_of_busiest_sm = ceil(minimum(groups * group, resident) / gpu.sm_count)
    words = batch_tile * group * warps * units * max(1, problem.precision.storage_bytes // WORD_BYTES)
    gathered = model.grid + blocks_of_busiest_sm * words / 1000 * model.gathered + words / (2 * threads) * model.load
    of_means = means.terms_ns(problem, candidate["warps"] * candidate["units"], 1, group, batch_tile)
    exchange = len(problem.cell.rounds) * scales_of(gpu).grid * gathered
    return {name: turns * ns / 1e3 for name, ns in {"exchange": exchange, **of_means}.items()}


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """A step is bound by its launch and a few trips through L2; what is left is spreading R and the products over all SMs."""
    gpu, precision, head_dim = problem.gpu, problem.precision, problem.head_dim
    units, warps, batch_tile, stages = (candidate[name] for name in ("units", "warps", "batch_tile", "stages"))
    rows, values, sequences = _rows(problem, units), _values(problem), _sequences(problem, batch_tile)
    blocks = ceil(problem.batch / batch_tile) * problem.heads * ceil(head_dim / (warps * units))
    blocks_of_busiest_sm = ceil(blocks / gpu.sm_count)
    matrix_bytes = warps * rows * head_dim * precision.storage_bytes
    block_bytes = matrix_bytes + minimum(problem.batch, batch_tile) * head_dim * precision.arithmetic_bytes
    whole_bytes = rows // units * problem.hidden_size * head_dim * precision.storage_bytes
    bandwidth = gpu_rates.bytes_per_s(gpu, whole_bytes)

    states_read = max(1, problem.specialization.alignment_bytes // precision.arithmetic_bytes)
    fills = ceil(sequences * head_dim / states_read / (warps * limits.WARP_LANES))
    widening = precision.storage_bytes == 2
    multiply_add = CYCLES_PER_MULTIPLY_ADD[precision.arithmetic_bytes]
    of_piece = values * (rows * widening + sequences * (widening + rows * multiply_add)) + rows + sequences
    shuffles = rows * maximum(sequences - 1, 0) + (rows // units) * 5  # halves of all cells, then copies of one
    of_warp = _pieces_of_row(problem) * of_piece + shuffles * CYCLES_PER_SHUFFLE + fills * (2 * states_read + 4)
    warps_of_partition = ceil(blocks_of_busiest_sm * warps / gpu.partitions_per_sm)
    cycles = warps_of_partition * (of_warp + INSTRUCTIONS_PER_WARP + gpu_rates.operations_per_element(problem))

    trips = ceil(fills / FILLS_UNDER_WAY) + _rounds(problem, stages) - 1
    cycles_per_us = gpu.sm_clock_hz / 1e6
    return {
        "memory": blocks * block_bytes / bandwidth * 1e6,
        "busiest_sm": blocks_of_busiest_sm * block_bytes / gpu_rates.SM_BYTES_PER_CYCLE / cycles_per_us,
        "issue": cycles / cycles_per_us,
        "chain": trips * gpu_rates.CYCLES_PER_L2_TRIP / cycles_per_us,
        **_waits_us(problem, candidate),
        "launch": launch_us(gpu),
    }


def _family(name: str) -> Family:
    return Family(
        name=name,
        entry="decode_step",
        strategy="decode",
        copies=False,
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )


STEP = _family("decode_step")
ROUNDS = _family("decode_rounds")
