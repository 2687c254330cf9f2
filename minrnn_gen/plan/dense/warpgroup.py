"""Tiles and chunks of a product by warpgroups, and what its kernels take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.plan.limits import WARP_LANES
from minrnn_gen.plan.problem import Problem

# No other architecture, older or newer, has products of warpgroups (PTX ISA, wgmma).
WGMMA_CAPABILITY = "9.0"
# wgmma and what it takes from (PTX ISA, wgmma.mma_async): 64 rows of 128 bytes, swizzled over 1024.
TILE_ROWS, TILE_COLUMNS, SWIZZLED_ROW_BYTES, SWIZZLE_BYTES, SLICE_BYTES = 64, 8, 128, 1024, 32
WARPGROUP_WARPS = 4
WARPGROUP_THREADS = WARPGROUP_WARPS * WARP_LANES
# Warps that fetch operands; one was measured to be slower by 15 to 42 % than four (docs/performance.md).
PRODUCER_WARPS = 4
REGISTER_UNIT = 8  # of setmaxnreg
# Registers of a thread that fetches, where warpgroups divide the registers anew: fewer with more than two that multiply.
PRODUCER_REGISTERS, PRODUCER_REGISTERS_FEW = 40, 24
REGISTERS_PER_CHUNK = 16  # of R: 64 rows of 128 bytes, over 128 lanes
# Flags that a warp reads at once, of chunks of outputs that are complete.
FLAGS_MOST = WARP_LANES
# Bytes of the ring where R is streamed through it: what an SM draws from L2 in a microsecond, and as much that is multiplied.
STREAM_RING_BYTES = 128 << 10
# Slots of such a ring: a chunk that is multiplied, and of what is under way no less.
STREAM_SLOTS_LEAST = 4
# Addresses, the loop and what is under way, read off compiled kernels.
REGISTERS_FIXED, BACKWARD_REGISTERS_FIXED = 46, 24
REGISTERS_KEPT = 8  # in one block: a backward of gru, 128 units in fp32, was estimated at 254 of 255 and spilled
ROUNDS_REGISTERS = 16  # of a backward in rounds
PRODUCT_ROUNDS_REGISTERS = 16  # of a backward with rounds of products
# Of a forward with rounds of products, what R leaves free: cells of a round are computed at once.
PRODUCT_ROUNDS_FREE_REGISTERS = 40
STREAM_REGISTERS = 12  # of a forward that streams R
# Of mma.sync: fragments of the operand that are loaded ahead, of R in shared memory, and their addresses.
MMA_SYNC_REGISTERS = {"forward": 32, "backward": 64}
# The most chunks of a warpgroup for which a streamed R is unrolled, for the sake of a few chunks in registers.
UNROLLED_CHUNKS_MOST = 32
# Chunks in tf32x3 that tensor cores add up by themselves. They truncate sums: emulated, with 512 to 4096 columns, products were
# off by 2.6 to 3.2 e-7 with chains of two chunks, 5.4 to 5.5 e-7 of four, and 5 to 38 e-6 of all; by fused multiply-adds by
# 4 to 12 e-7.
CHAIN_CHUNKS = 2
COLUMN_BYTES = {"forward": 32, "backward": 64}  # of a sequence's place in the arrays


@dataclass(frozen=True, eq=False)
class WarpgroupTiling:
    """Tiles of R, chunks of the operand, and sequences, as a candidate's variables divide them over warpgroups and blocks."""

    problem: Problem
    cluster_blocks: int
    split_k_blocks: int
    row_tiles: int
    split_k_warpgroups: int
    column_groups: int
    batch_tile: int
    streams_matrix: int = 0

    @property
    def is_backward(self) -> bool:
        """Whether the kernel takes the steps from the last to the first, with the gradients of the products as operand."""
        return self.problem.kernel_pass == "backward"

    @property
    def mma_sync(self) -> bool:
        """Whether each warp of a warpgroup multiplies by itself, by `mma.sync`, for lack of `wgmma`."""
        return self.problem.gpu.compute_capability != WGMMA_CAPABILITY

    @property
    def stages_in_bulk(self) -> bool:
        """Whether what a step reads is copied row by row, each by one instruction: a backward reads many rows of 64 units.

        Only in one block: elsewhere it was not measured.
        """
        return self.is_backward and self.in_one_block and self.problem.gpu.has_bulk_copy

    @property
    def operand_width(self) -> int:
        """Values of a unit in the operand: its output, or the gradients of its products."""
        return len(self.problem.cell.recurrent_gates) if self.is_backward else 1

    @property
    def round_widths(self) -> tuple[int, ...]:
        """Values of a unit in the operand of each round: its output or argument, or the gradients of the round's products."""
        products = self.problem.cell.round_products
        return products if self.is_backward else (1,) * len(products)

    @property
    def in_one_block(self) -> bool:
        """Whether a block has a head and all of R, so that operands stay in its shared memory and no warp fetches.

        Means over units travel through L2, whatever their scope.
        """
        return self.grid_blocks == 1 and not self.streams_matrix and not self.problem.cell.waits

    @property
    def overlaps_product(self) -> bool:
        """Whether a step's copies and stores run while tensor cores multiply its operand, which waits for no other block."""
        return self.in_one_block and not self.problem.cell.rounds

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.row_tiles * self.split_k_warpgroups * self.column_groups

    @property
    def threads(self) -> int:
        """Threads of a block: those that multiply, and a warpgroup that fetches."""
        return (self.consumers + (not self.in_one_block)) * WARPGROUP_THREADS

    @cached_property
    def row_slots(self) -> int:
        """Rows of a unit in a tile, a power of two: its products of one round, or the gradient of what they multiply."""
        return 1 if self.is_backward else 1 << (max(self.problem.cell.round_products) - 1).bit_length()

    @property
    def tile_units(self) -> int:
        """Units of a tile."""
        return TILE_ROWS // self.row_slots

    @property
    def chunk_units(self) -> int:
        """Columns of R that are multiplied at once."""
        return SWIZZLED_ROW_BYTES // (self.parts_of_value * self.problem.precision.storage_bytes)

    @property
    def parts_of_value(self) -> int:
        """Parts of each value of R and of the operand in a product: a large and a small part, or the value itself."""
        return 2 if self.problem.matrix_product == "tf32x3" else 1

    @property
    def multiplications(self) -> int:
        """Multiplications of a chunk, of 32 bytes of its rows each: in tf32x3 three for two of its slices."""
        return 6 if self.problem.matrix_product == "tf32x3" else SWIZZLED_ROW_BYTES // SLICE_BYTES

    @property
    def shares(self) -> int:
        """Warpgroups that split the columns of the same rows."""
        return self.split_k_blocks * self.split_k_warpgroups

    @cached_property
    def unit_chunks(self) -> int:
        """Chunks of the units of a head, rounded up to what blocks and split K share evenly."""
        of_shares = self.chunk_units * (self.shares // math.gcd(self.shares, *self.round_widths))
        together = max(of_shares, self.tile_units * self.row_tiles)
        return -(-self.problem.head_dim // together) * together // self.chunk_units

    @property
    def flag_chunks(self) -> int:
        """Chunks of units with a flag of their own: a power of two, so that units of tiles and of flags are multiples."""
        return 1 << max(0, -(-self.unit_chunks // FLAGS_MOST) - 1).bit_length()

    @property
    def operand_chunks(self) -> int:
        """Chunks of an operand, of all rounds of products that have chunks of their own."""
        return self.operand_width * self.unit_chunks

    @property
    def chunks(self) -> int:
        """Chunks of R in a tile, over all rounds; in a step each multiplies one chunk of an operand."""
        return sum(self.round_widths) * self.unit_chunks

    @property
    def grid_blocks(self) -> int:
        """Blocks that share the units of a head."""
        return self.split_k_blocks * self.tiles // self.row_tiles

    @property
    def tiles(self) -> int:
        """Tiles of the units of a head."""
        return self.unit_chunks * self.chunk_units // self.tile_units

    @property
    def sums_over_grid(self) -> bool:
        """Whether blocks that split the columns of the same rows are anywhere on the GPU, rather than in a cluster."""
        return self.split_k_blocks > self.cluster_blocks

    @property
    def block_chunks(self) -> int:
        """Chunks that a block multiplies."""
        return self.chunks // self.split_k_blocks

    @property
    def group_sequences(self) -> int:
        """Sequences of a group of blocks."""
        return self.batch_tile * self.column_groups

    @property
    def finished_columns(self) -> int:
        """Sequences whose cells a warpgroup computes."""
        return self.batch_tile // self.shares
