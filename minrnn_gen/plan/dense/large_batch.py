"""The search space of large_batch_forward.cu.j2 and large_batch_backward.cu.j2: all steps in one launch, by warpgroups."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from minrnn_gen.plan import limits
from minrnn_gen.plan.dense.warpgroup import CHAIN_CHUNKS, TILE_COLUMNS
from minrnn_gen.plan.dense.warpgroup_cost import predicted_us
from minrnn_gen.plan.dense.warpgroup_partition import WarpgroupPartition
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.occupancy import clusters_at_once
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

# Products of a unit that the two lanes have that share it (templates/parts/large_batch_tile.cuh.j2).
PRODUCTS_MOST = 4
# Tiles that are no power of two, and not the largest that fit.
TILES_BETWEEN = (24, 48, 96, 160)
# Rounds of cells.
ROUNDS_MOST = 8
# Cells of a lane in a backward, all unrolled. With 32, kernels took at least 1.12 times as long as the best of 14 problems
# drawn on H200s, and 1.02 of an elman on an H100 (docs/lab-notes.md).
CELLS_MOST = 16
# Warpgroups that multiply: more have too few registers for a part of R.
CONSUMERS_MOST = 4


def refusal(problem: Problem) -> str:
    """Return why these kernels cannot serve `problem`, whatever its sizes; empty if they can."""
    if not problem.gpu.has_async_copy:
        return f"{problem.gpu.name} has no asynchronous copies, which sm_80 has first"
    if problem.layout == "BDT":
        return "the channels of a row are not contiguous in layout BDT, only in BTD and TBD"
    if problem.matrix_product == "fma":
        return f"tensor cores make no products in {problem.precision.name}"
    most = max(problem.cell.round_products)
    if most > PRODUCTS_MOST:
        return f"{problem.cell.name} has {most} recurrent products in a round, warpgroups take {PRODUCTS_MOST}"
    if not problem.cell.round_products[0]:
        return f"no product of {problem.cell.name} is of its previous output alone, which the warpgroups exchange"
    if problem.cell.has_means and problem.kernel_pass == "backward":
        return f"the gradients of {problem.cell.name} need means over units, which warpgroups exchange in forwards alone"
    if problem.cell.means_over_all and problem.heads > 1:
        return f"{problem.cell.name} needs means over all units, but the blocks of a head do not wait for those of others"
    if problem.cell.norm_parts > 1:
        return f"means of {problem.cell.name} are over parts of a head, and warpgroups exchange those of whole heads"
    if problem.specialization.alignment_bytes < WIDEST_COPY_BYTES:
        return f"rows start at multiples of {problem.specialization.alignment_bytes} bytes, not of {WIDEST_COPY_BYTES}"
    return ""


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    backward = problem.kernel_pass == "backward"
    return {
        "cluster_blocks": (1, 2, 4, 8) if backward and problem.gpu.has_clusters else (1,),
        "split_k_blocks": (1, 2, 4, 8) if backward else (1, 2, 4),
        "row_tiles": (1, 2) if backward else (1, 2, 4),
        "split_k_warpgroups": (1, 2),
        "column_groups": (1, 2),
        "batch_tile": (8, 16, 24, 32, 48, 64, 96, 128, 160, 176, 192, 256),
        "streams_matrix": (0, 1),
    }


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    every, backward = tuple(variables(problem)), problem.kernel_pass == "backward"

    @functools.cache
    def partition_at(*values: int) -> WarpgroupPartition:
        return WarpgroupPartition(problem, *values)

    def units_of(partition: WarpgroupPartition) -> int:
        """Return the units of a head, rounded up to whole tiles."""
        return partition.tiles * partition.tile_units

    def of(function: Callable[[WarpgroupPartition], int]) -> Callable[..., int]:
        """Return a function of what a candidate stands for as one of its variables."""
        return lambda *values: function(partition_at(*values))

    return (
        Constraint(
            "warpgroups",
            "warpgroups that multiply have registers for sums, cells and a part of R",
            ("row_tiles", "split_k_warpgroups", "column_groups"),
            lambda row_tiles, split_k, column_groups: row_tiles * split_k * column_groups,
            lambda *_: CONSUMERS_MOST,
            "warpgroups",
        ),
        Constraint(
            "blocks_that_sum",
            "blocks that split the columns of the same rows are a cluster, or anywhere",
            ("cluster_blocks", "split_k_blocks"),
            lambda cluster_blocks, split_k_blocks: cluster_blocks if cluster_blocks != split_k_blocks else 1,
            lambda *_: 1,
            "blocks",
        ),
        Constraint(
            "whole_column_tiles",
            "each warpgroup computes the cells of whole tiles of sequences",
            ("split_k_blocks", "split_k_warpgroups", "batch_tile"),
            lambda split_k_blocks, split_k, batch_tile: batch_tile % (TILE_COLUMNS * split_k_blocks * split_k),
            lambda *_: 0,
            "sequences",
        ),
        Constraint(
            "whole_flags",
            "flags are of as many chunks each, and no more of them than a warp reads at once",
            every[:5],
            lambda *values: partition_at(*values, TILE_COLUMNS).unit_chunks % partition_at(*values, TILE_COLUMNS).flag_chunks,
            lambda *_: 0,
            "chunks",
            "split the hidden size into more heads",
        ),
        Constraint(
            "streamed_tiles",
            "where R is streamed, tiles between the powers of two gain little but where they fill shared memory",
            ("batch_tile", "streams_matrix"),
            lambda batch_tile, streams: 1 if streams and batch_tile in TILES_BETWEEN else 0,
            lambda *_: 0,
            "sequences",
            drops_dominated=True,
        ),
        *(
            (
                Constraint(
                    "units_of_tiles",
                    "tiles have units of the head alone, so that all moments are of as many units",
                    every[:5],
                    lambda *values: units_of(partition_at(*values, TILE_COLUMNS)) - problem.head_dim,
                    lambda *_: 0,
                    "units",
                    "choose heads of a multiple of 64 units",
                ),
            )
            if problem.cell.waits
            else ()
        ),
        Constraint(
            "rounds",
            "the rounds in which cells are computed are unrolled, so that states have names; more take the compiler too long",
            every,
            of(lambda partition: partition.rounds),
            lambda *_: ROUNDS_MOST,
            "rounds",
        ),
        Constraint(
            "blocks_of_group",
            "all blocks of a group are resident at once",
            every[:5],
            lambda *values: partition_at(*values, TILE_COLUMNS).grid_blocks,
            lambda cluster_blocks, *_: cluster_blocks * clusters_at_once(problem.gpu, cluster_blocks, 1),
            "blocks",
            "split the hidden size into more heads",
        ),
        Constraint(
            "cells_of_lane",
            "a lane computes its cells in unrolled code, and with more of them steps take longer than in more turns",
            every,
            of(lambda partition: partition.cells if backward else 0),
            lambda *_: CELLS_MOST,
            "cells",
            drops_dominated=True,
        ),
        Constraint(
            "registers_of_warpgroup",
            "sums, states and a cell that is computed live in registers",
            every,
            of(lambda partition: partition.registers_beside_matrix),
            of(lambda partition: partition.consumer_registers),
            "registers",
        ),
        Constraint(
            "operands_in_flight",
            "the ring has room for a chunk of each warp that fetches, those that are multiplied, and of a streamed R one more",
            every,
            of(lambda partition: partition.slots_least),
            of(lambda partition: partition.ring_slots),
            "chunks",
            "split the hidden size into more heads",
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(every, of(lambda partition: partition.threads)),
            Quantity(every, of(lambda partition: min(partition.launch_registers, partition.registers))),
            Quantity(every, of(lambda partition: sum(partition.shared_map.values()))),
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    partition = WarpgroupPartition(problem, **candidate)
    return Resources(
        threads=partition.threads,
        channels_per_block=partition.row_tiles * partition.tile_units,
        registers_estimated=partition.registers,
        registers_per_thread=partition.launch_registers,
        shared_map=partition.shared_map,
        blocks_per_sm=1,
        partition=_in_plan(partition),
    )


def _in_plan(partition: WarpgroupPartition) -> dict[str, int]:
    """Return the numbers that the template is written with, by name."""
    gate_pieces = (
        partition.problem.cell.step_values
        * partition.tile_units
        * partition.problem.precision.storage_bytes
        // WIDEST_COPY_BYTES
    )
    return {
        "grid_blocks": partition.grid_blocks,
        "in_one_block": int(partition.in_one_block),
        "tile_units": partition.tile_units,
        "stage_bytes": partition.stage_bytes,
        "mma_sync": int(partition.mma_sync),
        "chunk_units": partition.chunk_units,
        "chain_chunks": CHAIN_CHUNKS,
        "unit_chunks": partition.unit_chunks,
        "flag_chunks": partition.flag_chunks,
        "chunks": partition.chunks,
        "rounds": partition.rounds,
        "register_chunks": partition.register_chunks,
        "shared_chunks": partition.shared_chunks,
        "ring_slots": partition.ring_slots,
        "stage_steps": partition.stage_steps,
        "stages_in_bulk": int(partition.stages_in_bulk),
        "overlaps_product": int(partition.overlaps_product),
        "bulk_copies": int(partition.problem.gpu.has_bulk_copy),
        "producer_warps": partition.producer_warps,
        "consumer_registers": partition.consumer_registers if partition.divides_registers else 0,
        "producer_registers": partition.producer_registers,
        "gate_piece_slots": 1 << (gate_pieces - 1).bit_length(),
        "exchange_bytes": partition.exchange_bytes,
        "packed_bytes": partition.packed_bytes,
    }


def _arch_of(problem: Problem) -> str:
    """Return the target with wgmma and registers moved between warpgroups, as sm_90a: later GPUs may lack both."""
    return problem.gpu.arch + "a" * problem.gpu.divides_registers


def _family(name: str) -> Family:
    return Family(
        name=name,
        entry=name,
        strategy="persistent",
        copies=True,
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
        arch=_arch_of,
    )


FORWARD = _family("large_batch_forward")
BACKWARD = _family("large_batch_backward")
