"""The search space of recurrent_forward.cu.j2 and recurrent_backward.cu.j2: all steps of a dense cell in one launch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from minrnn_gen.plan import scan
from minrnn_gen.plan.occupancy import registers_per_thread_budget
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.recurrent_product import UNITS_PER_WARP, Tiling, tiling
from minrnn_gen.plan.scan import Quantity
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

COLUMNS = 8  # of a tensor core's tile (PTX ISA, mma.sync): sequences
MAILBOX_BYTES = 8
# A lane's part of a tile of the matrix.
FRAGMENT_BYTES = 16
SIXTEENTHS = 16
# Fragments of shared memory under way, and how far the estimate of registers is off.
REGISTERS_OF_SHARED, REGISTERS_ESTIMATE_OFF = 8, 16
# What an SM reads from shared memory in a cycle (CUDA C++ programming guide: 32 banks of 4 bytes).
SHARED_BYTES_PER_CYCLE = 128
VARIABLES = ("cluster_blocks", "unit_warps", "k_warps", "shared_sixteenths", "batch_tile", "ahead")
# Addresses, strides, the loop and what is under way, read off compiled kernels.
REGISTERS_FIXED, BACKWARD_REGISTERS_FIXED = 36, 62
# Of more than 16 bits there are more pieces to copy, and functions are accurate.
WIDE_REGISTERS = 24

# The SMs of a GPC, within which a cluster lies: 16 or 18 on an H200, of which a profile does not know how many are there; with
# these numbers no more clusters are expected at once than were seen to be.
SMS_PER_GPC_MOST, SMS_PER_GPC_USED = 18, 16
# From a load to its value under load: what is not under way for so long is waited for.
MEMORY_LATENCY_NS = 900.0


@dataclass(frozen=True)
class StepModel:
    """What a step takes, in nanoseconds, fitted to 170 candidates of 11 problems on an H200 (docs/performance.md).

    `step`: of every step. `product`: of a tile's product, for each warp of a partition. `transcendental` and `operation`: of
    one of a lane's cells, for each warp. `exchange`: of a cluster, with `told` for each value of a unit and block that is told
    it. `add_up`: of adding up over warps.
    """

    step: float
    product: float
    transcendental: float
    operation: float
    exchange: float
    told: float
    add_up: float


MODELS = {
    "forward": StepModel(255.0, 2.47, 1.64, 1.29, 73.0, 12.0, 74.0),
    "backward": StepModel(0.0, 12.2, 0.0, 4.33, 9.0, 9.9, 0.0),
}


def refusal(problem: Problem) -> str:
    """Return why these kernels are not for `problem`, whatever its sizes; empty where they are."""
    if not problem.gpu.has_async_copy:
        return f"{problem.gpu.name} has no asynchronous copies and no tensor cores of this tile, both there from sm_80 on"
    if problem.layout == "BDT":
        return "the channels of a row are not contiguous in layout BDT, only in BTD and TBD"
    return ""


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    return {
        "cluster_blocks": tuple(size for size in (1, 2, 4, 8, 16) if size <= problem.gpu.cluster_size_max),
        "unit_warps": (1, 2, 3, 4, 5, 6, 7, 8),
        "k_warps": (1, 2, 4, 8),
        "shared_sixteenths": tuple(range(SIXTEENTHS)) if problem.matrix_product == "narrow" else (0,),
        "batch_tile": (2, 4, 8),
        "ahead": (2, 4, 8),
        **({"splits_once": (0, 1)} if problem.matrix_product == "tf32x3" else {}),
    }


def _of_registers(problem: Problem) -> tuple[str, ...]:
    """The variables that registers depend on."""
    return (*VARIABLES[:5], "splits_once") if problem.matrix_product == "tf32x3" else VARIABLES[:5]


def _tiling(problem: Problem, batch_tile: int, splits_once: int = 0) -> Tiling:
    return tiling(problem, _tiles(problem), batch_tile, splits_once)


def _head_dim(problem: Problem) -> int:
    return problem.hidden_size // problem.heads


def _width(problem: Problem) -> int:
    """The values of each unit that are multiplied: its output, or the gradients of its products."""
    return len(problem.cell.recurrent_gates) if problem.kernel_pass == "backward" else 1


def _tiles(problem: Problem) -> int:
    """The products of each unit."""
    return 1 if problem.kernel_pass == "backward" else len(problem.cell.recurrent_gates)


def _operand_tiles(problem: Problem, cluster_blocks: int, unit_warps: int) -> int:
    return _width(problem) * cluster_blocks * unit_warps * UNITS_PER_WARP // _tiling(problem, COLUMNS).depth


def _cells(batch_tile: int) -> int:
    """The cells of a lane: a tile has four results for it, and every sequence as many copies as there is room for."""
    return 4 * batch_tile // COLUMNS


def _shared_tiles(problem: Problem, cluster_blocks: int, unit_warps: int, k_warps: int, shared_sixteenths: int) -> int:
    """The tiles of the operand whose part of a warp's matrix is in shared memory."""
    tiles = _operand_tiles(problem, cluster_blocks, unit_warps) // k_warps
    group = max(2, _tiling(problem, COLUMNS).chains)
    return tiles * shared_sixteenths // SIXTEENTHS // group * group


