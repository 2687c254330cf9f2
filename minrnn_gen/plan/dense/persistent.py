"""The search space of persistent_forward.cu.j2 and persistent_backward.cu.j2: all steps of a dense cell in one launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.dense import partition as share
from minrnn_gen.plan.dense.mma import RESULTS, UNITS_PER_WARP
from minrnn_gen.plan.gpu_rates import launch_us, scales_of
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.occupancy import clusters_at_once, registers_per_thread_budget
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, MatrixProduct, Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

MAILBOX_BYTES = 8
FRAGMENT_BYTES = 16  # a lane's part of a tile of a matrix of 16 bits
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
    """What a step takes, in nanoseconds, fitted to candidates of 44 passes on an H200 (docs/lab-notes.md).

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
        "narrow": {"smem_sixteenths": tuple(range(share.SIXTEENTHS))},
        "tf32x3": {"presplit_tf32": (0, 1)},
        "fma": {},
    }
    return {
        "cluster_blocks": tuple(size for size in (1, 2, 4, 8, 16) if size <= problem.gpu.cluster_size_max),
        "grid_blocks": (1, *_grids(problem)),
        "row_warps": (1, 2, 3, 4, 5, 6, 7, 8),
        "split_k_warps": (1, 2, 4, 8),
        **of_product[problem.matrix_product],
        "batch_tile": (2, 4, 8),
        "stages": (2, 4, 8),
    }


