"""Partition of a persistent kernel at large batch: registers, and shared memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from minrnn_gen.plan.dense import means
from minrnn_gen.plan.dense.warpgroup import (
    BACKWARD_REGISTERS_FIXED,
    COLUMN_BYTES,
    MMA_SYNC_REGISTERS,
    PRODUCER_REGISTERS,
    PRODUCER_REGISTERS_FEW,
    PRODUCER_WARPS,
    PRODUCT_ROUNDS_FREE_REGISTERS,
    PRODUCT_ROUNDS_REGISTERS,
    REGISTER_UNIT,
    REGISTERS_FIXED,
    REGISTERS_KEPT,
    REGISTERS_PER_CHUNK,
    ROUNDS_REGISTERS,
    STREAM_REGISTERS,
    STREAM_RING_BYTES,
    STREAM_SLOTS_LEAST,
    SWIZZLE_BYTES,
    SWIZZLED_ROW_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    UNROLLED_CHUNKS_MOST,
    WARPGROUP_THREADS,
    WarpgroupTiling,
)
from minrnn_gen.plan.limits import LINE_BYTES, MBARRIER_BYTES, WARP_LANES
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES


@dataclass(frozen=True, eq=False)
class WarpgroupPartition(WarpgroupTiling):
    """Partition of the work that a candidate's variables describe: registers and shared memory of its tiles."""

    @cached_property
    def rounds(self) -> int:
        """Rounds in which a warpgroup computes its cells: several where R is streamed and the ring had no room otherwise.

        Two rounds take as much memory as one, since the values of the next one are copied meanwhile. With rounds of products
        or means there is one: each of them reads the values of all sequences.
        """
        tiles = self.finished_columns // TILE_COLUMNS
        if not self.streams_matrix or tiles < 1 or self.problem.cell.rounds or self.problem.cell.waits:
            return 1
        possible: list[int] = [rounds for rounds in (1, *range(3, tiles + 1)) if tiles % rounds == 0]
        fitting = (rounds for rounds in possible if self._slots_beside(self._parts_beside_matrix(rounds)) >= STREAM_SLOTS_LEAST)
        return next(fitting, possible[-1])

    @property
    def cells(self) -> int:
        """Cells of a lane."""
        return self.finished_columns * self.tile_units // WARPGROUP_THREADS

    @property
    def warpgroup_chunks(self) -> int:
        """Chunks that a warpgroup multiplies."""
        return self.chunks // self.shares

    @cached_property
    def launch_registers(self) -> int:
        """Registers of a thread at the launch."""
        gpu = self.problem.gpu
        share = gpu.registers_per_block_max // self.threads // REGISTER_UNIT * REGISTER_UNIT
        return min(gpu.registers_per_thread_max, share)

    @property
    def divides_registers(self) -> bool:
        """Whether warpgroups reallocate registers: some fetch, and those that multiply launch with less than the most."""
        return self.consumers > 1 and not self.in_one_block and self.problem.gpu.divides_registers

    @property
    def producer_registers(self) -> int:
        """Registers of a thread that fetches, 0 where all threads have the same number."""
        if not self.divides_registers:
            return 0
        return PRODUCER_REGISTERS if self.consumers == 2 else PRODUCER_REGISTERS_FEW

    @cached_property
    def consumer_registers(self) -> int:
        """Registers of a thread that multiplies."""
        if not self.divides_registers:
            return self.launch_registers - self.in_one_block * REGISTERS_KEPT
        left = self.launch_registers * self.threads - self.producer_registers * WARPGROUP_THREADS
        return left // (self.consumers * WARPGROUP_THREADS) // REGISTER_UNIT * REGISTER_UNIT

    @cached_property
    def registers_beside_matrix(self) -> int:
        """Registers of a thread that multiplies, except for R: sums, states, vectors, and the cell under computation."""
        problem, cells = self.problem, self.cells
        cell, is_backward = problem.cell, self.is_backward
        gates, products, states, vectors = cell.step_values, len(cell.recurrent_gates), len(cell.states), len(cell.parameters)
        lane_units = 2 if self.row_slots == 1 else 1
        # In tf32x3 those of a chain of chunks, and of all chains.
        sums, carried = self.parts_of_value * self.batch_tile // 2, cells * states
        of_instruction = self.mma_sync * MMA_SYNC_REGISTERS[problem.kernel_pass]
        # Of each cell the products of earlier rounds, or the gradients of arguments.
        carried += cells * (len(cell.rounds) if is_backward else products - cell.round_products[-1])
        if cell.waits:  # the other products too, and what parts of a step keep
            carried += cells * (cell.round_products[-1] + cell.held_count)
        if is_backward:
            # Biases, parameters, and the sums over time of their gradients.
            of_units = 2 * lane_units * (gates + products + vectors)
            fixed = BACKWARD_REGISTERS_FIXED + of_instruction + (ROUNDS_REGISTERS if self.rounds > 1 else 0)
            fixed += PRODUCT_ROUNDS_REGISTERS if cell.rounds else 0
            return fixed + sums + carried + of_units + 2 * gates + 2 * products + cells // 4
        of_resets = 2 * -(-self.finished_columns // WARP_LANES) if problem.specialization.resets else 0
        of_units = lane_units * (gates + products + vectors)
        fixed = REGISTERS_FIXED + of_instruction + self.streams_matrix * STREAM_REGISTERS
        return fixed + sums + carried + of_units + gates + products + of_resets

    @cached_property
    def register_chunks(self) -> int:
        """Chunks of a warpgroup's part of R in registers: as many as there is room for."""
        if self.streams_matrix and self.warpgroup_chunks > UNROLLED_CHUNKS_MOST:
            return 0
        free = self.consumer_registers - self.registers_beside_matrix
        if (self.problem.cell.rounds or self.problem.cell.waits) and not self.is_backward:
            free -= PRODUCT_ROUNDS_FREE_REGISTERS
        room = free // REGISTERS_PER_CHUNK
        return max(0, min(self.warpgroup_chunks - self.streams_matrix, room))

    @property
    def registers(self) -> int:
        """Registers of a thread that multiplies."""
        return self.registers_beside_matrix + REGISTERS_PER_CHUNK * self.register_chunks

    @cached_property
    def shared_chunks(self) -> int:
        """Chunks of a warpgroup's part of R in shared memory: all beyond registers or, if R is streamed, as many as fit."""
        left = self.warpgroup_chunks - self.register_chunks - self.streams_matrix
        if not self.streams_matrix:
            return left
        room = self.most_shared_bytes - sum(self.parts_beside_matrix.values()) - self.ring_bytes(self._stream_slots)
        chunk_bytes = self.row_tiles * self.split_k_warpgroups * TILE_ROWS * SWIZZLED_ROW_BYTES
        return max(0, min(left, room // chunk_bytes))

    @property
    def streamed_chunks(self) -> int:
        """Chunks of a warpgroup's part of R that come through the ring in every step."""
        return self.warpgroup_chunks - self.register_chunks - self.shared_chunks

    @cached_property
    def producer_warps(self) -> int:
        """Warps that fetch the operands of a group of sequences; chunks are divided among them evenly, and each has a slot."""
        most = PRODUCER_WARPS // self.column_groups
        if self.streams_matrix:
            most = max(1, min(most, self._slots_beside(self.parts_beside_matrix)))
        of_every_round = math.gcd(*self.round_widths) * self.unit_chunks // self.split_k_blocks
        return max(warps for warps in (1, 2, 4) if warps <= most and of_every_round % warps == 0)

    @property
    def stage_bytes(self) -> int:
        """Bytes that are copied from memory of a sequence and step, for the units of a tile."""
        cell, precision = self.problem.cell, self.problem.precision
        if not self.is_backward:
            return self.tile_units * cell.step_values * precision.storage_bytes
        # The gates, the products before the step and the gradient of y, and the states before it.
        storage_values, arithmetic_values = cell.step_values + self.problem.products_moved + 1, len(cell.states)
        return self.tile_units * (storage_values * precision.storage_bytes + arithmetic_values * precision.arithmetic_bytes)

    @property
    def moved_bytes(self) -> float:
        """Bytes that the blocks of a group of columns read from memory and write to it in a step."""
        cell, precision = self.problem.cell, self.problem.precision
        written = cell.step_values + self.problem.products_moved if self.is_backward else 1
        of_unit = self.stage_bytes / self.tile_units + written * precision.storage_bytes
        return self.batch_tile * self.problem.head_dim * of_unit

    @property
    def slot_bytes(self) -> int:
        """Bytes of a chunk of an operand."""
        return self.batch_tile * SWIZZLED_ROW_BYTES

    @property
    def streamed_slot_bytes(self) -> int:
        """Bytes of a chunk of R in the ring, for all rows of the block."""
        return self.streams_matrix * self.row_tiles * TILE_ROWS * SWIZZLED_ROW_BYTES

    @property
    def most_shared_bytes(self) -> int:
        """Bytes of shared memory that the parts may take."""
        return self.problem.gpu.shared_bytes_per_block_max - SWIZZLE_BYTES

    @cached_property
    def parts_beside_matrix(self) -> dict[str, int]:
        """The parts of shared memory other than R and the ring."""
        return self._parts_beside_matrix(self.rounds, self.stage_steps)

    @cached_property
    def stage_steps(self) -> int:
        """Steps whose values are copied ahead: two where shared memory has room for them next to all else."""
        if not self.stages_in_bulk:
            return 1
        return 2 if self._matrix_bytes + sum(self._parts_beside_matrix(1, 2).values()) <= self.most_shared_bytes else 1

    def _parts_beside_matrix(self, rounds: int, steps: int = 1) -> dict[str, int]:
        buffers = 2 if rounds > 1 else steps
        units_bytes = self.tile_units * self.problem.precision.storage_bytes
        consumers, columns = self.consumers, self.finished_columns // rounds
        # In bulk the warpgroups of all row tiles share a stage.
        stages = consumers // self.row_tiles if self.stages_in_bulk else consumers
        parts = {
            "stages": buffers * stages * columns * (consumers // stages * self.stage_bytes + WIDEST_COPY_BYTES),
            "outputs": consumers * columns * (self.operand_width * units_bytes + WIDEST_COPY_BYTES),
            "operand": self.in_one_block * self.column_groups * self.operand_chunks * self.slot_bytes,
            "columns": self.column_groups * self.batch_tile * COLUMN_BYTES[self.problem.kernel_pass],
            "partial": 0 if self.sums_over_grid else consumers * self.partial_bytes,
            "staged": self.stages_in_bulk * buffers * stages * MBARRIER_BYTES,
            "summed": 2 * consumers * MBARRIER_BYTES if self.cluster_blocks > 1 else 0,
            "means": means.warpgroups_bytes(self.problem, self.tile_units, columns * consumers, self.row_tiles),
        }
        return {name: size for name, size in parts.items() if size}

    @cached_property
    def fixed_map(self) -> dict[str, int]:
        """The parts of shared memory other than the ring."""
        return ({"matrix": self._matrix_bytes} if self._matrix_bytes else {}) | self.parts_beside_matrix

    @property
    def _matrix_bytes(self) -> int:
        """Bytes of the part of R in shared memory."""
        return self.row_tiles * self.split_k_warpgroups * self.shared_chunks * TILE_ROWS * SWIZZLED_ROW_BYTES

    def ring_bytes(self, slots: int) -> int:
        """Bytes of a ring of so many slots for each group of sequences, with their mbarriers."""
        return self.column_groups * slots * (self.slot_bytes + self.streamed_slot_bytes + 2 * MBARRIER_BYTES)

    @property
    def _stream_slots(self) -> int:
        """Slots of the ring where R is streamed, if there is room."""
        slots = max(self.producer_warps, -(-STREAM_RING_BYTES // self.ring_bytes(1)))
        return -(-slots // self.split_k_warpgroups) * self.split_k_warpgroups

    @cached_property
    def ring_slots(self) -> int:
        """Slots of the ring that fit: as many as fill shared memory, at most the chunks of two steps; 0 without a ring."""
        if self.in_one_block:
            return 0
        slots = max(0, min(self._slots_beside(self.fixed_map), 2 * self.block_chunks))
        return slots // self.split_k_warpgroups * self.split_k_warpgroups

    @property
    def slots_least(self) -> int:
        """Slots that a ring needs: one for each warp that fetches, and two chunks of a warpgroup, three if R is streamed."""
        if self.in_one_block:
            return 0
        of_warpgroups = (2 + self.streams_matrix) * self.split_k_warpgroups
        return max(self.producer_warps, min(of_warpgroups, 2 * self.block_chunks))

    def _slots_beside(self, parts: Mapping[str, int]) -> int:
        """Slots that fit with other parts of shared memory."""
        left_bytes: int = self.most_shared_bytes - sum(parts.values())
        return left_bytes // self.ring_bytes(1)

    @cached_property
    def shared_map(self) -> dict[str, int]:
        """The parts of shared memory."""
        slots = self.column_groups * self.ring_slots
        ring = {"ring": slots * (self.slot_bytes + self.streamed_slot_bytes), "mbarrier": 2 * slots * MBARRIER_BYTES}
        parts = self.fixed_map | (ring if slots > 0 else {})
        return parts | {"padding": -sum(parts.values()) % SWIZZLE_BYTES}

    @property
    def partial_bytes(self) -> int:
        """Bytes of the partial sums that a warpgroup gets, of even and of odd steps."""
        return 2 * (self.shares - 1) * self.finished_columns // 2 * WARPGROUP_THREADS * 4

    @property
    def exchange_bytes(self) -> int:
        """Bytes of memory that a group of sequences exchanges outputs through: two operands, and flags, in lines of 128.

        Where blocks all over the GPU split the columns, partial sums too, with a line for the flag of each warpgroup. 0 in one
        block.
        """
        if self.in_one_block:
            return 0
        flags_bytes = -(-4 * (self.unit_chunks // self.flag_chunks) // LINE_BYTES) * LINE_BYTES
        sums_bytes = self.tiles * self.shares * (self.partial_bytes + LINE_BYTES) if self.sums_over_grid else 0
        moments_bytes = self.shares * means.exchange_bytes(self.problem, self.tiles * self.finished_columns, LINE_BYTES)
        return 2 * self.operand_chunks * self.slot_bytes + flags_bytes + sums_bytes + moments_bytes

    @property
    def packed_bytes(self) -> int:
        """Bytes of memory with a head of R as the ring takes it, and a line for each block's flag; 0 where none is streamed."""
        if not self.streams_matrix:
            return 0
        return self.tiles * self.chunks * TILE_ROWS * SWIZZLED_ROW_BYTES + self.grid_blocks * LINE_BYTES
