"""The cost of persistent kernels at large batch: the time of a step with R on the chip, and with R streamed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minrnn_gen.plan import gpu_rates
from minrnn_gen.plan.dense.means import MOMENTS
from minrnn_gen.plan.dense.turns import memory_wait_ns, over_turns
from minrnn_gen.plan.dense.warpgroup import SLICE_BYTES, SWIZZLED_ROW_BYTES, TILE_ROWS, WARPGROUP_WARPS
from minrnn_gen.plan.dense.warpgroup_partition import WarpgroupPartition
from minrnn_gen.plan.gpu_rates import launch_us, scales_of
from minrnn_gen.plan.limits import SHARED_BYTES_PER_CYCLE
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum, minimum, where
from minrnn_gen.plan.occupancy import blocks_per_sm, clusters_at_once
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate

WIDE_BYTES = 4  # of a value in tf32
# Of the bytes that one SM draws from L2 alone (`gpu_rates.SM_BYTES_PER_CYCLE`), those that each draws when all do.
SHARE_OF_ONE_SM = 0.77
# Where tensor cores make more products than these in a cycle, they do so by other instructions, and mma.sync reaches a share of
# them: on sm_90 62.9 % (arXiv 2402.13499).
MMA_SYNC_PRODUCTS, MMA_SYNC_SHARE = 1024, 0.629
# Of a KB that a block draws from L2: 64 to 75 KB come in a microsecond (docs/lab-notes.md).
KB_NS = 14.3
# What streaming adds to a step at least; assumed, so that of kernels that are alike the one with R on the chip is taken.
STREAM_LEAST_NS = 100.0


# A cell's chain of instructions is waited for once in a block, and cells of other warpgroups fill its gaps: their issue counts
# as a share of it, and what is longer decides, but for a norm. Compiled kernels in one block take up to so many registers more
# than estimated, which decides how many blocks an SM has.
BLOCK_NORM, BLOCK_REGISTERS = 4, 16


@dataclass(frozen=True)
class BlockModel:
    """Time of the parts of a step where the operand stays in shared memory, in nanoseconds, fitted to 20 passes on an H100.

    `step`: of every step, its barriers and conversions. `operation`: of one of a lane's cells; `issue`: the share of it that
    cannot overlap other warpgroups.
    """

    step: float
    operation: float
    issue: float


BLOCK_MODELS = {"forward": BlockModel(1420.0, 2.2, 0.51), "backward": BlockModel(760.0, 4.02, 0.69)}
# Of a chunk in tf32x3: its sums of two chunks are added up by the warpgroup.
TF32X3_CHUNK_NS = 24.0


@dataclass(frozen=True)
class StepModel:
    """Time of the parts of a step, in nanoseconds, fitted to 625 forwards and 642 backwards on an H200 (docs/lab-notes.md).

    Then each moved by a few per cent towards the drawn problems of an H100, and the step of a backward by more.

    `step`: of every step, most of it the way of operands through L2. `product`: of 1000 multiply-adds of an SM in 16 bits.
    `operation`: of one of a lane's cells, for each warpgroup of the block. `fetch`: of each chunk that a warp fetches in turn,
    and `fetched`: of a KB of operands, with `fetched_alone` added where no other group of columns computes meanwhile. `chunk`:
    of a chunk that a warpgroup multiplies, and `shared_chunk`: of one of R that is in shared memory. `split_k`: of the sum over
    two warpgroups of a block; `cluster`: of a sum over the blocks of a cluster, with `partial` for each result of a lane that
    travels; `grid` and `grid_partial`: of a sum over blocks anywhere. `wide`: of values of 4 bytes.
    """

    step: float
    product: float
    operation: float
    fetch: float
    fetched: float
    fetched_alone: float
    chunk: float
    shared_chunk: float
    split_k: float
    cluster: float
    partial: float
    grid: float
    grid_partial: float
    wide: float


MODELS = {
    "forward": StepModel(1740.0, 0.149, 1.918, 53.0, 4.07, 5.19, 42.4, 19.0, 266.0, 0.0, 0.0, 716.0, 58.8, 0.0),
    "backward": StepModel(2225.0, 0.0, 2.9, 0.0, 14.42, 4.42, 83.4, 0.0, 0.0, 298.0, 98.5, 671.0, 40.8, 1671.0),
}


@dataclass(frozen=True)
class StreamModel:
    """Time of the parts of a step that streams R, in nanoseconds, fitted to 71 forwards and 44 backwards on an H200.

    `step`: of every step. The longer of products and reads of L2 counts: `product`, of 1000 multiply-adds of an SM in 16 bits;
    `matrix`, of a KB of R, with `matrix_wide` added for values of 4 bytes, and `operand`, of a KB of operands. `operation`: as
    in `StepModel`, half of it where another group of columns computes meanwhile. `partial`: of each result of a lane that
    travels.
    """

    step: float
    product: float
    matrix: float
    matrix_wide: float
    operand: float
    operation: float
    partial: float


STREAM_MODELS = {
    "forward": StreamModel(1740.0, 0.383, 15.2, 1.2, 12.75, 1.12, 0.0),
    "backward": StreamModel(1384.0, 0.518, 14.0, 8.5, 22.5, 1.1, 110.0),
}


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Return the cost model's terms in microseconds: those of one step, times the steps, over all turns of groups."""
    partition = WarpgroupPartition(problem, **candidate)
    # Groups of columns without sequences end at once.
    column_groups = minimum(partition.column_groups, ceil(problem.batch / partition.batch_tile))
    groups_of_one_each = _groups_at_once(partition, 1)

    def step_ns(groups: Amount) -> Mapping[str, Amount]:
        # L2 serves all blocks that run.
        of_gpu = groups * partition.grid_blocks / problem.gpu.sm_count
        terms_ns = _resident_ns(partition, column_groups, of_gpu)
        if partition.in_one_block:
            terms_ns["cells"] += _overlapped_ns(partition, column_groups, ceil(groups / groups_of_one_each), terms_ns)
        if partition.streams_matrix:
            streamed_ns = _streamed_ns(partition, column_groups, of_gpu)
            terms_ns["exchange"] += maximum(streamed_ns - sum(terms_ns.values()), STREAM_LEAST_NS)
        terms_ns |= _means_ns(partition)
        moved_bytes = groups * column_groups * partition.moved_bytes
        return {**terms_ns, "prefetch": memory_wait_ns(problem.gpu, sum(terms_ns.values()), moved_bytes)}

    groups = problem.heads * ceil(problem.batch / partition.group_sequences)
    terms_ns = over_turns(groups, _groups_at_once(partition, _blocks_per_sm(partition)), step_ns)
    return {name: problem.time * ns / 1e3 for name, ns in terms_ns.items()} | {"launch": launch_us(problem.gpu)}