def _grids(problem: Problem) -> tuple[int, ...]:
    """Groups of more blocks than a cluster has, but no more than the GPU holds, with a head for 1, 2 or 4 warps of each."""
    gpu = problem.gpu
    wanted = {-(-share.head_dim(problem) // (warps * UNITS_PER_WARP)) for warps in (1, 2, 4)}
    return tuple(sorted(blocks for blocks in wanted if gpu.cluster_size_max < blocks <= gpu.sm_count))


def _registers(problem: Problem, candidate: Candidate) -> int:
    cell, words, its = problem.cell, problem.precision.arithmetic_bytes // 4, share.tiling(problem, candidate)
    gates, products, states, vectors = len(cell.gates), len(cell.recurrent_gates), len(cell.states), len(cell.parameters)
    in_shared = share.shared_tiles(problem, candidate)
    tiles = math.ceil(share.tiles_per_warp(problem, candidate)) - in_shared
    rows = share.tiles(problem, candidate)
    matrix = its.matrix * rows * tiles + (REGISTERS_OF_SHARED + REGISTERS_OF_SHARED_ROW * max(0, rows - 4) if in_shared else 0)
    sums = its.sum * rows + (0 if problem.matrix_product == "narrow" else REGISTERS_OF_PLACES)
    if candidate["grid_blocks"] > 1:
        of_backward = BACKWARD_REGISTERS_OF_GATHER + BACKWARD_REGISTERS_OF_GATHER_PER_CELL * share.cells(candidate)
        sums += of_backward if problem.kernel_pass == "backward" else REGISTERS_OF_GATHER
    pieces = REGISTERS_OF_PIECE * _narrow_pieces(problem, share.cell_columns(candidate))
    if problem.kernel_pass == "backward":
        if share.tells_sums(problem, candidate):
            sums += (words - 1) * REGISTERS_OF_TOLD_IN_FP64 * share.cells(candidate)
        elif candidate["split_k_warps"] > 1:
            sums += BACKWARD_REGISTERS_OF_ADDING * RESULTS * candidate["batch_tile"] // share.COLUMNS
        per_cell = words * (2 * states + 3 * (gates + products) + 2 * vectors) + 8
        return BACKWARD_REGISTERS_FIXED + matrix + sums + pieces + share.cells(candidate) * per_cell
    per_cell = words * (2 * gates + states + products + vectors) + 8
    return REGISTERS_FIXED + matrix + sums + pieces + share.cells(candidate) * per_cell


def _narrow_pieces(problem: Problem, columns: int) -> int:
    """How many more pieces a lane copies for one step than if all were of 16 bytes."""

    def pieces(copy_bytes: int) -> int:
        return -(-share.slot_bytes(problem, columns) // (copy_bytes * limits.WARP_LANES))

    return pieces(problem.specialization.alignment_bytes) - pieces(WIDEST_COPY_BYTES)


def _shared_map(problem: Problem, candidate: Candidate) -> dict[str, int]:
    row_warps, split_k_warps, batch_tile = candidate["row_warps"], candidate["split_k_warps"], candidate["batch_tile"]
    row = share.operand_row(problem, candidate) + share.tiling(problem, candidate).padding
    parts = {
        "operand": 2 * batch_tile * row * problem.precision.storage_bytes,
        "ring": row_warps * candidate["stages"] * share.slot_bytes(problem, batch_tile),
    }
    if in_shared := share.shared_tiles(problem, candidate):
        parts["matrix"] = (
            row_warps * split_k_warps * share.tiles(problem, candidate) * in_shared * limits.WARP_LANES * FRAGMENT_BYTES
        )
    if share.tells_sums(problem, candidate):
        parts["told_sums"] = 2 * share.told_bytes(problem, candidate)
    elif split_k_warps > 1:
        results = share.tiles(problem, candidate) * UNITS_PER_WARP * batch_tile
        parts["partial"] = 2 * split_k_warps * row_warps * results * problem.precision.arithmetic_bytes
    if candidate["cluster_blocks"] > 1:
        parts["mailbox"] = 2 * MAILBOX_BYTES
    return parts


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    units, every = ("cluster_blocks", "grid_blocks", "row_warps"), tuple(variables(problem))
    of_registers = tuple(name for name in every if name != "stages")
    head_dim, backward = share.head_dim(problem), problem.kernel_pass == "backward"

    def named(names: tuple[str, ...], function: Callable[[Candidate], int]) -> Callable[..., int]:
        """A function of a candidate's variables in the order of `names`."""
        return lambda *values: function(dict(zip(names, values, strict=True)))

    def with_less_in_shared(candidate: Candidate) -> Candidate:
        return {**candidate, "smem_sixteenths": candidate["smem_sixteenths"] - 1}

    in_shared = (
        Constraint(
            "whole_tiles",
            "another sixteenth in shared memory is at least another tile there",
            of_registers,
            named(
                of_registers, lambda one: one["smem_sixteenths"] and 1 + share.shared_tiles(problem, with_less_in_shared(one))
            ),
            named(of_registers, lambda one: share.shared_tiles(problem, one)),
            "tiles",
        ),
        Constraint(
            "registers_first",
            "what fits registers is not read from shared memory in every step",
            of_registers,
            named(
                of_registers,
                lambda one: one["smem_sixteenths"] and 1 + registers_per_thread_budget(problem.gpu, share.threads(one), 1),
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
            named(
                of_registers,
                lambda one: 0 if share.tells_sums(problem, one) else share.operand_tiles(problem, one) % one["split_k_warps"],
            ),
            lambda *_: 0,
            "tiles",
        ),
        Constraint(
            "blocks_told",
            "where the blocks of a cluster tell each other sums, warps with the same units make those of some blocks each",
            ("cluster_blocks", "split_k_warps"),
            lambda cluster_blocks, split_k_warps: split_k_warps if backward and cluster_blocks > 1 else 0,
            lambda cluster_blocks, _: cluster_blocks,
            "blocks",
        ),
        *(in_shared if "smem_sixteenths" in every else ()),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("row_warps", "split_k_warps"), lambda warps, split_k_warps: warps * split_k_warps * limits.WARP_LANES),
            Quantity(of_registers, named(of_registers, lambda one: _registers(problem, one))),
            Quantity(every, named(every, lambda one: sum(_shared_map(problem, one).values()))),
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    return limits.resident(
        problem,
        threads=share.threads(candidate),
        channels_per_block=candidate["row_warps"] * UNITS_PER_WARP,
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
    told_bytes = share.told_bytes(problem, candidate)
    if candidate["grid_blocks"] > 1:
        words = told_bytes / 4
        loads = words / (2 * share.threads(candidate))
        return scales_of(problem.gpu).grid * (
            model.grid + blocks_of_busiest_sm * words / 1000 * model.gathered + loads * model.load
        )
    if candidate["cluster_blocks"] > 1:
        return scales_of(problem.gpu).cluster * (model.exchange + blocks_of_busiest_sm * told_bytes / 1000 * model.received)
    return 0.0


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, float]:
    """Return the cost model's terms in microseconds: those of one step, times the steps, times the rounds of groups."""
    gpu, split_k_warps = problem.gpu, candidate["split_k_warps"]
    model = MODELS["backward" if problem.kernel_pass == "backward" else "forward"]
    taken = resources(problem, candidate)
    wanted = groups(problem, problem.batch, candidate)
    at_once = min(wanted, groups_at_once(problem, taken.blocks_per_sm, candidate))
    # Clusters that lie in the same GPC share its SMs.
    blocks_of_busiest_sm = math.ceil(at_once / groups_at_once(problem, 1, candidate))
    warps_of_partition = math.ceil(candidate["row_warps"] * split_k_warps * blocks_of_busiest_sm / gpu.partitions_per_sm)
    cells = math.ceil(
        candidate["row_warps"] * share.cell_warps(candidate) * blocks_of_busiest_sm / gpu.partitions_per_sm
    ) * share.cells(candidate)
    cycles_per_ns, its = gpu.sm_clock_hz / 1e9, share.tiling(problem, candidate)
    scales = scales_of(gpu)
    rows = share.tiles(problem, candidate)
    row_tile_ns = its.products * model.product * scales.product + its.cycles / cycles_per_ns
    tile_ns = rows * row_tile_ns + its.products * model.operand * scales.product
    product_ns = tile_ns * share.tiles_per_warp(problem, candidate) + rows * its.row_cycles / cycles_per_ns
    operations_ns = gpu_rates.operations_per_element(problem, 1.0) * model.operation * scales.instruction
    transcendentals_ns = problem.cell.transcendental_count * model.transcendental * scales.transcendental
    matrix_cycles = taken.shared_map.get("matrix", 0) * blocks_of_busiest_sm / SHARED_BYTES_PER_CYCLE
    adds_up = split_k_warps > 1 and not share.tells_sums(problem, candidate)
    terms_ns = {
        "step": model.step * scales.instruction,
        "products": warps_of_partition * product_ns,
        "cells": cells * (transcendentals_ns + operations_ns),
        "exchange": _exchange_ns(problem, candidate, model, blocks_of_busiest_sm),
        "shared_matrix": matrix_cycles / cycles_per_ns,
        "add_up": (model.add_up + split_k_warps * model.added) * scales.block if adds_up else 0.0,
    }
    waited_for_ns = max(0.0, MEMORY_LATENCY_NS / candidate["stages"] - sum(terms_ns.values()))
    terms_ns["look_ahead"] = waited_for_ns + LATE_NS / candidate["stages"]
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


FORWARD = _family("persistent_forward")
BACKWARD = _family("persistent_backward")
