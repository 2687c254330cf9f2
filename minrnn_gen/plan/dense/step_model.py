"""Time of the parts of a step of a persistent kernel."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.plan import gpu_rates
from minrnn_gen.plan.dense import means
from minrnn_gen.plan.dense.partition import COLUMNS, Partition
from minrnn_gen.plan.gpu_rates import scales_of
from minrnn_gen.plan.limits import SHARED_BYTES_PER_CYCLE
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum, where


@dataclass(frozen=True)
class StepModel:
    """Time of the parts of a step, in nanoseconds, fitted to candidates of 104 passes on an H100 and an H200.

    On other GPUs `Scales` says how many times as long; the fit is in docs/lab-notes.md.

    `step`: of every step. `product`: of a tile's product, for each warp of a partition, and `operand`: of a tile of the
    operand, which all rows of tiles share. `transcendental` and `operation`: of the first of a lane's cells, for each warp;
    `further_cell`: of another one, in parts of the first, whose chain of instructions it overlaps in a forward and prolongs in
    a backward, where registers are few. `split_k_sum`: of the sum over the warps of a split K, with `split_k_warp` for each of
    them and `summed` for each KB that they hand over. `exchange`: of a cluster, with `received` for each KB that an SM
    receives. `grid`: of a grid, with `gathered` for every thousand words that an SM reads, 4 bytes each and 4 for the step, and
    `load` for each load of a lane. `other_blocks`: what a further block of an SM adds, in parts of its own products and cells:
    the rest fits where the others wait.
    """

    step: float
    product: float
    operand: float
    transcendental: float
    operation: float
    further_cell: float
    split_k_sum: float
    split_k_warp: float
    summed: float
    exchange: float
    received: float
    grid: float
    gathered: float
    load: float
    other_blocks: float


# Of each further round of products in a forward: from the arrival of its operand to the sending of the next one, and in one
# block, where nothing is sent. Fitted to 58 forwards of gru_reset_before on an H200 (docs/lab-notes.md).
ROUND_NS, ROUND_OF_BLOCK_NS = 140.0, 80.0
# Of each iteration of a forward over tiles of R in shared memory, in every round, where a partition of an SM has one warp:
# nothing hides the loads, and the multiplications that wait for them. Fitted to these and to 15 other forwards of an H200.
LOOP_NS = 15.0

# Of a tile of the operand in tf32x3: its values split in two, by every warp. And of tiles with two products, whose sums change
# lanes, in all warps at once; and of what a warp of a further block issues besides its products and cells.
TF32X3_OPERAND_NS, TWO_PRODUCTS_NS, FURTHER_WARP_NS = 14.0, 35.0, 30.0
# Of a block's warps in the fullest partition of an SM those beyond the mean that count as the block's own; what the partition
# has besides counts as warps of other blocks.
UNEVEN_WARPS = 0.5
# Of a reduce-scatter by several warps of the same rows: those that hand on a cell wait for each other.
REDUCE_SCATTER_WARPS_NS = 90.0

MODELS = {
    "forward": StepModel(150.0, 3.37, 0.0, 2.84, 0.661, 0.66, 77.5, 20.0, 4.9, 29.1, 50.2, 289.0, 148.0, 74.5, 0.23),
    "backward": StepModel(165.0, 0.0, 6.79, 18.4, 0.533, 1.15, 45.3, 22.0, 6.8, 63.4, 34.3, 576.0, 111.0, 51.5, 0.65),
}


def terms_of_step_ns(partition: Partition, blocks_of_busiest_sm: Amount, matrix_bytes: int) -> dict[str, Amount]:
    """Return the terms of a step except memory, given the blocks of the busiest SM and each block's share of R."""
    problem, gpu, tiling = partition.problem, partition.problem.gpu, partition.tiling
    model, scales, cycles_per_ns = MODELS[problem.kernel_pass], scales_of(gpu), gpu.sm_clock_hz / 1e9
    further_blocks = model.other_blocks * (blocks_of_busiest_sm - 1)

    def of_warps(warps: int, ns: float, further_ns: float) -> Amount:
        """Return the time of a block's warps in the fullest partition of an SM, and of what the other warps there add to it."""
        mean = max(1.0, warps / gpu.partitions_per_sm)
        of_block = mean + UNEVEN_WARPS * (-(-warps // gpu.partitions_per_sm) - mean)
        further = maximum(ceil(warps * blocks_of_busiest_sm / gpu.partitions_per_sm) - of_block, 0.0)
        return of_block * ns + model.other_blocks * further * (ns + further_ns)

    row_tile_ns = tiling.products * model.product * scales.product + tiling.cycles / cycles_per_ns
    tile_ns = partition.full_rows * row_tile_ns + tiling.products * model.operand * scales.product
    if problem.matrix_product == "tf32x3":
        tile_ns += TF32X3_OPERAND_NS * scales.instruction
    product_ns = tile_ns * partition.tiles_per_warp + partition.tile_rows * tiling.row_cycles / cycles_per_ns
    product_ns += partition.diagonal.tiles * row_tile_ns
    cell_ns = gpu_rates.operations_per_element(problem, 1.0) * model.operation * scales.instruction
    cell_ns += problem.cell.transcendental_count * model.transcendental * scales.transcendental
    cells_ns = cell_ns * (1 + (partition.cells - 1) * model.further_cell)
    step_ns = model.step * scales.instruction
    if partition.uses_reduce_scatter and partition.split_k_warps > 1:
        step_ns += REDUCE_SCATTER_WARPS_NS * scales.instruction
    if partition.products_per_tile > 1:
        step_ns += TWO_PRODUCTS_NS * scales.instruction
    matrix_ns = matrix_bytes / SHARED_BYTES_PER_CYCLE / cycles_per_ns
    warps_ns = model.split_k_sum + partition.split_k_warps * model.split_k_warp
    summed_ns = partition.partial_bytes / 1000 * model.summed * (1 + further_blocks)
    terms_ns: dict[str, Amount] = {
        "step": step_ns,
        "products": of_warps(partition.row_warps * partition.split_k_warps, product_ns, FURTHER_WARP_NS * scales.instruction),
        "cells": of_warps(partition.row_warps * partition.cell_warps, cells_ns, 0.0),
        "exchange": exchange_ns(partition, model, blocks_of_busiest_sm),
        "shared_matrix": matrix_ns * (1 + further_blocks) + loop_ns(partition, blocks_of_busiest_sm),
        "reduce_split_k": (warps_ns + summed_ns) * scales.block if partition.needs_split_k_sum else 0.0,
    }
    # Each round of products is one more exchange; all that a step does for its cells it does once. A round multiplies its own
    # rows alone, or its own columns where sums travel, and zeros of the other columns where operands do.
    rounds = 1 + len(problem.cell.rounds)
    multiplies_zeros = partition.is_backward and not partition.uses_reduce_scatter
    # What a round takes was measured in forwards of 16 bits without means; elsewhere the sum over warps counts once for each.
    is_plain = problem.matrix_product == "mma_16bit" and not problem.cell.waits
    has_model = rounds > 1 and is_plain and not partition.is_backward
    sums = () if has_model else ("reduce_split_k",)
    for term in ("exchange", *sums, *(("products", "shared_matrix") if multiplies_zeros else ())):
        terms_ns[term] = rounds * terms_ns[term]
    if has_model:
        terms_ns["rounds"] = rounds_ns(partition, blocks_of_busiest_sm)
    if local := len(partition.diagonal.local_rounds):
        terms_ns["exchange"] *= (rounds - local) / rounds
        terms_ns["exchange"] += local * local_exchange_ns(partition, model, blocks_of_busiest_sm)
    return terms_ns | means.terms_ns(
        problem,
        partition.row_warps * partition.units_per_warp,
        partition.cluster_blocks,
        partition.grid_blocks,
        partition.batch_tile,
    )


def exchange_ns(partition: Partition, model: StepModel, blocks: Amount) -> Amount:
    """Return the time of a step's exchange between blocks, given the blocks of an SM that receive bytes."""
    scales, exchange_bytes = scales_of(partition.problem.gpu), partition.exchange_bytes
    if partition.grid_blocks > 1:
        words = exchange_bytes / 4
        loads = words / (2 * partition.threads)
        return scales.grid * (model.grid + blocks * words / 1000 * model.gathered + loads * model.load)
    if partition.cluster_blocks > 1:
        return scales.cluster * (model.exchange + blocks * exchange_bytes / 1000 * model.received)
    return 0.0


def rounds_ns(partition: Partition, blocks_of_busiest_sm: Amount) -> Amount:
    """Return the time of the further rounds of products of a forward, besides their exchanges and multiplications.

    Each warp reads its columns of the operand again, and loops over the part of R in shared memory, in every round of more than
    diagonal blocks.
    """
    problem, gpu, local = partition.problem, partition.problem.gpu, len(partition.diagonal.local_rounds)
    rounds = len(problem.cell.rounds)
    warps = partition.row_warps * partition.split_k_warps * blocks_of_busiest_sm
    tile_bytes = partition.tiling.depth * COLUMNS * problem.precision.storage_bytes
    operand_cycles = warps * partition.tiles_per_warp * tile_bytes / SHARED_BYTES_PER_CYCLE
    of_whole_ns = loop_ns(partition, blocks_of_busiest_sm) + operand_cycles / gpu.sm_clock_hz * 1e9
    round_ns = ROUND_NS if partition.group_blocks > 1 else ROUND_OF_BLOCK_NS
    return rounds * round_ns * scales_of(gpu).instruction + (rounds - local) * of_whole_ns


def loop_ns(partition: Partition, blocks_of_busiest_sm: Amount) -> Amount:
    """Return the time of the loop over R in shared memory where no other warp hides it; measured in forwards alone."""
    gpu, warps = partition.problem.gpu, partition.row_warps * partition.split_k_warps * blocks_of_busiest_sm
    if partition.is_backward:
        return 0.0
    iterations_ns = partition.smem_tiles / partition.smem_group * LOOP_NS * scales_of(gpu).instruction
    return where(warps <= gpu.partitions_per_sm, iterations_ns, 0.0)


def local_exchange_ns(partition: Partition, model: StepModel, blocks: Amount) -> Amount:
    """Return the time of a round between the blocks that share a block of R; within one it is a barrier of the step."""
    if partition.diagonal.group == 1:
        return 0.0
    received = blocks * partition.local_exchange_bytes / 1000 * model.received
    return scales_of(partition.problem.gpu).cluster * (model.exchange + received)
