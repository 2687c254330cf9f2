"""The search space of decode_step.cu.j2: one time step of a dense cell, R read once by all SMs together."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.dense.mma import CYCLES_PER_MULTIPLY_ADD, CYCLES_PER_SHUFFLE
from minrnn_gen.plan.gpu_rates import launch_us
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


def _values(problem: Problem) -> int:
    """The values of a row that a lane reads at once, few enough that every lane has some."""
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


def variables(_: Problem) -> Mapping[str, tuple[int, ...]]:
    return {"units": (1, 2, 4), "warps": (1, 2, 4, 8), "batch_tile": (1, 2, 4, 8, 16), "stages": (1, 2, 4, 8)}


def _registers(problem: Problem, units: int, batch_tile: int, stages: int) -> int:
    cell, precision, rows = problem.cell, problem.precision, _rows(problem, units)
    words = problem.registers_per_value
    under_way = rows * stages * max(1, _values(problem) * precision.storage_bytes // REGISTER_BYTES)
    # Of 16 bits, a piece of each row once more, widened; and of a sequence's output, of any width.
    widened = (rows if precision.storage_bytes == 2 else 0) * _values(problem) + words * _values(problem)
    of_cell = words * (cell.step_values + len(cell.recurrent_gates) + len(cell.parameters) + 2 * len(cell.states))
    return REGISTERS_FIXED + under_way + widened + words * rows * batch_tile + of_cell


def _shared_map(problem: Problem, batch_tile: int, stages: int) -> dict[str, int]:
    row_values = _rounds(problem, stages) * stages * limits.WARP_LANES * _values(problem)
    return {"operand": batch_tile * row_values * problem.precision.storage_bytes}


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
            Quantity(("batch_tile", "stages"), lambda *of: sum(_shared_map(problem, *of).values())),
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    units, warps, batch_tile, stages = (candidate[name] for name in ("units", "warps", "batch_tile", "stages"))
    return limits.resident(
        problem,
        threads=warps * limits.WARP_LANES,
        channels_per_block=warps * units,
        registers_estimated=_registers(problem, units, batch_tile, stages),
        shared_map=_shared_map(problem, batch_tile, stages),
    )


def _sequences(problem: Problem, batch_tile: int) -> Amount:
    """The number of sequences that a tile computes for the typical batch."""
    sequences: Amount = batch_tile
    smaller = batch_tile // FEWER
    while smaller:
        sequences = where(problem.batch <= smaller, smaller, sequences)
        smaller //= FEWER
    return sequences


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
        "launch": launch_us(gpu),
    }


STEP = Family(
    name="decode_step",
    entry="decode_step",
    strategy="decode",
    copies=False,
    variables=variables,
    constraints=constraints,
    resources=resources,
    predicted_us=predicted_us,
)