def _registers(
    problem: Problem,
    cluster_blocks: int,
    unit_warps: int,
    k_warps: int,
    shared_sixteenths: int,
    batch_tile: int,
    splits_once: int = 0,
) -> int:
    cell, words = problem.cell, problem.precision.arithmetic_bytes // 4
    gates, products, states, vectors = len(cell.gates), len(cell.recurrent_gates), len(cell.states), len(cell.parameters)
    its = _tiling(problem, batch_tile, splits_once)
    tiles = -(-_operand_tiles(problem, cluster_blocks, unit_warps) // k_warps)
    in_shared = _shared_tiles(problem, cluster_blocks, unit_warps, k_warps, shared_sixteenths)
    fragments = its.matrix * _tiles(problem) * (tiles - in_shared) + (REGISTERS_OF_SHARED if in_shared else 0)
    sums = its.sum * _tiles(problem) + (0 if problem.matrix_product == "narrow" else WIDE_REGISTERS)
    if problem.kernel_pass == "backward":
        per_cell = words * (2 * states + 3 * (gates + products) + 2 * vectors) + 8
        return BACKWARD_REGISTERS_FIXED + fragments + sums + _cells(batch_tile) * per_cell
    per_cell = words * (2 * gates + states + products + vectors) + 8
    return REGISTERS_FIXED + fragments + sums + _cells(batch_tile) * per_cell


def _slot_bytes(problem: Problem, batch_tile: int) -> int:
    """What a warp reads from memory for one step."""
    cell, precision = problem.cell, problem.precision
    storage_values, real_values = len(cell.gates), 0
    if problem.kernel_pass == "backward":
        storage_values, real_values = storage_values + 1, len(cell.recurrent_gates) + len(cell.states)
    per_cell = storage_values * precision.storage_bytes + real_values * precision.arithmetic_bytes
    return batch_tile * UNITS_PER_WARP * per_cell


def _shared_map(
    problem: Problem, cluster_blocks: int, unit_warps: int, k_warps: int, shared_sixteenths: int, batch_tile: int, ahead: int
) -> dict[str, int]:
    row = _width(problem) * cluster_blocks * unit_warps * UNITS_PER_WARP + _tiling(problem, batch_tile).padding
    parts = {
        "operand": 2 * batch_tile * row * problem.precision.storage_bytes,
        "ring": unit_warps * ahead * _slot_bytes(problem, batch_tile),
    }
    if in_shared := _shared_tiles(problem, cluster_blocks, unit_warps, k_warps, shared_sixteenths):
        parts["matrix"] = unit_warps * k_warps * _tiles(problem) * in_shared * scan.WARP_LANES * FRAGMENT_BYTES
    if k_warps > 1:
        results = _tiles(problem) * _cells(batch_tile) * scan.WARP_LANES
        parts["partial"] = 2 * (k_warps - 1) * unit_warps * results * problem.precision.arithmetic_bytes
    if cluster_blocks > 1:
        parts["mailbox"] = 2 * MAILBOX_BYTES
    return parts


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    units = ("cluster_blocks", "unit_warps")
    every = VARIABLES
    head_dim = _head_dim(problem)

    def registers_spared(*values: int) -> int:
        """What a thread would need with a sixteenth less in shared memory, and a little for what the estimate is off."""
        blocks, warps, k_warps, sixteenths, batch_tile = values
        return _registers(problem, blocks, warps, k_warps, sixteenths - 1, batch_tile) + REGISTERS_ESTIMATE_OFF

    def registers_there(warps: int, k_warps: int) -> int:
        return registers_per_thread_budget(problem.gpu, warps * k_warps * scan.WARP_LANES, 1)

    return (
        Constraint(
            "units_of_head",
            "the warps of a cluster have all units of a head, 16 each",
            units,
            lambda *_: head_dim,
            lambda blocks, warps: blocks * warps * UNITS_PER_WARP,
            "units",
            "split the hidden size into more heads",
        ),
        Constraint(
            "units_wasted",
            "with a warp less in every block the units would fit as well",
            units,
            lambda blocks, warps: blocks * (warps - 1) * UNITS_PER_WARP + 1,
            lambda *_: head_dim,
            "units",
        ),
        Constraint(
            "even_columns",
            "the warps that share the columns of a matrix have equally many",
            (*units, "k_warps"),
            lambda blocks, warps, k_warps: _operand_tiles(problem, blocks, warps) % k_warps,
            lambda *_: 0,
            "tiles",
        ),
        Constraint(
            "whole_tiles",
            "another sixteenth in shared memory is at least another tile there",
            every[:4],
            lambda *values: _shared_tiles(problem, *values[:3], values[3] - 1) + 1 if values[3] else 0,
            lambda *values: _shared_tiles(problem, *values),
            "tiles",
        ),
        Constraint(
            "registers_first",
            "what fits registers is not read from shared memory in every step",
            every[:5],
            lambda *values: registers_there(*values[1:3]) + 1 if values[3] else 0,
            registers_spared,
            "registers",
            drops_dominated=True,
        ),
        *scan.hardware_constraints(
            problem.gpu,
            Quantity(("unit_warps", "k_warps"), lambda warps, k_warps: warps * k_warps * scan.WARP_LANES),
            Quantity(_of_registers(problem), lambda *values: _registers(problem, *values)),
            Quantity(every, lambda *values: sum(_shared_map(problem, *values).values())),
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    values = [candidate[name] for name in VARIABLES]
    return scan.resident(
        problem,
        threads=candidate["unit_warps"] * candidate["k_warps"] * scan.WARP_LANES,
        channels_per_block=candidate["unit_warps"] * UNITS_PER_WARP,
        registers_estimated=_registers(problem, *(candidate[name] for name in _of_registers(problem))),
        shared_map=_shared_map(problem, *values),
    )


def clusters(problem: Problem, batch: int, candidate: Candidate) -> int:
    """Return how many clusters a launch has: one for each head and tile of sequences."""
    return problem.heads * -(-batch // candidate["batch_tile"])


def clusters_at_once(problem: Problem, blocks_per_sm: int, cluster_blocks: int) -> int:
    """Return how many clusters the GPU holds at once: each within a GPC."""
    gpu = problem.gpu
    if cluster_blocks == 1:
        return blocks_per_sm * gpu.sm_count
    return max(1, gpu.sm_count // SMS_PER_GPC_MOST * (SMS_PER_GPC_USED * blocks_per_sm // cluster_blocks))


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, float]:
    """Return the cost model's terms in microseconds: those of one step, times the steps, times the rounds of clusters."""
    gpu, blocks, k_warps = problem.gpu, candidate["cluster_blocks"], candidate["k_warps"]
    cycles_per_ns = gpu.sm_clock_hz / 1e9
    model = MODELS["backward" if problem.kernel_pass == "backward" else "forward"]
    taken = resources(problem, candidate)
    wanted = clusters(problem, problem.batch, candidate)
    at_once = min(wanted, clusters_at_once(problem, taken.blocks_per_sm, blocks))
    blocks_of_busiest_sm = math.ceil(at_once * blocks / gpu.sm_count)
    warps_of_partition = math.ceil(candidate["unit_warps"] * k_warps * blocks_of_busiest_sm / gpu.partitions_per_sm)
    cells = math.ceil(candidate["unit_warps"] * blocks_of_busiest_sm / gpu.partitions_per_sm) * _cells(candidate["batch_tile"])
    its = _tiling(problem, candidate["batch_tile"], candidate.get("splits_once", 0))
    tile_ns = its.products * model.product + its.cycles / cycles_per_ns
    row_ns = tile_ns * _operand_tiles(problem, blocks, candidate["unit_warps"]) / k_warps + its.row_cycles / cycles_per_ns
    operations_ns = scan.operations_per_element(problem, 1.0) * model.operation
    matrix_cycles = taken.shared_map.get("matrix", 0) * blocks_of_busiest_sm / SHARED_BYTES_PER_CYCLE
    terms_ns = {
        "step": model.step,
        "products": _tiles(problem) * warps_of_partition * row_ns,
        "cells": cells * (problem.cell.transcendental_count * model.transcendental + operations_ns),
        "exchange": model.exchange + blocks * _width(problem) * model.told if blocks > 1 else 0.0,
        "shared_matrix": matrix_cycles / cycles_per_ns,
        "add_up": model.add_up if k_warps > 1 else 0.0,
    }
    terms_ns["look_ahead"] = max(0.0, MEMORY_LATENCY_NS / candidate["ahead"] - sum(terms_ns.values()))
    steps_us = problem.time * math.ceil(wanted / at_once) / 1e3
    return {name: steps_us * ns for name, ns in terms_ns.items()} | {"launch": scan.LAUNCH_US}


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
