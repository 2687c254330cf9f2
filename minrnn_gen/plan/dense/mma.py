"""How persistent kernels multiply by R, for each product: tiles, registers of a lane, and time."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from minrnn_gen.plan.limits import WARP_LANES
from minrnn_gen.plan.problem import Problem

# The rows of a tile, those of a tensor core's instruction; a warp has 32 lanes for them.
TILE_ROWS = 16
RESULTS = 4  # of a lane
# Fused multiply-adds of a partition and cycle: 32 lanes' in float32, in float64 half of them (CUDA C++ Programming Guide,
# arithmetic instruction throughput, 8.0, 9.0 and 10.0; GPUs for graphics have a 64th).
CYCLES_PER_MULTIPLY_ADD = MappingProxyType({4: 1, 8: 2})
# An SM shuffles one warp in a cycle (the same table), of which a partition has a quarter.
CYCLES_PER_SHUFFLE = 4
# Four values split into tf32, each a subtraction and two conversions of half the rate.
CYCLES_PER_SPLIT = 20


@dataclass(frozen=True)
class Tiling:
    """How a product is cut into tiles, and what it takes.

    `depth`: the values of the operand that a tile adds up. `padding`: values after each column of the operand. `matrix` and
    `sum`: a lane's registers for a tile of R and for the sums of a row of tiles. `products`: the instructions of a tile, each
    as long as the instruction of a tile in 16 bits; `cycles`, `row_cycles`: additional cycles of a tile and of a row of tiles.
    """

    depth: int
    padding: int
    matrix: int
    sum: int
    products: int
    cycles: float = 0.0
    row_cycles: float = 0.0


def tiling(problem: Problem, rows: int, batch_tile: int, presplit_tf32: int = 0) -> Tiling:
    """Return the tiling of a product with `rows` rows of tiles for each warp."""
    words = problem.registers_per_value
    match problem.matrix_product:
        case "mma_16bit":
            return Tiling(depth=16, padding=8, matrix=4, sum=RESULTS * _chains(rows), products=1)
        # m16n8k8 in tf32 has half the multiply-adds of m16n8k16 in 16 bits, at half the rate.
        case "tf32":
            return Tiling(depth=8, padding=8, matrix=4, sum=RESULTS * _chains(rows), products=1)
        case "tf32x3":
            sums = 2 * RESULTS * (2 if rows == 1 else 1)
            if presplit_tf32:
                return Tiling(depth=8, padding=8, matrix=8, sum=sums, products=3)
            # The parts of one tile at a time, whose registers all rows share.
            sums += -(-8 // rows)
            return Tiling(depth=8, padding=8, matrix=4, sum=sums, products=3, cycles=CYCLES_PER_SPLIT)
        case "fma":
            depth = 16
            values = TILE_ROWS * depth // WARP_LANES
            # Of each result, over four lanes: half of all pairs of sequences, then half of what is left, at least one.
            shuffles = words * RESULTS * (3 if batch_tile == 8 else 2)
            return Tiling(
                depth=depth,
                padding=0,
                matrix=words * values,
                sum=words * 2 * batch_tile,  # of two rows for every sequence
                products=0,
                cycles=values * batch_tile * CYCLES_PER_MULTIPLY_ADD[problem.precision.arithmetic_bytes],
                row_cycles=shuffles * CYCLES_PER_SHUFFLE,
            )


def _chains(rows: int) -> int:
    """Return how many sums of a row are under way at once, as in templates/parts/matrix_16bit.cuh.j2."""
    return max(1, 4 // rows) if rows != 3 else 1
