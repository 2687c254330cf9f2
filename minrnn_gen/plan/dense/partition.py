"""Partition of a persistent kernel: R's tiles over warps, cells over lanes, and the exchange between blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.plan.dense import means
from minrnn_gen.plan.dense.diagonal import Diagonal, diagonal_of
from minrnn_gen.plan.dense.mma import RESULTS, TILE_ROWS, Tiling, tiling
from minrnn_gen.plan.exchange import exchange_of
from minrnn_gen.plan.limits import WARP_LANES
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate

COLUMNS = 8  # of a tensor core's tile (PTX ISA, mma.sync): sequences
SIXTEENTHS = 16  # of a warp's part of a matrix of 16 bits or of tf32, of which shared memory may hold some


@dataclass(frozen=True, eq=False)
class Partition:
    """The partition of a candidate; `stages` is not part of it.

    The solver computes partitions of tens of thousands of candidates, so every property is computed when it is first read.
    """

    problem: Problem
    cluster_blocks: int
    grid_blocks: int
    row_warps: int
    split_k_warps: int
    batch_tile: int
    smem_sixteenths: int = 0
    presplit_tf32: int = 0
    products_per_tile: int = 1

    @property
    def is_backward(self) -> bool:
        """Whether the kernel takes the steps from the last to the first, with the gradients of the products as operand."""
        return self.problem.kernel_pass == "backward"

    @property
    def group_blocks(self) -> int:
        """Blocks that share a head and a tile of sequences."""
        return self.cluster_blocks * self.grid_blocks

    @property
    def units_per_warp(self) -> int:
        """Units of a warp: a tile's rows are one product of so many, or two of half as many."""
        return TILE_ROWS // self.products_per_tile

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.row_warps * self.split_k_warps * WARP_LANES

    @property
    def operand_width(self) -> int:
        """Values of a unit in the operand: its output, or the gradients of its products."""
        return len(self.problem.cell.recurrent_gates) if self.is_backward else 1

    @cached_property
    def uses_reduce_scatter(self) -> bool:
        """Whether blocks exchange partial products by a reduce-scatter, instead of operands by an all-gather."""
        variables = {"cluster_blocks": self.cluster_blocks, "grid_blocks": self.grid_blocks}
        return exchange_of(self.problem.kernel_pass, variables).passes_sums

    @property
    def column_warps(self) -> int:
        """Warps that share the columns of their rows; in a reduce-scatter they multiply for different blocks instead."""
        return 1 if self.uses_reduce_scatter else self.split_k_warps

    @property
    def needs_split_k_sum(self) -> bool:
        """Whether the warps that share columns add up their partial products over shared memory."""
        return self.split_k_warps > 1 and not self.uses_reduce_scatter

    @cached_property
    def tile_rows(self) -> int:
        """Rows of a warp's tiles: the products of each unit, or the destination blocks of its partial products."""
        if self.uses_reduce_scatter:
            # Candidates with more warps than destination blocks get here too, before a constraint drops them.
            return max(1, self.cluster_blocks // self.split_k_warps)
        return 1 if self.is_backward else -(-len(self.problem.cell.recurrent_gates) // self.products_per_tile)

    @cached_property
    def diagonal(self) -> Diagonal:
        """The products of block-diagonal matrices whose blocks the warps multiply alone."""
        return diagonal_of(self)

    @cached_property
    def tiling(self) -> Tiling:
        """The tiling of a warp's product."""
        return tiling(self.problem, self.tile_rows, self.batch_tile, self.presplit_tf32)

    @property
    def operand_units(self) -> int:
        """Units whose values a block multiplies: its own in a reduce-scatter, else those of the whole group."""
        return (1 if self.uses_reduce_scatter else self.group_blocks) * self.row_warps * self.units_per_warp

    @cached_property
    def operand_values(self) -> int:
        """Values of a sequence in a block's operand."""
        return self.operand_width * self.operand_units

    @cached_property
    def tiles_per_warp(self) -> float:
        """Tiles of one of a warp's rows, without those of block-diagonal products."""
        values = self.operand_values
        if self.uses_reduce_scatter:
            values -= len(self.diagonal.products) * self.operand_units
        return values // self.tiling.depth / self.column_warps

    @cached_property
    def full_rows(self) -> int:
        """Rows of a warp's tiles that have more than the blocks of block-diagonal products."""
        return self.tile_rows if self.is_backward else self.tile_rows - self.diagonal.rows

    @cached_property
    def smem_tiles(self) -> int:
        """Tiles of the operand whose part of a warp's matrix is in shared memory."""
        if not self.smem_sixteenths:
            return 0
        return int(self.tiles_per_warp) * self.smem_sixteenths // SIXTEENTHS // self.smem_group * self.smem_group

    @property
    def smem_group(self) -> int:
        """Tiles of an iteration over those whose part of a warp's matrix is in shared memory: one for each sum under way."""
        return max(2, self.tiling.sum // RESULTS)

    @property
    def cell_warps(self) -> int:
        """Warps that compute the cells of their common units, each for some of the sequences: one cell of a lane at least."""
        return min(self.split_k_warps, self.batch_tile // (2 * self.products_per_tile)) or 1

    @cached_property
    def cell_columns(self) -> int:
        """Sequences whose cells a warp computes."""
        return self.batch_tile // self.cell_warps

    @cached_property
    def cells(self) -> int:
        """Cells of a lane: a tile has four results for it, and every sequence as many copies as there is room for."""
        return RESULTS * self.cell_columns // (COLUMNS * self.products_per_tile)

    def stage_bytes(self, columns: int) -> int:
        """Bytes that a warp reads from memory for one step of `columns` sequences."""
        cell, precision = self.problem.cell, self.problem.precision
        storage_values, arithmetic_values = cell.step_values, 0
        if self.is_backward:
            storage_values, arithmetic_values = storage_values + 1 + self.problem.products_moved, len(cell.states)
            storage_values += bool(cell.rounds)  # of those of the output and of arguments each at least one has room
            # As many in a row as a warp has units, for each part of the head that it has units of.
            arithmetic_values += cell.mean_rows * means.parts_of_warp(self.problem, self.units_per_warp)
        per_cell = storage_values * precision.storage_bytes + arithmetic_values * precision.arithmetic_bytes
        return columns * self.units_per_warp * per_cell

    @property
    def moved_bytes(self) -> float:
        """Bytes that a group reads from memory and writes to it in a step."""
        cell, units = self.problem.cell, self.row_warps * self.units_per_warp
        written = cell.step_values + self.problem.products_moved if self.is_backward else 1
        of_block = self.row_warps * self.stage_bytes(1) + units * written * self.problem.precision.storage_bytes
        # The last units of warps may be beyond the head.
        return self.batch_tile * of_block * self.problem.head_dim / units

    @property
    def partial_bytes(self) -> int:
        """Bytes of the partial products that the warps of a split K add up, in a block."""
        results = self.tile_rows * TILE_ROWS * self.batch_tile
        return self.row_warps * self.split_k_warps * results * self.problem.precision.arithmetic_bytes

    @cached_property
    def exchange_bytes(self) -> int:
        """Bytes that a block receives in a step: its whole operand, or the partial products of its units from every block."""
        precision = self.problem.precision
        if self.uses_reduce_scatter:
            return self.batch_tile * self.cluster_blocks * self.row_warps * self.units_per_warp * precision.arithmetic_bytes
        return self.batch_tile * self.operand_values * precision.storage_bytes

    @property
    def local_exchange_bytes(self) -> int:
        """Bytes that a block receives in a round between the blocks that share a block of R."""
        return self.exchange_bytes // self.cluster_blocks * self.diagonal.group

    def in_plan(self) -> dict[str, int]:
        """Return the numbers of the partition that a template is written with, by name."""
        return {
            "uses_reduce_scatter": int(self.uses_reduce_scatter),
            "operand_units": self.operand_units,
            "products_per_tile": self.products_per_tile,
            "column_warps": self.column_warps,
            "cell_warps": self.cell_warps,
            **means.in_plan(self.problem, self.grid_blocks, self.batch_tile),
            **self.diagonal.in_plan(),
        }


def partition_of(problem: Problem, candidate: Candidate) -> Partition:
    """Return the partition of `candidate`."""
    return Partition(problem, **{name: value for name, value in candidate.items() if name != "stages"})
