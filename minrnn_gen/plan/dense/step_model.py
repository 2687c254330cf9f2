"""Time of the parts of a step of a persistent kernel."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.plan.dense.partition import Partition
from minrnn_gen.plan.gpu_rates import scales_of
from minrnn_gen.plan.many_sizes import Amount


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


MODELS = {
    "forward": StepModel(118.0, 3.63, 0.0, 2.9, 0.68, 112.0, 22.0, 29.0, 55.7, 286.0, 153.0, 76.0),
    "backward": StepModel(160.0, 0.0, 4.2, 8.8, 0.55, 0.0, 56.0, 82.0, 43.5, 539.0, 115.0, 53.0),
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


def local_exchange_ns(partition: Partition, model: StepModel, blocks_of_busiest_sm: Amount) -> Amount:
    """Return the time of a round between the blocks that share a block of R; within one it is a barrier of the step."""
    if partition.diagonal.group == 1:
        return 0.0
    received = blocks_of_busiest_sm * partition.local_exchange_bytes / 1000 * model.received
    return scales_of(partition.problem.gpu).cluster * (model.exchange + received)
