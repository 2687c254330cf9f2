"""Block-diagonal products in a persistent kernel: the blocks of R that a warp multiplies, and the blocks that exchange."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Protocol

from minrnn_gen.plan.problem import Problem

DEPTH = 16  # of a tile of 16 bits


class Sizes(Protocol):
    """The sizes of a partition that decide what its warps multiply."""

    @property
    def problem(self) -> Problem: ...
    @property
    def is_backward(self) -> bool: ...
    @property
    def uses_reduce_scatter(self) -> bool: ...
    @property
    def cluster_blocks(self) -> int: ...
    @property
    def group_blocks(self) -> int: ...
    @property
    def row_warps(self) -> int: ...
    @property
    def split_k_warps(self) -> int: ...
    @property
    def units_per_warp(self) -> int: ...
    @property
    def products_per_tile(self) -> int: ...
    @property
    def column_warps(self) -> int: ...


@dataclass(frozen=True)
class Diagonal:
    """The `products`, by place, for which a warp multiplies only the diagonal blocks of `units`.

    Forward: they take `rows` rows of its tiles, and there are `tiles` tiles. Backward: they are columns for its first `rows`
    destinations. `local_rounds` are exchanged within the `group` of blocks of a cluster that share a block of R.
    """

    products: tuple[int, ...] = ()
    units: int = 0
    rows: int = 0
    tiles: int = 0
    group: int = 0
    local_rounds: tuple[int, ...] = ()

    def in_plan(self) -> dict[str, int]:
        """Return the numbers that a template is written with, by name; sets as bits."""
        if not self.products:
            return {}
        return {
            "diagonal_products": _bits(self.products),
            "diagonal_units": self.units,
            "diagonal_group": self.group,
            **({"local_rounds": _bits(self.local_rounds)} if self.local_rounds else {}),
        }


def _bits(places: tuple[int, ...]) -> int:
    return sum(1 << place for place in places)


def diagonal_of(sizes: Sizes) -> Diagonal:
    """Return the block-diagonal products of a partition; none if a warp would have parts of several blocks."""
    cell, problem = sizes.problem.cell, sizes.problem
    counts = {count for _, count in cell.block_diagonal}
    if problem.matrix_product != "mma_16bit" or len(counts) != 1 or not cell.rounds or problem.heads > 1:
        return Diagonal()
    count = counts.pop()
    units, per_block = problem.head_dim // count, sizes.row_warps * sizes.units_per_warp
    are_whole = problem.head_dim % count == 0 and sizes.group_blocks * per_block % units == 0
    if not are_whole or units % sizes.units_per_warp or units % (DEPTH * sizes.column_warps):
        return Diagonal()
    of_cell = tuple(cell.recurrent_gates.index(gate) for gate, _ in cell.block_diagonal)
    group = units // per_block if units % per_block == 0 else 1 if per_block % units == 0 else 0
    is_power = group > 0 and group & (group - 1) == 0
    if sizes.is_backward:
        if not sizes.uses_reduce_scatter or not is_power or per_block % DEPTH:
            return Diagonal()
        rows = -(-group // sizes.split_k_warps)
        tiles = rows * len(of_cell) * per_block // DEPTH
        return Diagonal(of_cell, units, rows, tiles, group, _local_rounds(sizes, of_cell))
    places = tuple(range(len(cell.recurrent_gates)))
    rows_of_tiles = [
        places[first : first + sizes.products_per_tile] for first in range(0, len(places), sizes.products_per_tile)
    ]
    narrow = [row for row in rows_of_tiles if {*row} <= {*of_cell}]
    if len(narrow) == len(rows_of_tiles):
        return Diagonal()
    products = tuple(itertools.chain.from_iterable(narrow))
    tiles = len(narrow) * units // (DEPTH * sizes.column_warps)
    local = _local_rounds(sizes, products) if sizes.cluster_blocks > 1 and is_power else ()
    return Diagonal(products, units, len(narrow), tiles, group, local) if products else Diagonal()


def _local_rounds(sizes: Sizes, products: tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of the rounds whose products are all in `products`."""
    cell = sizes.problem.cell
    rounds = enumerate(cell.rounds, start=1)
    return tuple(number for number, gates in rounds if {cell.recurrent_gates.index(gate) for gate in gates} <= {*products})
