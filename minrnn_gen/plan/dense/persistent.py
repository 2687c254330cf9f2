"""The search space of persistent_forward.cu.j2 and persistent_backward.cu.j2: all steps of a dense cell in one launch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

from minrnn_gen.plan import limits
from minrnn_gen.plan.dense import means
from minrnn_gen.plan.dense.mma import RESULTS, TILE_ROWS
from minrnn_gen.plan.dense.partition import COLUMNS, SIXTEENTHS, Partition, partition_of
from minrnn_gen.plan.dense.step_model import terms_of_step_ns
from minrnn_gen.plan.dense.turns import memory_wait_ns, over_turns
from minrnn_gen.plan.gpu_rates import launch_us
from minrnn_gen.plan.limits import MBARRIER_BYTES, WARP_LANES, Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum
from minrnn_gen.plan.occupancy import clusters_at_once, registers_per_thread_budget
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, MatrixProduct, Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

FRAGMENT_BYTES = 16  # a lane's part of a tile of a matrix of 16 bits, or of tf32
# Fragments of shared memory under way, of each row of tiles beyond four some more, and how far the estimate is off.
REGISTERS_OF_SHARED, REGISTERS_OF_SHARED_ROW, REGISTERS_ESTIMATE_OFF = 8, 3, 16
# In the backward, where most registers are taken: of each result of a lane that warps add up, and its place.
BACKWARD_REGISTERS_OF_SPLIT_K = 7
# Of the sums of other blocks that are added up side by side; in float32 they are among the fixed ones.
REGISTERS_OF_PEER_SUMS_IN_FP64 = 12
# Addresses, strides, the loop and what is under way, read off compiled kernels.
REGISTERS_FIXED, BACKWARD_REGISTERS_FIXED = 36, 66
# The fixed ones of the backward address the gradients of four gates; of fewer gates there are fewer.
BACKWARD_REGISTERS_OF_GATE, GATES_OF_FIXED = 4, 4
# And the places of R's values, where they are loaded one by one; in tf32 those of pairs.
REGISTERS_OF_PLACES, REGISTERS_OF_PAIRS = 22, 6
# Of a piece that a lane copies for every step: from where (two), and for how many steps more. Those of 16 bytes are few.
REGISTERS_OF_PIECE = 3

# From a load to its value under load: what is not under way for so long is waited for.
# Now and then one takes longer; of a thousand steps that is as much in each, with one step ahead.
MEMORY_LATENCY_NS, LATE_NS = 1140.0, 10.0
# Registers that compiled kernels take less than estimated where all of R is in registers, of 576 kernels: a backward, but for
# the reduce-scatter of several warps, which takes as many or more; a forward, and it for each of a lane's cells.
REGISTERS_BELOW_ESTIMATE, REGISTERS_BELOW_FORWARD, REGISTERS_BELOW_FORWARD_PER_CELL = 12, 5, 6
# Words of what a grid hands on that a lane has under way, with the step of each and where they are; in the backward, where most
# registers are taken, some for each cell too.
REGISTERS_OF_GATHER, BACKWARD_REGISTERS_OF_GATHER, BACKWARD_REGISTERS_OF_GATHER_PER_CELL = 20, 14, 8
# By so much an estimate of these may exceed the limits where shared memory has a part of R and a head a power of two of units:
# the six first picks that need it take 245 to 255 registers, without spills. With other heads six of eight spill.
REGISTERS_OF_GRID_OVER = 8
# In tf32, where an operand has twice the words of one of 16 bits, and shared memory has a part of R: of each sequence.
BACKWARD_REGISTERS_OF_WIDE_GATHER = 4


def refusal(problem: Problem) -> str:
    """Return why these kernels cannot serve `problem`, whatever its sizes; empty if they can."""
    if not problem.gpu.has_async_copy:
        return f"{problem.gpu.name} has no asynchronous copies and no tensor cores of this tile, both there from sm_80 on"
    if why := means_refusal(problem):
        return why
    if problem.layout == "BDT":
        return "the channels of a row are not contiguous in layout BDT, only in BTD and TBD"
    return ""


def means_refusal(problem: Problem) -> str:
    """Return why blocks that wait for each other cannot take the means of `problem`; empty if they can."""
    if problem.cell.means_over_all and problem.heads > 1:
        return "a step needs means over all units, but blocks that go on from step to step have one head"
    return ""


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    of_product: dict[MatrixProduct, dict[str, tuple[int, ...]]] = {
        "mma_16bit": {"smem_sixteenths": tuple(range(SIXTEENTHS))},
        "tf32": {"smem_sixteenths": tuple(range(SIXTEENTHS))},
        "tf32x3": {"presplit_tf32": (0, 1)},
        "fma": {},
    }
    # The products of a backward's tile are of units alone.
    shares_tiles = problem.matrix_product == "mma_16bit" and problem.kernel_pass == "forward"
    return {
        "cluster_blocks": tuple(size for size in (1, 2, 4, 8, 16) if size <= problem.gpu.cluster_size_max),
        "grid_blocks": (1, *_grids(problem)),
        "row_warps": (1, 2, 3, 4, 5, 6, 7, 8),
        "split_k_warps": (1, 2, 4, 8),
        **({"products_per_tile": (1, 2)} if shares_tiles else {}),
        **of_product[problem.matrix_product],
        "batch_tile": (2, 4, 8),
        "stages": (2, 4, 8),
    }


def _grids(problem: Problem) -> tuple[int, ...]:
    """Group sizes beyond a cluster and up to the GPU's SMs, with which a head takes 1, 2 or 4 warps of each block."""
    gpu = problem.gpu
    wanted = {-(-problem.head_dim // (warps * TILE_ROWS)) for warps in (1, 2, 4)}
    return tuple(sorted(blocks for blocks in wanted if gpu.cluster_size_max < blocks <= gpu.sm_count))


def registers(partition: Partition) -> int:
    """Return an estimate of a lane's registers: R's tiles, sums, the exchange, copies under way and the cells."""
    problem, tiling = partition.problem, partition.tiling
    cell, words = problem.cell, problem.registers_per_value
    gates, products, states, vectors = cell.step_values, len(cell.recurrent_gates), len(cell.states), len(cell.parameters)
    smem_tiles, rows = partition.smem_tiles, partition.tile_rows
    matrix = tiling.matrix * partition.full_rows * (math.ceil(partition.tiles_per_warp) - smem_tiles)
    matrix += tiling.matrix * partition.diagonal.tiles
    if smem_tiles:
        matrix += REGISTERS_OF_SHARED + REGISTERS_OF_SHARED_ROW * max(0, rows - 4)
    sums = tiling.sum * rows + _registers_of_load(problem)
    if partition.grid_blocks > 1:
        of_backward = BACKWARD_REGISTERS_OF_GATHER + BACKWARD_REGISTERS_OF_GATHER_PER_CELL * partition.cells
        sums += of_backward if partition.is_backward else REGISTERS_OF_GATHER
        if partition.is_backward and smem_tiles and problem.matrix_product == "tf32":
            sums += BACKWARD_REGISTERS_OF_WIDE_GATHER * partition.batch_tile
    sums += means.registers(problem, partition.cells)
    pieces = REGISTERS_OF_PIECE * _additional_pieces(partition)
    if partition.is_backward:
        if partition.uses_reduce_scatter:
            sums += (words - 1) * REGISTERS_OF_PEER_SUMS_IN_FP64 * partition.cells
        elif partition.split_k_warps > 1:
            sums += BACKWARD_REGISTERS_OF_SPLIT_K * RESULTS * partition.batch_tile // COLUMNS
        per_cell = words * (2 * states + 3 * (gates + products) + 2 * vectors) + 8
        fixed = BACKWARD_REGISTERS_FIXED - BACKWARD_REGISTERS_OF_GATE * max(0, GATES_OF_FIXED - gates)
        return fixed + matrix + sums + pieces + partition.cells * per_cell
    per_cell = words * (2 * gates + states + products + vectors) + 8
    return REGISTERS_FIXED + matrix + sums + pieces + partition.cells * per_cell


def _registers_of_load(problem: Problem) -> int:
    """Return the additional registers for loading R."""
    if problem.matrix_product == "mma_16bit":
        return 0
    loads_pairs = problem.specialization.alignment_bytes >= 2 * problem.precision.storage_bytes
    return REGISTERS_OF_PAIRS if problem.matrix_product == "tf32" and loads_pairs else REGISTERS_OF_PLACES


def _additional_pieces(partition: Partition) -> int:
    """Return how many more copies a lane issues for one step than with copies of 16 bytes."""
    step_bytes = partition.stage_bytes(partition.cell_columns)

    def pieces(copy_bytes: int) -> int:
        return -(-step_bytes // (copy_bytes * WARP_LANES))

    return pieces(partition.problem.specialization.alignment_bytes) - pieces(WIDEST_COPY_BYTES)


def _shared_map(partition: Partition, stages: int) -> dict[str, int]:
    problem, batch_tile = partition.problem, partition.batch_tile
    row = partition.operand_values + partition.tiling.padding
    parts = {
        "operand": 2 * batch_tile * row * problem.precision.storage_bytes,
        "stages": partition.row_warps * stages * partition.stage_bytes(batch_tile),
    }
    warps = partition.row_warps * partition.split_k_warps
    if partition.smem_tiles:
        parts["matrix"] = warps * partition.full_rows * partition.smem_tiles * WARP_LANES * FRAGMENT_BYTES
    if partition.uses_reduce_scatter:
        parts["peer_sums"] = 2 * partition.exchange_bytes
    elif partition.needs_split_k_sum:
        parts["partial"] = 2 * partition.partial_bytes
    if partition.cluster_blocks > 1:
        parts["mbarrier"] = 2 * MBARRIER_BYTES
    if local := len(partition.diagonal.local_rounds):
        sums = partition.local_exchange_bytes if partition.uses_reduce_scatter else 0
        parts["local_rounds"] = local * (parts["operand"] // 2 + sums + 2 * MBARRIER_BYTES)
    units = partition.row_warps * partition.units_per_warp
    return parts | means.shared_map(problem, units, batch_tile, partition.cluster_blocks, partition.group_blocks)


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    every = tuple(variables(problem))
    units = tuple(name for name in ("cluster_blocks", "grid_blocks", "row_warps", "products_per_tile") if name in every)
    head_dim, backward = problem.head_dim, problem.kernel_pass == "backward"
    *names, stages_name = every
    of_partition = tuple(names)
    assert stages_name == "stages"

    @functools.cache
    def partition_at(*values: int) -> Partition:
        return Partition(problem, **dict(zip(of_partition, values, strict=True)))

    registers_at = functools.cache(registers)  # of partitions by identity, which `partition_at` makes once

    def least_registers(partition: Partition) -> int:
        is_over = backward and partition.grid_blocks > 1 and partition.smem_tiles and head_dim.bit_count() == 1
        return registers_at(partition) - (REGISTERS_OF_GRID_OVER if is_over else 0)

    def of(function: Callable[[Partition], int]) -> Callable[..., int]:
        """Return a function of a partition as one of its variables."""
        return lambda *values: function(partition_at(*values))

    def with_less_in_shared(partition: Partition) -> Partition:
        sixteenths = {"smem_sixteenths": partition.smem_sixteenths - 1}
        return partition_at(*(sixteenths.get(name, getattr(partition, name)) for name in of_partition))

    in_shared = (
        Constraint(
            "whole_tiles",
            "another sixteenth in shared memory is at least another tile there",
            of_partition,
            of(lambda partition: partition.smem_sixteenths and 1 + with_less_in_shared(partition).smem_tiles),
            of(lambda partition: partition.smem_tiles),
            "tiles",
        ),
        Constraint(
            "registers_first",
            "what fits registers is not read from shared memory in every step",
            of_partition,
            of(
                lambda partition: (
                    partition.smem_sixteenths and 1 + registers_per_thread_budget(problem.gpu, partition.threads, 1)
                )
            ),
            of(lambda partition: registers_at(with_less_in_shared(partition)) + REGISTERS_ESTIMATE_OFF),
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
            "the warps that share a head have all of its units, 16 each, or 8 where a tile has two products of each",
            units,
            lambda *_: head_dim,
            lambda cluster_blocks, grid_blocks, warps, products=1: cluster_blocks * grid_blocks * warps * TILE_ROWS // products,
            "units",
            "split the hidden size into more heads",
        ),
        Constraint(
            "units_wasted",
            "with a warp less in every block the units would fit as well",
            units,
            lambda cluster_blocks, grid_blocks, warps, products=1: (
                cluster_blocks * grid_blocks * (warps - 1) * TILE_ROWS // products + 1
            ),
            lambda *_: head_dim,
            "units",
        ),
        Constraint(
            "even_columns",
            "the warps that share the columns of a matrix have equally many tiles, all of them whole",
            of_partition,
            of(lambda partition: partition.operand_values % (partition.tiling.depth * partition.column_warps)),
            lambda *_: 0,
            "columns",
        ),
        *(
            (
                Constraint(
                    "products_of_grid",
                    "over a grid tiles have one product: with two, more warps of a block wait for the same columns",
                    ("grid_blocks", "products_per_tile"),
                    lambda grid_blocks, products: products if grid_blocks > 1 else 1,
                    lambda *_: 1,
                    "products",
                ),
                Constraint(
                    "cell_of_lane",
                    "every lane has a whole cell: all products of a unit and a sequence",
                    of_partition,
                    lambda *_: 1,
                    of(lambda partition: partition.cells),
                    "cells",
                ),
            )
            if "products_per_tile" in every
            else ()
        ),
        Constraint(
            "reduce_scatter_warps",
            "warps that share rows divide the destination blocks of the reduce-scatter among them",
            ("cluster_blocks", "split_k_warps"),
            lambda cluster_blocks, split_k_warps: split_k_warps if backward and cluster_blocks > 1 else 0,
            lambda cluster_blocks, _: cluster_blocks,
            "blocks",
        ),
        *(
            (
                means.whole_parts(
                    problem,
                    units,
                    lambda cluster_blocks, grid_blocks, warps, products=1: (
                        warps * TILE_ROWS // products,
                        cluster_blocks * grid_blocks,
                    ),
                ),
            )
            if problem.cell.waits_within_parts
            else ()
        ),
        *(in_shared if "smem_sixteenths" in every else ()),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("row_warps", "split_k_warps"), lambda warps, split_k_warps: warps * split_k_warps * WARP_LANES),
            Quantity(of_partition, of(least_registers)),
            Quantity(every, lambda *values: sum(_shared_map(partition_at(*values[:-1]), values[-1]).values())),
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    """Return what a candidate takes, and promise as many blocks of an SM as the cost counts if the typical sizes need them."""
    partition, stages = partition_of(problem, candidate), candidate["stages"]
    estimated = _resources(partition, stages, registers(partition))
    if _groups(partition) <= _groups_at_once(partition, estimated.blocks_per_sm):
        return estimated
    return _resources(partition, stages, _registers_compiled(partition))


def _resources(partition: Partition, stages: int, registers_estimated: int) -> Resources:
    return limits.resident(
        partition.problem,
        threads=partition.threads,
        channels_per_block=partition.row_warps * partition.units_per_warp,
        registers_estimated=registers_estimated,
        shared_map=_shared_map(partition, stages),
        partition=partition.in_plan(),
    )


def _registers_compiled(partition: Partition) -> int:
    """Return what compiled kernels take of the registers estimated: by it the cost counts the blocks of an SM."""
    below = 0 if partition.smem_tiles else REGISTERS_BELOW_FORWARD + REGISTERS_BELOW_FORWARD_PER_CELL * partition.cells
    if partition.is_backward:
        several = partition.uses_reduce_scatter and partition.split_k_warps > 1
        below = 0 if partition.smem_tiles or several else REGISTERS_BELOW_ESTIMATE
    return max(1, registers(partition) - below)


def _groups(partition: Partition) -> Amount:
    """Return the groups of blocks that a call has, one for each head and tile of sequences."""
    return partition.problem.heads * -(-partition.problem.batch // partition.batch_tile)


def _groups_at_once(partition: Partition, blocks_per_sm: int) -> int:
    """Return how many groups the GPU holds at once: a cluster lies within a GPC, the blocks of a grid anywhere."""
    clusters = clusters_at_once(partition.problem.gpu, partition.cluster_blocks, blocks_per_sm)
    return max(1, clusters // partition.grid_blocks)


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Return the cost model's terms in microseconds: those of one step, times the steps, over all turns of groups."""
    partition, stages = partition_of(problem, candidate), candidate["stages"]
    resources = _resources(partition, stages, _registers_compiled(partition))
    matrix_bytes = resources.shared_map.get("matrix", 0)
    groups_of_one_each = _groups_at_once(partition, 1)

    def step_ns(groups: Amount) -> Mapping[str, Amount]:
        # Clusters that lie in the same GPC share its SMs.
        terms_ns = terms_of_step_ns(partition, ceil(groups / groups_of_one_each), matrix_bytes)
        computed_ns = sum(terms_ns.values())
        late_ns = maximum(0.0, MEMORY_LATENCY_NS / stages - computed_ns) + LATE_NS / stages
        moved_bytes = groups * partition.moved_bytes
        waited_ns = late_ns + memory_wait_ns(problem.gpu, computed_ns + late_ns, moved_bytes)
        return {**terms_ns, "prefetch": waited_ns}

    terms_ns = over_turns(_groups(partition), _groups_at_once(partition, resources.blocks_per_sm), step_ns)
    return {name: problem.time * ns / 1e3 for name, ns in terms_ns.items()} | {"launch": launch_us(problem.gpu)}


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
    )


FORWARD = _family("persistent_forward")
BACKWARD = _family("persistent_backward")
