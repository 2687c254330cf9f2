"""A block of a kernel for n values per channel: its channels, values of a lane, registers, shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minrnn_gen.plan import limits
from minrnn_gen.plan.problem import REGISTER_BYTES, WIDEST_COPY_BYTES, Problem
from minrnn_gen.plan.solver import Candidate, can_copy_asynchronously

# Steps of a draft whose inputs are in shared memory at once, twice: the usual draft has no more, nor are more of the last one
# kept.
DRAFT_STEPS = 4
# Addresses, strides and loop state; of a backward those of twice as many arrays. Read off compiled kernels.
# Places and strides of steps that are run again, and words of each value of S.* on its way, which has an address.
REGISTERS_OF_REPLAY, REGISTERS_OF_LOAD = 8, 3
REGISTERS_FIXED = {"forward": 48, "backward": 72, "step": 28}
# More of a backward in parts of time: with less, candidates are taken for feasible of which the compiler spills.
REGISTERS_IN_PARTS = 52
# More than estimated, where what steps at once read is not counted: of every forward, and where one lane prepares all steps.
REGISTERS_COMPILED, REGISTERS_OF_ONE_LANE = 21, 39
# Values that one step needs at once in addition to those that it has of each array, as of the diagonal cells.
TEMPORARIES_MAX = 16
SHARED_ALIGNMENT, RESET_BYTES, BANKS_BYTES = 16, 4, 128
# Results of a part for each state: a product and a sum, and for gradients another sum.
PART_ENDS = {"forward": 2, "backward": 3, "step": 0}
# Steps, and values of a lane in all of them, that overlap: with two or four steps instead of one at a time, selective scans of
# 16 values take 13 % less on an H200.
STEPS_AT_ONCE_MAX, VALUES_AT_ONCE = 4, 32


@dataclass(frozen=True)
class Block:
    """A block as a candidate's variables define it."""

    problem: Problem
    threads: int
    lanes: int
    tile_steps: int = 1
    time_parts: int = 1

    @property
    def values(self) -> int:
        """Values of a lane, of the n of a channel."""
        return -(-self.problem.state_size // self.lanes)

    @property
    def channels(self) -> int:
        return self.threads // self.lanes

    @property
    def group_channels(self) -> int:
        return self.problem.hidden_size // self.problem.groups

    @property
    def blocks_per_sequence(self) -> int:
        return self.problem.groups * -(-self.group_channels // self.channels)

    @property
    def vector(self) -> int:
        """Values of x and y that one load or store moves."""
        problem = self.problem
        aligned = problem.specialization.alignment_bytes // problem.precision.storage_bytes
        if problem.layout == "BDT":
            return min(aligned, self.tile_steps)
        return math.gcd(aligned, self.group_channels, self.channels)

    @property
    def copies_gates(self) -> bool:
        """Whether gates are copied asynchronously, in pieces as wide as one copy.

        On an H200 forwards of selective scans take up to 8 % less time than through registers. Backwards take 1 to 12 % more,
        but a fifth less for one long sequence in fp32: with time in parts two loops need the registers.
        """
        problem = self.problem
        is_widest = self.vector * problem.precision.storage_bytes == WIDEST_COPY_BYTES
        in_parts = self.time_parts > 1 and problem.layout != "BDT"
        of_pass = {"forward": True, "backward": in_parts, "step": False}[problem.kernel_pass]
        return of_pass and is_widest and can_copy_asynchronously(problem)

    @property
    def swaps_halves(self) -> bool:
        """Whether a lane's halves change places in every other channel of a backward: both are read by whole loads."""
        half_bytes = self.values // 2 * self.problem.precision.arithmetic_bytes
        is_even = self.values % 2 == 0 and half_bytes % WIDEST_COPY_BYTES == 0
        return self.problem.kernel_pass == "backward" and is_even and self.lanes < limits.WARP_LANES

    @property
    def chunk(self) -> int:
        """Adjacent values that a lane reads at once: of an input S.* in shared memory and, in a single step, also in memory."""
        # A draft reads its shared memory far more often than its states.
        replays, precision = self.problem.specialization.replays, self.problem.precision
        value_bytes = precision.arithmetic_bytes if replays else self.problem.state_value_bytes
        widest = math.gcd(self.values, WIDEST_COPY_BYTES // value_bytes)
        return math.gcd(widest, self.problem.state_size) if self.problem.kernel_pass == "step" else widest

    @property
    def steps_at_once(self) -> int:
        """Steps of a tile that are unrolled together, so that they overlap except in the states.

        A power of two, as the lanes of a channel are, so the steps that the lanes prepare together leave no rest.
        """
        most = max(1, min(self.tile_steps, STEPS_AT_ONCE_MAX, VALUES_AT_ONCE // self.values))
        return 1 << (most.bit_length() - 1)

    @property
    def gradients_at_once(self) -> int:
        """Backward steps of a tile that are unrolled together; they have several times as many values under way."""
        return max(1, self.steps_at_once // 2)

    @property
    def prepared_alignment(self) -> int:
        """Alignment, in bytes, of the prepared values of one step and channel: at most the width of one load."""
        size_bytes = max(1, self.problem.cell.prepared_count) * self.problem.precision.arithmetic_bytes
        return min(1 << (size_bytes - 1).bit_length(), WIDEST_COPY_BYTES)

    @property
    def prepared_bytes(self) -> int:
        """Bytes of the prepared values of one step and channel."""
        size_bytes = max(1, self.problem.cell.prepared_count) * self.problem.precision.arithmetic_bytes
        return -(-size_bytes // self.prepared_alignment) * self.prepared_alignment

    @property
    def prepared_padding(self) -> int:
        """Channels between the rows of prepared values, so that lanes write several rows to different banks."""
        return max(1, BANKS_BYTES // self.prepared_bytes // self.lanes) if self.lanes > 1 else 0

    @property
    def state_rows(self) -> int:
        """Values of a lane of all states."""
        wide = len(self.problem.cell.vector_states)
        return wide * self.values + len(self.problem.cell.states) - wide

    def shared_map(self) -> dict[str, int]:
        """The parts of the block's shared memory: both buffers of each."""
        cell, precision = self.problem.cell, self.problem.precision
        if self.problem.specialization.replays:
            row_bytes = max(1, len(cell.shared)) * self.lanes * self.values * precision.arithmetic_bytes
            sizes = {"shared_inputs": row_bytes, "prepared": self.channels * self.prepared_bytes}
            return {name: 2 * _aligned(DRAFT_STEPS * size_bytes) for name, size_bytes in sizes.items()}
        if self.problem.kernel_pass == "step":
            return {}
        is_time_last, is_backward = self.problem.layout == "BDT", self.problem.kernel_pass == "backward"
        row = self.tile_steps * (self.channels + is_time_last) * precision.storage_bytes
        gates = _aligned(len(cell.gates) * row)
        gate_rows = gates
        if self.copies_gates and is_time_last:
            # Rows of steps of a channel, each with a piece after it.
            gate_rows = len(cell.gates) * self.channels * (self.tile_steps * precision.storage_bytes + WIDEST_COPY_BYTES)
        arithmetic = precision.arithmetic_bytes
        of_step = max(1, len(cell.shared)) * self.lanes * self.values + is_time_last * self.chunk
        inputs = self.tile_steps * of_step * arithmetic
        parts = {"gates": 2 * gate_rows, "y": 2 * _aligned(row), "shared_inputs": 2 * _aligned(inputs)}
        parts["resets"] = 2 * _aligned(self.tile_steps * RESET_BYTES)
        parts["prepared"] = _aligned(self.tile_steps * (self.channels + self.prepared_padding) * self.prepared_bytes)
        if is_backward:
            warps = self.threads // limits.WARP_LANES
            of_warp = max(1, len(cell.shared) * self.values) * self.lanes
            parts["gradients"] = gates
            parts["shared_gradients"] = _aligned(self.tile_steps * (warps * of_warp + is_time_last) * arithmetic)
            parts["states"] = _aligned(self.tile_steps // self.gradients_at_once * self.state_rows * self.threads * arithmetic)
        return parts

    def registers(self) -> int:
        """Return an estimate: the tile under way, the carried states, and one step's own values."""
        problem, cell, precision = self.problem, self.problem.cell, self.problem.precision
        words = problem.registers_per_value
        wide_states, wide_parameters = len(cell.vector_states), len(cell.vector_parameters)
        narrow_states = len(cell.states) - wide_states
        narrow = narrow_states + len(cell.parameters) - wide_parameters + 2 * len(cell.gates)
        of_value = 2 * wide_states + wide_parameters
        under_way = 0
        if problem.kernel_pass != "step":
            of_lane = -(-self.tile_steps // self.lanes) * precision.storage_bytes
            tile = 0 if self.copies_gates else -(-len(cell.gates) * of_lane // REGISTER_BYTES)
            of_step = 1 << (self.lanes * self.values - 1).bit_length()
            inputs = len(cell.shared) * -(-self.tile_steps * of_step // self.threads)
            # In parts of time two loops have them, which the compiler does not always let share registers.
            under_way = tile + inputs * (2 if self.time_parts > 1 else 1)
            # The values that the other steps at once read.
            is_forward = problem.kernel_pass == "forward"
            others = (self.steps_at_once if is_forward else self.gradients_at_once) - 1
            narrow += others * (cell.prepared_count + (0 if is_forward else len(cell.gates)))
            of_value += others * (len(cell.shared) + (0 if is_forward else 2 * wide_states))
        if problem.kernel_pass == "backward":
            of_value += wide_states + wide_parameters + len(cell.shared)
            narrow += len(cell.gates) + len(cell.parameters) - wide_parameters
            under_way += -(-of_lane // REGISTER_BYTES)
            under_way += REGISTERS_IN_PARTS if self.time_parts > 1 else 0
        if problem.specialization.replays:
            # The first tiles of kept and of new steps; states advance in place.
            of_tile = REGISTERS_OF_LOAD * len(cell.shared) * -(-DRAFT_STEPS * self.lanes * self.values // self.threads)
            under_way += REGISTERS_OF_REPLAY + 2 * (of_tile + len(cell.gates) * -(-DRAFT_STEPS // self.lanes))
            of_value -= wide_states
        temporaries = min(cell.operation_count // 4, TEMPORARIES_MAX)
        return REGISTERS_FIXED[problem.kernel_pass] + under_way + words * (of_value * self.values + narrow + temporaries)

    def registers_compiled(self) -> int:
        """Return how many a forward takes, within 15 of 501 compiled kernels of selective scans (root mean square).

        The estimate has what all steps at once read of S.*, which the compiler loads one step after the other, and is 17 off.
        """
        of_others = (self.steps_at_once - 1) * len(self.problem.cell.shared) * self.values * self.problem.registers_per_value
        more = REGISTERS_COMPILED + (REGISTERS_OF_ONE_LANE if self.lanes == 1 else 0)
        return self.registers() - of_others + more

    def partition(self) -> dict[str, int]:
        """Derived numbers that the templates need in addition to the variables."""
        problem = self.problem
        return {
            "state_size": problem.state_size,
            "groups": problem.groups,
            "vector": self.vector,
            "chunk": self.chunk,
            "swaps_halves": int(self.swaps_halves),
            "copied_bytes": WIDEST_COPY_BYTES if self.copies_gates else 0,
            "prepared_alignment": self.prepared_alignment,
            "prepared_padding": self.prepared_padding,
            "steps_at_once": self.steps_at_once,
            "gradients_at_once": self.gradients_at_once,
            "state_rows": self.state_rows,
            "blocks_per_sequence": self.blocks_per_sequence,
            "group_blocks": self.blocks_per_sequence // problem.groups,
            "draft_steps": DRAFT_STEPS if problem.specialization.replays else 0,
            "part_values": PART_ENDS[problem.kernel_pass] * self.state_rows * self.threads if self.time_parts > 1 else 0,
        }


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


def block_of(problem: Problem, candidate: Candidate) -> Block:
    """Return the block of a candidate."""
    return Block(problem, **candidate)
