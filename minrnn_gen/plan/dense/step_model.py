"""Time of the parts of a step of a persistent kernel."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.plan.dense.partition import COLUMNS, Partition
from minrnn_gen.plan.gpu_rates import scales_of
from minrnn_gen.plan.limits import SHARED_BYTES_PER_CYCLE
from minrnn_gen.plan.many_sizes import Amount, where


@dataclass(frozen=True)
class StepModel:
    """Time of the parts of a step, in nanoseconds, fitted to candidates of 50 passes on an H200 (docs/lab-notes.md).

    On other GPUs `Scales` says how many times as long.

    `step`: of every step. `product`: of a tile's product, for each warp of a partition, and `operand`: of a tile of the
    operand, which all rows of tiles share. `transcendental` and `operation`: of one of a lane's cells, for each warp.
    `split_k_sum`: of the sum over the warps of a split K, with `split_k_warp` for each of them. `exchange`: of a cluster, with
    `received` for each KB that an SM receives. `grid`: of a grid, with `gathered` for every thousand words that an SM reads, 4
    bytes each and 4 for the step, and `load` for each load of a lane.
    """

    step: float
    product: float
    operand: float
    transcendental: float
    operation: float
    split_k_sum: float
    split_k_warp: float
    exchange: float
    received: float
    grid: float
    gathered: float
    load: float


# Of each further round of products in a forward: from the arrival of its operand to the sending of the next one, and in one
# block, where nothing is sent. And of each iteration over tiles of R in shared memory, where a warp is alone: loads, and
# multiplications that wait for them. Fitted to 58 forwards of gru_reset_before on an H200 (docs/lab-notes.md).
ROUND_NS, ROUND_OF_BLOCK_NS, ROUND_LOOP_NS = 140.0, 80.0, 30.0

MODELS = {
    "forward": StepModel(118.0, 3.63, 0.0, 2.9, 0.68, 112.0, 22.0, 29.0, 55.7, 286.0, 153.0, 76.0),
    # The sum over warps, which only one block has, was 0 as fitted: six of 12 x 64 took 45 to 82 ns longer.
    "backward": StepModel(150.0, 0.0, 6.8, 19.8, 0.55, 45.0, 22.0, 60.0, 54.3, 597.0, 115.0, 53.0),
}


def exchange_ns(partition: Partition, model: StepModel, blocks_of_busiest_sm: Amount) -> Amount:
    """Return the time of a step's exchange between blocks."""
    scales, exchange_bytes = scales_of(partition.problem.gpu), partition.exchange_bytes
    if partition.grid_blocks > 1:
        words = exchange_bytes / 4
        loads = words / (2 * partition.threads)
        return scales.grid * (model.grid + blocks_of_busiest_sm * words / 1000 * model.gathered + loads * model.load)
    if partition.cluster_blocks > 1:
        return scales.cluster * (model.exchange + blocks_of_busiest_sm * exchange_bytes / 1000 * model.received)
    return 0.0


def rounds_ns(partition: Partition, blocks_of_busiest_sm: Amount) -> Amount:
    """Return the time of the further rounds of products of a forward, besides their exchanges and multiplications.

    Each warp reads its columns of the operand again. Where a partition of an SM has one warp, nothing hides the latency of the
    loop over the part of R in shared memory, which runs in every round of more than diagonal blocks.
    """
    problem, gpu, local = partition.problem, partition.problem.gpu, len(partition.diagonal.local_rounds)
    rounds = len(problem.cell.rounds)
    warps = partition.row_warps * partition.split_k_warps * blocks_of_busiest_sm
    tile_bytes = partition.tiling.depth * COLUMNS * problem.precision.storage_bytes
    operand_cycles = warps * partition.tiles_per_warp * tile_bytes / SHARED_BYTES_PER_CYCLE
    loop_ns = where(warps <= gpu.partitions_per_sm, partition.smem_tiles / partition.smem_group * ROUND_LOOP_NS, 0.0)
    of_whole_ns = loop_ns * scales_of(gpu).instruction + operand_cycles / gpu.sm_clock_hz * 1e9
    round_ns = ROUND_NS if partition.group_blocks > 1 else ROUND_OF_BLOCK_NS
    return rounds * round_ns * scales_of(gpu).instruction + (rounds - local) * of_whole_ns


def local_exchange_ns(partition: Partition, model: StepModel, blocks_of_busiest_sm: Amount) -> Amount:
    """Return the time of a round between the blocks that share a block of R; within one it is a barrier of the step."""
    if partition.diagonal.group == 1:
        return 0.0
    received = blocks_of_busiest_sm * partition.local_exchange_bytes / 1000 * model.received
    return scales_of(partition.problem.gpu).cluster * (model.exchange + received)