def _groups_at_once(partition: WarpgroupPartition, of_sm: int) -> int:
    """Return how many groups the GPU holds at once, where an SM has so many blocks."""
    blocks = partition.cluster_blocks * clusters_at_once(partition.problem.gpu, partition.cluster_blocks, of_sm)
    return max(1, blocks // partition.grid_blocks)


def _blocks_per_sm(partition: WarpgroupPartition) -> int:
    """Return how many blocks an SM has: several where a head in one block leaves room for more."""
    if not partition.in_one_block:
        return 1
    registers = min(partition.launch_registers, partition.registers + BLOCK_REGISTERS)
    shared_bytes = sum(partition.shared_map.values())
    return max(1, blocks_per_sm(partition.problem.gpu, partition.threads, registers, shared_bytes))


def _thousands(partition: WarpgroupPartition, columns: Amount) -> Amount:
    """Return the thousands of multiply-adds of a block; in tf32 each counts twice, at half the rate."""
    of_chunk = TILE_ROWS * partition.multiplications * SLICE_BYTES / 2 * columns
    of_block: Amount = partition.row_tiles * partition.block_chunks * of_chunk / 1000
    return of_block


def _by_warps_ns(partition: WarpgroupPartition, columns: Amount) -> Amount:
    """Return the time of products by mma.sync: of the tensor cores, or of each warp's loads of the operand."""
    gpu = partition.problem.gpu
    products = gpu_rates.tensor_products(gpu.compute_capability)
    if products > MMA_SYNC_PRODUCTS:
        products *= MMA_SYNC_SHARE
    tensor_cycles = _thousands(partition, columns) * 1000 / products
    warps, of_chunk = partition.row_tiles * WARPGROUP_WARPS, partition.multiplications * SLICE_BYTES * columns
    load_cycles = warps * partition.block_chunks * of_chunk / SHARED_BYTES_PER_CYCLE
    return maximum(tensor_cycles, load_cycles) / gpu.sm_clock_hz * 1e9


def _passes(problem: Problem) -> int:
    """Return how often a step computes its cells: a backward prepares them again for each round of products."""
    return len(problem.cell.round_products) if problem.kernel_pass == "backward" else 1


def _partials(partition: WarpgroupPartition) -> float:
    """Return the partial sums of a lane that travel, over the warpgroups of a group of columns."""
    return (partition.shares - 1) * partition.finished_columns * partition.row_tiles * partition.split_k_warpgroups / 4


def _means_ns(partition: WarpgroupPartition) -> dict[str, float]:
    """Return the term of means: an exchange of them is as long as one of operands, and a block reads those of all tiles."""
    waits, scales = partition.problem.cell.waits, scales_of(partition.problem.gpu)
    if not waits:
        return {}
    step_ns, columns = MODELS[partition.problem.kernel_pass].step, partition.finished_columns
    moments_kb = MOMENTS * partition.problem.precision.arithmetic_bytes / 1000
    of_mean_kb = partition.consumers / partition.row_tiles * partition.tiles * columns * moments_kb
    return {"means": scales.grid * (len(waits) * step_ns + sum(count for count, _ in waits) * of_mean_kb * KB_NS)}


def _resident_ns(partition: WarpgroupPartition, column_groups: Amount, of_gpu: Amount) -> dict[str, Amount]:
    """Return the terms of a step with R on the chip."""
    problem, scales = partition.problem, scales_of(partition.problem.gpu)
    model, is_wide = MODELS[problem.kernel_pass], problem.precision.storage_bytes == WIDE_BYTES
    consumers, of_block = partition.row_tiles * partition.split_k_warpgroups * column_groups, partition.block_chunks
    # A chunk that is streamed is multiplied in shared memory, too.
    shared_chunks = partition.shared_chunks + partition.streamed_chunks
    exchanges = len(problem.cell.round_products)
    columns = partition.batch_tile * column_groups
    step_ns, fetch_ns = (model.step + is_wide * model.wide) * scales.grid, 0.0
    operation_ns = consumers * model.operation
    if partition.in_one_block:
        step_ns = BLOCK_MODELS[problem.kernel_pass].step * scales.block
        operation_ns = BLOCK_MODELS[problem.kernel_pass].operation
    else:
        fetch_ns = of_block / partition.producer_warps * model.fetch
        fetched_ns = model.fetched + where(column_groups == 1, model.fetched_alone, 0.0)
        fetch_ns += of_block * columns * SWIZZLED_ROW_BYTES / 1000 * of_gpu * fetched_ns
    chunk_ns = model.chunk + (problem.matrix_product == "tf32x3") * TF32X3_CHUNK_NS
    split_k_ns = (partition.split_k_warpgroups > 1) * model.split_k * scales.block
    if partition.sums_over_grid:
        sum_ns = (model.grid + _partials(partition) * column_groups * model.grid_partial) * scales.grid
    else:
        sum_ns = ((partition.cluster_blocks > 1) * model.cluster + _partials(partition) * model.partial) * scales.cluster
    terms_ns: dict[str, Amount] = {
        "step": exchanges * step_ns,
        "products": (
            _by_warps_ns(partition, columns)
            if partition.mma_sync
            else _thousands(partition, columns) * model.product * scales.product
        )
        + partition.warpgroup_chunks * chunk_ns * scales.instruction,
        "cells": _operations(partition) * operation_ns * scales.instruction,
        "exchange": fetch_ns * scales.grid,
        "shared_matrix": shared_chunks * consumers * model.shared_chunk * scales.instruction,
        "reduce_split_k": exchanges * (split_k_ns + sum_ns),
    }
    return terms_ns


def _operations(partition: WarpgroupPartition) -> Amount:
    """Return the instructions of a lane's cells in a step."""
    return partition.cells * _passes(partition.problem) * gpu_rates.operations_per_element(partition.problem, 1.0)


def _overlapped_ns(
    partition: WarpgroupPartition, column_groups: Amount, blocks_of_sm: Amount, terms_ns: Mapping[str, Amount]
) -> Amount:
    """Return what the warpgroups of all blocks of an SM add to a step of one of them, where a head is in one block."""
    warpgroups = partition.row_tiles * partition.split_k_warpgroups * column_groups
    share = BLOCK_MODELS[partition.problem.kernel_pass].issue
    computed_ns = sum(terms_ns.values())
    issued_ns = terms_ns["products"] + terms_ns["shared_matrix"] + warpgroups * share * terms_ns["cells"]
    together_ns: Amount = (computed_ns**BLOCK_NORM + (blocks_of_sm * issued_ns) ** BLOCK_NORM) ** (1 / BLOCK_NORM)
    return together_ns - computed_ns


def _streamed_ns(partition: WarpgroupPartition, column_groups: Amount, of_gpu: Amount) -> Amount:
    """Return the time of a step with R streamed."""
    problem, scales = partition.problem, scales_of(partition.problem.gpu)
    model, is_wide = STREAM_MODELS[problem.kernel_pass], problem.precision.storage_bytes == WIDE_BYTES
    tiles, kib_of_row = partition.row_tiles * partition.split_k_warpgroups * column_groups, SWIZZLED_ROW_BYTES / 1024
    matrix_kib = tiles * partition.streamed_chunks * TILE_ROWS * kib_of_row
    operand_kib = column_groups * partition.block_chunks * partition.batch_tile * kib_of_row
    stream_ns = matrix_kib * (model.matrix + is_wide * model.matrix_wide) + operand_kib * model.operand
    stream_ns *= maximum(of_gpu, SHARE_OF_ONE_SM) * scales.grid
    columns = partition.batch_tile * column_groups
    product_ns = _thousands(partition, columns) * model.product * scales.product
    if partition.mma_sync:
        product_ns = _by_warps_ns(partition, columns)
    overlapped = where(column_groups == 1, 1.0, 0.5)
    cells_ns = tiles * _operations(partition) * overlapped * model.operation * scales.instruction
    sums_ns = _partials(partition) * column_groups * model.partial * scales.grid
    exchanges = len(problem.cell.round_products)
    return exchanges * (model.step * scales.grid + sums_ns) + maximum(product_ns, stream_ns) + cells_ns
