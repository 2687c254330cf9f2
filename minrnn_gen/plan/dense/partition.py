"""Who has what in a persistent kernel: the tiles of R, the cells, and what the blocks of a group tell each other."""

from __future__ import annotations

from minrnn_gen.plan import limits
from minrnn_gen.plan.dense.mma import RESULTS, UNITS_PER_WARP, Tiling
from minrnn_gen.plan.dense.mma import tiling as tiling_of
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate

COLUMNS = 8  # of a tensor core's tile (PTX ISA, mma.sync): sequences
SIXTEENTHS = 16  # of a warp's part of a matrix of 16 bits, of which shared memory may hold some


def group_blocks(candidate: Candidate) -> int:
    """The blocks that share a head and a tile of sequences."""
    return candidate["cluster_blocks"] * candidate["grid_blocks"]


def tiling(problem: Problem, candidate: Candidate) -> Tiling:
    """How a warp's product is cut into tiles."""
    return tiling_of(problem, tiles(problem, candidate), candidate["batch_tile"], candidate.get("presplit_tf32", 0))


def head_dim(problem: Problem) -> int:
    """The units of a head."""
    return problem.hidden_size // problem.heads


def width(problem: Problem) -> int:
    """The values of each unit that are multiplied: its output, or the gradients of its products."""
    return len(problem.cell.recurrent_gates) if problem.kernel_pass == "backward" else 1


def tells_sums(problem: Problem, candidate: Candidate) -> bool:
    """Whether blocks tell each other sums of what they multiplied, instead of what all of them are to multiply."""
    return problem.kernel_pass == "backward" and candidate["cluster_blocks"] > 1


def tiles(problem: Problem, candidate: Candidate) -> int:
    """The rows of a warp's tiles: the products of each unit, or the blocks whose sums it makes."""
    if tells_sums(problem, candidate):
        # Asked of candidates with more warps than blocks to tell, too, which a constraint drops.
        return max(1, candidate["cluster_blocks"] // candidate["split_k_warps"])
    return 1 if problem.kernel_pass == "backward" else len(problem.cell.recurrent_gates)


def operand_row(problem: Problem, candidate: Candidate) -> int:
    """The values of a sequence that a block multiplies."""
    blocks = 1 if tells_sums(problem, candidate) else group_blocks(candidate)
    return width(problem) * blocks * candidate["row_warps"] * UNITS_PER_WARP


def operand_tiles(problem: Problem, candidate: Candidate) -> int:
    """The tiles of what a block multiplies."""
    return operand_row(problem, candidate) // tiling(problem, candidate).depth


def tiles_per_warp(problem: Problem, candidate: Candidate) -> float:
    """The tiles of a row of them, of which warps with the same units have a part each, or each its own rows."""
    return operand_tiles(problem, candidate) / (1 if tells_sums(problem, candidate) else candidate["split_k_warps"])


def shared_tiles(problem: Problem, candidate: Candidate) -> int:
    """The tiles of the operand whose part of a warp's matrix is in shared memory."""
    if not (sixteenths := candidate.get("smem_sixteenths", 0)):
        return 0
    tiles = int(tiles_per_warp(problem, candidate))
    # As many come together as there are sums under way.
    group = max(2, tiling(problem, candidate).sum // RESULTS)
    return tiles * sixteenths // SIXTEENTHS // group * group


def cells(candidate: Candidate) -> int:
    """The cells of a lane: a tile has four results for it, and every sequence as many copies as there is room for."""
    return RESULTS * cell_columns(candidate) // COLUMNS


def cell_warps(candidate: Candidate) -> int:
    """The warps with the same units that compute their cells, each for some of the sequences, two at least."""
    return min(candidate["split_k_warps"], candidate["batch_tile"] // 2)


def cell_columns(candidate: Candidate) -> int:
    """The sequences of which a warp has the cells."""
    return candidate["batch_tile"] // cell_warps(candidate)


def slot_bytes(problem: Problem, columns: int) -> int:
    """What a warp reads from memory for one step."""
    cell, precision = problem.cell, problem.precision
    storage_values, real_values = len(cell.gates), 0
    if problem.kernel_pass == "backward":
        storage_values, real_values = storage_values + 1, len(cell.recurrent_gates) + len(cell.states)
    per_cell = storage_values * precision.storage_bytes + real_values * precision.arithmetic_bytes
    return columns * UNITS_PER_WARP * per_cell


def told_bytes(problem: Problem, candidate: Candidate) -> int:
    """What a block is told in a step: all that it multiplies, or of each block the sums for its units."""
    if tells_sums(problem, candidate):
        sums = candidate["cluster_blocks"] * candidate["row_warps"] * UNITS_PER_WARP
        return candidate["batch_tile"] * sums * problem.precision.arithmetic_bytes
    return candidate["batch_tile"] * operand_row(problem, candidate) * problem.precision.storage_bytes


def threads(candidate: Candidate) -> int:
    """The threads of a block."""
    return candidate["row_warps"] * candidate["split_k_warps"] * limits.WARP_LANES
