"""The shapes of the products of a dense cell, and R and its bias as one array where they have several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple


class ProductShape(NamedTuple):
    """One product: for each of its `heads`, `out` units from `of` units of the operand."""

    heads: int
    out: int
    of: int

    @property
    def rows(self) -> int:
        """How many units the product has."""
        return self.heads * self.out

    @property
    def operand(self) -> int:
        """How many units it multiplies."""
        return self.heads * self.of

    @property
    def elements(self) -> int:
        """How many elements of R it has."""
        return self.rows * self.of


def ranges_of(sizes: Sequence[int]) -> list[slice]:
    """Return the ranges of consecutive arrays of these sizes."""
    return [slice(*pair) for pair in pairwise(accumulate(sizes, initial=0))]


def equal_neighbours(shapes: Sequence[ProductShape]) -> list[tuple[ProductShape, int]]:
    """Return the shapes in their order, equal neighbours once, each with its count."""
    counted: list[tuple[ProductShape, int]] = []
    for shape in shapes:
        if counted and counted[-1][0] == shape:
            counted[-1] = (shape, counted[-1][1] + 1)
        else:
            counted.append((shape, 1))
    return counted
