"""The search space of recurrent_forward.cu.j2 and recurrent_backward.cu.j2: all steps of a dense cell in one launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minrnn_gen.plan import scan
from minrnn_gen.plan.occupancy import clusters_at_once, registers_per_thread_budget
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, MatrixProduct, Problem
from minrnn_gen.plan.rates import launch_us, scales_of
from minrnn_gen.plan.recurrent_product import RESULTS, UNITS_PER_WARP, Tiling, tiling
from minrnn_gen.plan.scan import Quantity
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

COLUMNS = 8  # of a tensor core's tile (PTX ISA, mma.sync): sequences
MAILBOX_BYTES = 8
# A lane's part of a tile of a matrix of 16 bits, of which shared memory may hold some sixteenths.
FRAGMENT_BYTES, SIXTEENTHS = 16, 16
# Fragments of shared memory under way, of each row of tiles beyond four some more, and how far the estimate of registers is
# off.
REGISTERS_OF_SHARED, REGISTERS_OF_SHARED_ROW, REGISTERS_ESTIMATE_OFF = 8, 3, 16
# In the backward, where most registers are taken: of each result of a lane that warps add up, and its place.
BACKWARD_REGISTERS_OF_ADDING = 7
# Of the sums of other blocks that are added up side by side; in float32 they are among the fixed ones.
REGISTERS_OF_TOLD_IN_FP64 = 12
# What an SM reads from shared memory in a cycle (CUDA C++ programming guide: 32 banks of 4 bytes).
SHARED_BYTES_PER_CYCLE = 128
# Addresses, strides, the loop and what is under way, read off compiled kernels.
REGISTERS_FIXED, BACKWARD_REGISTERS_FIXED = 36, 62
# And the places of R's values, where they are loaded one by one.
REGISTERS_OF_PLACES = 22
# Of a piece that a lane copies for every step: from where (two), and for how many steps more. Those of 16 bytes are few, and
# among the fixed ones.
REGISTERS_OF_PIECE = 3

# From a load to its value under load: what is not under way for so long is waited for.
# Now and then one takes longer; of a thousand steps that is as much in each, with one step ahead.
MEMORY_LATENCY_NS, LATE_NS = 1140.0, 10.0
# Words of what a grid hands on that a lane has under way, with the step of each and where they are; in the backward, where most
# registers are taken, some for each cell too.
REGISTERS_OF_GATHER, BACKWARD_REGISTERS_OF_GATHER, BACKWARD_REGISTERS_OF_GATHER_PER_CELL = 20, 14, 8


@dataclass(frozen=True)
class StepModel:
    """What a step takes, in nanoseconds, fitted to candidates of 44 passes on an H200 (docs/performance.md).

    On other GPUs `Scales` says how many times as long.

    `step`: of every step. `product`: of a tile's product, for each warp of a partition, and `operand`: of a tile of what it is
    multiplied by, which all rows of tiles share. `transcendental` and `operation`: of one of a lane's cells, for each warp.
    `add_up`: of adding up over warps, with `added` for each of them. `exchange`: of a cluster, with `received` for each
    KB that an SM is told. `grid`: of a grid, with `gathered` for every thousand words that an SM reads, of 4 bytes and as much
    for the step, and `load` for each load of a lane.
    """

    step: float
    product: float
    operand: float
    transcendental: float
    operation: float
    add_up: float
    added: float
    exchange: float
    received: float
    grid: float
    gathered: float
    load: float


MODELS = {
    "forward": StepModel(118.0, 3.63, 0.0, 2.9, 0.68, 112.0, 22.0, 29.0, 55.7, 286.0, 153.0, 76.0),
    "backward": StepModel(208.0, 0.0, 6.8, 19.8, 0.55, 0.0, 22.0, 2.3, 54.3, 539.0, 115.0, 53.0),
}


def refusal(problem: Problem) -> str:
    """Return why these kernels are not for `problem`, whatever its sizes; empty where they are."""
    if not problem.gpu.has_async_copy:
        return f"{problem.gpu.name} has no asynchronous copies and no tensor cores of this tile, both there from sm_80 on"
    if problem.layout == "BDT":
        return "the channels of a row are not contiguous in layout BDT, only in BTD and TBD"
    return ""


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    of_product: dict[MatrixProduct, dict[str, tuple[int, ...]]] = {
        "narrow": {"shared_sixteenths": tuple(range(SIXTEENTHS))},
        "tf32x3": {"splits_once": (0, 1)},
        "fma": {},
    }
    return {
        "cluster_blocks": tuple(size for size in (1, 2, 4, 8, 16) if size <= problem.gpu.cluster_size_max),
        "grid_blocks": (1, *_grids(problem)),
        "unit_warps": (1, 2, 3, 4, 5, 6, 7, 8),
        "k_warps": (1, 2, 4, 8),
        **of_product[problem.matrix_product],
        "batch_tile": (2, 4, 8),
        "ahead": (2, 4, 8),
    }


def _grids(problem: Problem) -> tuple[int, ...]:
    """Groups of more blocks than a cluster has, but no more than the GPU holds, with a head for 1, 2 or 4 warps of each."""
    gpu = problem.gpu
    wanted = {-(-_head_dim(problem) // (warps * UNITS_PER_WARP)) for warps in (1, 2, 4)}
    return tuple(sorted(blocks for blocks in wanted if gpu.cluster_size_max < blocks <= gpu.sm_count))


def _group_blocks(candidate: Candidate) -> int:
    """The blocks that share a head and a tile of sequences."""
    return candidate["cluster_blocks"] * candidate["grid_blocks"]


def _tiling(problem: Problem, candidate: Candidate) -> Tiling:
    return tiling(problem, _tiles(problem, candidate), candidate["batch_tile"], candidate.get("splits_once", 0))


def _head_dim(problem: Problem) -> int:
    return problem.hidden_size // problem.heads


def _width(problem: Problem) -> int:
    """The values of each unit that are multiplied: its output, or the gradients of its products."""
    return len(problem.cell.recurrent_gates) if problem.kernel_pass == "backward" else 1


def _tells_sums(problem: Problem, candidate: Candidate) -> bool:
    """Whether blocks tell each other sums of what they multiplied, instead of what all of them are to multiply."""
    return problem.kernel_pass == "backward" and candidate["cluster_blocks"] > 1


def _tiles(problem: Problem, candidate: Candidate) -> int:
    """The rows of a warp's tiles: the products of each unit, or the blocks whose sums it makes."""
    if _tells_sums(problem, candidate):
        return max(1, candidate["cluster_blocks"] // candidate["k_warps"])
    return 1 if problem.kernel_pass == "backward" else len(problem.cell.recurrent_gates)


def _operand_row(problem: Problem, candidate: Candidate) -> int:
    """The values of a sequence that a block multiplies."""
    blocks = 1 if _tells_sums(problem, candidate) else _group_blocks(candidate)
    return _width(problem) * blocks * candidate["unit_warps"] * UNITS_PER_WARP


def _operand_tiles(problem: Problem, candidate: Candidate) -> int:
    return _operand_row(problem, candidate) // _tiling(problem, candidate).depth


def _tiles_per_warp(problem: Problem, candidate: Candidate) -> float:
    """The tiles of a row of them, of which warps with the same units have a part each, or each its own rows."""
    return _operand_tiles(problem, candidate) / (1 if _tells_sums(problem, candidate) else candidate["k_warps"])


def _shared_tiles(problem: Problem, candidate: Candidate) -> int:
    """The tiles of the operand whose part of a warp's matrix is in shared memory."""
    if not (sixteenths := candidate.get("shared_sixteenths", 0)):
        return 0
    tiles = int(_tiles_per_warp(problem, candidate))
    # As many come together as there are sums under way.
    group = max(2, _tiling(problem, candidate).sum // RESULTS)
    return tiles * sixteenths // SIXTEENTHS // group * group


def _cells(candidate: Candidate) -> int:
    """The cells of a lane: a tile has four results for it, and every sequence as many copies as there is room for."""
    return RESULTS * _cell_columns(candidate) // COLUMNS


def _cell_warps(candidate: Candidate) -> int:
    """The warps with the same units that compute their cells, each for some of the sequences, two at least."""
    return min(candidate["k_warps"], candidate["batch_tile"] // 2)


def _cell_columns(candidate: Candidate) -> int:
    """The sequences of which a warp has the cells."""
    return candidate["batch_tile"] // _cell_warps(candidate)


def _registers(problem: Problem, candidate: Candidate) -> int:
    cell, words, its = problem.cell, problem.precision.arithmetic_bytes // 4, _tiling(problem, candidate)
    gates, products, states, vectors = len(cell.gates), len(cell.recurrent_gates), len(cell.states), len(cell.parameters)
    in_shared = _shared_tiles(problem, candidate)
    tiles = math.ceil(_tiles_per_warp(problem, candidate)) - in_shared
    rows = _tiles(problem, candidate)
    matrix = its.matrix * rows * tiles + (REGISTERS_OF_SHARED + REGISTERS_OF_SHARED_ROW * max(0, rows - 4) if in_shared else 0)
    sums = its.sum * rows + (0 if problem.matrix_product == "narrow" else REGISTERS_OF_PLACES)
    if candidate["grid_blocks"] > 1:
        of_backward = BACKWARD_REGISTERS_OF_GATHER + BACKWARD_REGISTERS_OF_GATHER_PER_CELL * _cells(candidate)
        sums += of_backward if problem.kernel_pass == "backward" else REGISTERS_OF_GATHER
    pieces = REGISTERS_OF_PIECE * _narrow_pieces(problem, _cell_columns(candidate))
    if problem.kernel_pass == "backward":
        if _tells_sums(problem, candidate):
            sums += (words - 1) * REGISTERS_OF_TOLD_IN_FP64 * _cells(candidate)
        elif candidate["k_warps"] > 1:
            sums += BACKWARD_REGISTERS_OF_ADDING * RESULTS * candidate["batch_tile"] // COLUMNS
        per_cell = words * (2 * states + 3 * (gates + products) + 2 * vectors) + 8
        return BACKWARD_REGISTERS_FIXED + matrix + sums + pieces + _cells(candidate) * per_cell
    per_cell = words * (2 * gates + states + products + vectors) + 8
    return REGISTERS_FIXED + matrix + sums + pieces + _cells(candidate) * per_cell


def _slot_bytes(problem: Problem, columns: int) -> int:
    """What a warp reads from memory for one step."""
    cell, precision = problem.cell, problem.precision
    storage_values, real_values = len(cell.gates), 0
    if problem.kernel_pass == "backward":
        storage_values, real_values = storage_values + 1, len(cell.recurrent_gates) + len(cell.states)
    per_cell = storage_values * precision.storage_bytes + real_values * precision.arithmetic_bytes
    return columns * UNITS_PER_WARP * per_cell


def _narrow_pieces(problem: Problem, columns: int) -> int:
    """How many more pieces a lane copies for one step than if all were of 16 bytes."""

    def pieces(copy_bytes: int) -> int:
        return -(-_slot_bytes(problem, columns) // (copy_bytes * scan.WARP_LANES))

    return pieces(problem.regime.alignment_bytes) - pieces(WIDEST_COPY_BYTES)


def _shared_map(problem: Problem, candidate: Candidate) -> dict[str, int]:
    unit_warps, k_warps, batch_tile = candidate["unit_warps"], candidate["k_warps"], candidate["batch_tile"]
    row = _operand_row(problem, candidate) + _tiling(problem, candidate).padding
    parts = {
        "operand": 2 * batch_tile * row * problem.precision.storage_bytes,
        "ring": unit_warps * candidate["ahead"] * _slot_bytes(problem, batch_tile),
    }
    if in_shared := _shared_tiles(problem, candidate):
        parts["matrix"] = unit_warps * k_warps * _tiles(problem, candidate) * in_shared * scan.WARP_LANES * FRAGMENT_BYTES
    if _tells_sums(problem, candidate):
        parts["told_sums"] = 2 * _told_bytes(problem, candidate)
    elif k_warps > 1:
        results = _tiles(problem, candidate) * UNITS_PER_WARP * batch_tile
        parts["partial"] = 2 * k_warps * unit_warps * results * problem.precision.arithmetic_bytes
    if candidate["cluster_blocks"] > 1:
        parts["mailbox"] = 2 * MAILBOX_BYTES
    return parts


def _told_bytes(problem: Problem, candidate: Candidate) -> int:
    """What a block is told in a step: all that it multiplies, or of each block the sums for its units."""
    if _tells_sums(problem, candidate):
        sums = candidate["cluster_blocks"] * candidate["unit_warps"] * UNITS_PER_WARP
        return candidate["batch_tile"] * sums * problem.precision.arithmetic_bytes
    return candidate["batch_tile"] * _operand_row(problem, candidate) * problem.precision.storage_bytes


def _threads(candidate: Candidate) -> int:
    return candidate["unit_warps"] * candidate["k_warps"] * scan.WARP_LANES


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    units, every = ("cluster_blocks", "grid_blocks", "unit_warps"), tuple(variables(problem))
    of_registers = tuple(name for name in every if name != "ahead")
    head_dim, backward = _head_dim(problem), problem.kernel_pass == "backward"

    def named(names: tuple[str, ...], function: Callable[[Candidate], int]) -> Callable[..., int]:
        """A function of a candidate's variables in the order of `names`."""
        return lambda *values: function(dict(zip(names, values, strict=True)))

    def with_less_in_shared(candidate: Candidate) -> Candidate:
        return {**candidate, "shared_sixteenths": candidate["shared_sixteenths"] - 1}

    in_shared = (
        Constraint(
            "whole_tiles",
            "another sixteenth in shared memory is at least another tile there",
            of_registers,
            named(of_registers, lambda one: one["shared_sixteenths"] and 1 + _shared_tiles(problem, with_less_in_shared(one))),
            named(of_registers, lambda one: _shared_tiles(problem, one)),
            "tiles",
        ),
        Constraint(
            "registers_first",
            "what fits registers is not read from shared memory in every step",
            of_registers,
            named(
                of_registers,
                lambda one: one["shared_sixteenths"] and 1 + registers_per_thread_budget(problem.gpu, _threads(one), 1),
            ),
            named(of_registers, lambda one: _registers(problem, with_less_in_shared(one)) + REGISTERS_ESTIMATE_OFF),
            "registers",
            drops_dominated=True,
        ),
    )
    return (
        Constraint(
            "one_scope",
            "a head is shared by the blocks of a cluster, or by blocks anywhere on the GPU",
            ("cluster_blocks", "grid_blocks"),
            lambda cluster_blocks, grid_blocks: min(cluster_blocks, grid_blocks),
            lambda *_: 1,
            "blocks",
        ),
        Constraint(
            "units_of_head",
            "the warps that share a head have all of its units, 16 each",
            units,
            lambda *_: head_dim,
            lambda cluster_blocks, grid_blocks, warps: cluster_blocks * grid_blocks * warps * UNITS_PER_WARP,
            "units",
            "split the hidden size into more heads",
        ),
        Constraint(
            "units_wasted",
            "with a warp less in every block the units would fit as well",
            units,
            lambda cluster_blocks, grid_blocks, warps: cluster_blocks * grid_blocks * (warps - 1) * UNITS_PER_WARP + 1,
            lambda *_: head_dim,
            "units",
        ),
        Constraint(
            "even_columns",
            "the warps that share the columns of a matrix have equally many",
            of_registers,
            named(of_registers, lambda one: 0 if _tells_sums(problem, one) else _operand_tiles(problem, one) % one["k_warps"]),
            lambda *_: 0,
            "tiles",
        ),
        Constraint(
            "blocks_told",
            "where the blocks of a cluster tell each other sums, warps with the same units make those of some blocks each",
            ("cluster_blocks", "k_warps"),
            lambda cluster_blocks, k_warps: k_warps if backward and cluster_blocks > 1 else 0,
            lambda cluster_blocks, _: cluster_blocks,
            "blocks",
        ),
        *(in_shared if "shared_sixteenths" in every else ()),
        *scan.hardware_constraints(
            problem.gpu,
            Quantity(("unit_warps", "k_warps"), lambda warps, k_warps: warps * k_warps * scan.WARP_LANES),
            Quantity(of_registers, named(of_registers, lambda one: _registers(problem, one))),
            Quantity(every, named(every, lambda one: sum(_shared_map(problem, one).values()))),
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    return scan.resident(
        problem,
        threads=_threads(candidate),
        channels_per_block=candidate["unit_warps"] * UNITS_PER_WARP,
        registers_estimated=_registers(problem, candidate),
        shared_map=_shared_map(problem, candidate),
    )


def groups(problem: Problem, batch: int, candidate: Candidate) -> int:
    """Return how many groups of blocks a call has: one for each head and tile of sequences."""
    return problem.heads * -(-batch // candidate["batch_tile"])


def groups_at_once(problem: Problem, blocks_per_sm: int, candidate: Candidate) -> int:
    """Return how many groups the GPU holds at once: a cluster lies within a GPC, the blocks of a grid anywhere."""
    clusters = clusters_at_once(problem.gpu, candidate["cluster_blocks"], blocks_per_sm)
    return max(1, clusters // candidate["grid_blocks"])


def _exchange_ns(problem: Problem, candidate: Candidate, model: StepModel, blocks_of_busiest_sm: int) -> float:
    """Return what a step takes to hand on what it computed."""
    told_bytes = _told_bytes(problem, candidate)
    if candidate["grid_blocks"] > 1:
        words = told_bytes / 4
        loads = words / (2 * _threads(candidate))
        return scales_of(problem.gpu).grid * (
            model.grid + blocks_of_busiest_sm * words / 1000 * model.gathered + loads * model.load
        )
    if candidate["cluster_blocks"] > 1:
        return scales_of(problem.gpu).cluster * (model.exchange + blocks_of_busiest_sm * told_bytes / 1000 * model.received)
    return 0.0


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, float]:
    """Return the cost model's terms in microseconds: those of one step, times the steps, times the rounds of groups."""
    gpu, k_warps = problem.gpu, candidate["k_warps"]
    model = MODELS["backward" if problem.kernel_pass == "backward" else "forward"]
    taken = resources(problem, candidate)
    wanted = groups(problem, problem.batch, candidate)
    at_once = min(wanted, groups_at_once(problem, taken.blocks_per_sm, candidate))
    # Clusters that lie in the same GPC share its SMs.
    blocks_of_busiest_sm = math.ceil(at_once / groups_at_once(problem, 1, candidate))
    warps_of_partition = math.ceil(candidate["unit_warps"] * k_warps * blocks_of_busiest_sm / gpu.partitions_per_sm)
    cells = math.ceil(candidate["unit_warps"] * _cell_warps(candidate) * blocks_of_busiest_sm / gpu.partitions_per_sm) * _cells(
        candidate
    )
    cycles_per_ns, its = gpu.sm_clock_hz / 1e9, _tiling(problem, candidate)
    scales = scales_of(gpu)
    rows = _tiles(problem, candidate)
    row_tile_ns = its.products * model.product * scales.product + its.cycles / cycles_per_ns
    tile_ns = rows * row_tile_ns + its.products * model.operand * scales.product
    product_ns = tile_ns * _tiles_per_warp(problem, candidate) + rows * its.row_cycles / cycles_per_ns
    operations_ns = scan.operations_per_element(problem, 1.0) * model.operation * scales.instruction
    transcendentals_ns = problem.cell.transcendental_count * model.transcendental * scales.transcendental
    matrix_cycles = taken.shared_map.get("matrix", 0) * blocks_of_busiest_sm / SHARED_BYTES_PER_CYCLE
    adds_up = k_warps > 1 and not _tells_sums(problem, candidate)
    terms_ns = {
        "step": model.step * scales.instruction,
        "products": warps_of_partition * product_ns,
        "cells": cells * (transcendentals_ns + operations_ns),
        "exchange": _exchange_ns(problem, candidate, model, blocks_of_busiest_sm),
        "shared_matrix": matrix_cycles / cycles_per_ns,
        "add_up": (model.add_up + k_warps * model.added) * scales.block if adds_up else 0.0,
    }
    waited_for_ns = max(0.0, MEMORY_LATENCY_NS / candidate["ahead"] - sum(terms_ns.values()))
    terms_ns["look_ahead"] = waited_for_ns + LATE_NS / candidate["ahead"]
    steps_us = problem.time * math.ceil(wanted / at_once) / 1e3
    return {name: steps_us * ns for name, ns in terms_ns.items()} | {"launch": launch_us(gpu)}


def _family(name: str) -> Family:
    return Family(
        name=name,
        entry=name,
        copies=True,
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )


FORWARD = _family("recurrent_forward")
BACKWARD = _family("recurrent_backward")
