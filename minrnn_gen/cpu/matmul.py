"""The recurrent products of a dense cell in NumPy: by BLAS, head by head, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy

from minrnn_gen.cell.rounds import places_by_round
from minrnn_gen.cpu.recurrence import Cuts, Values

Shape = tuple[int, int, int]
"""Heads, units that a product has of each, units that it multiplies of each."""


@dataclass(frozen=True)
class StepProducts:
    """The products of one step of a dense cell by rounds: `of_output`, of the previous output, and `rounds`, of arguments.
    `gates` are R's; `shapes`: the shapes of their products; `places`: the indices of each round's gates, starting with the
    gates of the previous output. `R_shape`: the shape of R.
    """

    gates: tuple[str, ...]
    shapes: tuple[Shape, ...]
    places: tuple[tuple[int, ...], ...]
    of_output: RoundProducts
    rounds: tuple[RoundProducts, ...]
    R_shape: tuple[int, ...]

    @classmethod
    def prepared(
        cls,
        gates: tuple[str, ...],
        rounds: Sequence[tuple[str, ...]],
        shapes: Sequence[Shape],
        R: Values,
        bias: Values | None,
        arithmetic: Any,
    ) -> StepProducts:
        """Pack R and its bias for the previous output and for the gates of each round.

        R is [Gr, N, Dout, Din], or its matrices concatenated along one axis; the bias is [Gr, N, Dout], or one axis.
        """
        places = places_by_round(gates, rounds)
        matrices = matrices_of(R, shapes)
        ends = pairwise(accumulate((heads * out for heads, out, _ in shapes), initial=0))
        biases = [None if bias is None else bias.reshape(-1)[begin:end].astype(arithmetic) for begin, end in ends]
        packed = [
            RoundProducts.prepared([matrices[place] for place in of_round], [biases[place] for place in of_round], arithmetic)
            for of_round in places
        ]
        return cls(gates, tuple(shapes), places, packed[0], tuple(packed[1:]), R.shape)

    def named(self, number: int, products: Sequence[Values]) -> dict[str, Values]:
        """Return the products of a round, or of the previous output at 0, by their names in a program."""
        return {f"R_{self.gates[place]}": product for place, product in zip(self.places[number], products, strict=True)}

    def units(self, place: int) -> int:
        """Return how many units a gate's product has."""
        heads, out, _ = self.shapes[place]
        return heads * out

    def operand_units(self, number: int) -> int:
        """Return how many units the products of a round multiply; round 0 multiplies the previous output."""
        heads, _, of = self.shapes[self.places[number][0]]
        return heads * of


def matrices_of(R: Values, shapes: Sequence[Shape]) -> list[Values]:
    """View R, or its gradient, as the matrix [N, Dout, Din] of each gate."""
    ends = pairwise(accumulate((heads * out * of for heads, out, of in shapes), initial=0))
    flat = R.reshape(-1)
    return [flat[begin:end].reshape(shape) for (begin, end), shape in zip(ends, shapes, strict=True)]


@dataclass(frozen=True)
class RoundProducts:
    """The products of one round: the matrices of each shape, `packed`, with the indices of their gates in the round."""

    packed: tuple[tuple[tuple[int, ...], RecurrentProduct], ...]
    count: int

    @classmethod
    def prepared(cls, matrices: Sequence[Values], biases: Sequence[Values | None], arithmetic: Any) -> RoundProducts:
        """Pack the matrices [N, Dout, Din] of a round's gates, with the bias [N * Dout] of each, or None."""
        together: dict[tuple[int, ...], list[int]] = {}
        for place, matrix in enumerate(matrices):
            together.setdefault(matrix.shape, []).append(place)
        packed = [
            (
                tuple(places),
                RecurrentProduct.prepared(
                    [matrices[place] for place in places], [biases[place] for place in places], arithmetic
                ),
            )
            for places in together.values()
        ]
        return cls(tuple(packed), len(matrices))

    def of(self, operand: Values, cuts: Cuts) -> list[Values]:
        """Return each gate's product [rows, units] of operands [rows, units]; at `cuts` [rows, 1] the bias, whatever R has."""
        results: dict[int, Values] = {}
        for places, product in self.packed:
            results |= zip(places, product.of(operand, cuts), strict=True)
        return [results[place] for place in range(self.count)]

    def to_operand(self, gradients: Sequence[Values]) -> Values:
        """Return the gradient of the operands [rows, units] from the gradients of each gate's products [rows, units]."""
        shares = [product.to_operand(numpy.stack([gradients[place] for place in places])) for places, product in self.packed]
        total = shares[0]
        for share in shares[1:]:
            total = total + share
        return total

    def to_matrices(self, gradients: Sequence[Values], operand: Values) -> list[Values]:
        """Return the gradient of each gate's matrix from the gradient of its products [rows, units]; summed in float64."""
        results: dict[int, Values] = {}
        for places, product in self.packed:
            of_places = product.to_matrices(numpy.stack([gradients[place] for place in places]), operand)
            results |= zip(places, of_places, strict=True)
        return [results[place] for place in range(self.count)]


@dataclass(frozen=True)
class RecurrentProduct:
    """Products of one shape: R.g of head n, unit o is the sum over i of R[g, n, o, i] e[n * Din + i], plus a bias.

    `packed` [N, Din, Gr * Dout] is R as one matrix a head, from the units of an operand to those of all `gates`, and `bias`
    [Gr, N * Dout] or None; both in the arithmetic dtype.
    """

    packed: Values
    gates: int
    bias: Values | None

    @classmethod
    def prepared(cls, matrices: Sequence[Values], biases: Sequence[Values | None], arithmetic: Any) -> RecurrentProduct:
        """Pack matrices [N, Dout, Din] for all steps of a call; either all biases [N * Dout] are present or none."""
        R = numpy.stack(matrices).astype(arithmetic)
        gates, heads, out, of = R.shape
        packed = R.transpose(1, 3, 0, 2).reshape(heads, of, gates * out)
        present = [bias for bias in biases if bias is not None]
        return cls(numpy.ascontiguousarray(packed), gates, numpy.stack(present) if present else None)

    def of(self, operand: Values, cuts: Cuts) -> Values:
        """Return the products [Gr, rows, N * Dout] of operands [rows, N * Din]; at `cuts` [rows, 1] the bias."""
        heads, _, columns = self.packed.shape
        by_head = self._operands_by_head(operand) @ self.packed
        by_gate = by_head.reshape(heads, len(operand), self.gates, columns // self.gates).transpose(2, 1, 0, 3)
        products: Values = by_gate.reshape(self.gates, len(operand), heads * columns // self.gates)
        if cuts is not None:
            products = numpy.where(cuts, products.dtype.type(0), products)
        return products if self.bias is None else products + self.bias[:, None]

    def to_operand(self, gradients: Values) -> Values:
        """Return the gradient of the operands [rows, N * Din] from the gradient of the products [Gr, rows, N * Dout]."""
        heads, of, _ = self.packed.shape
        by_head = self._gates_by_head(gradients) @ self.packed.swapaxes(1, 2)
        return by_head.transpose(1, 0, 2).reshape(gradients.shape[1], heads * of)

    def to_matrices(self, gradients: Values, operand: Values) -> Values:
        """Return the gradient of R [Gr, N, Dout, Din] from that of the products [Gr, rows, N * Dout]; summed in float64."""
        heads, of, columns = self.packed.shape
        by_gate = self._gates_by_head(gradients).astype(numpy.float64).swapaxes(1, 2)
        by_head: Values = by_gate @ self._operands_by_head(operand).astype(numpy.float64)
        return by_head.reshape(heads, self.gates, columns // self.gates, of).swapaxes(0, 1)

    def _operands_by_head(self, operand: Values) -> Values:
        heads, of, _ = self.packed.shape
        return operand.reshape(len(operand), heads, of).transpose(1, 0, 2)

    def _gates_by_head(self, gradients: Values) -> Values:
        """Return [Gr, rows, N * Dout] as [N, rows, Gr * Dout]."""
        heads, _, columns = self.packed.shape
        rows = gradients.shape[1]
        by_head = gradients.reshape(self.gates, rows, heads, columns // self.gates).transpose(2, 1, 0, 3)
        return by_head.reshape(heads, rows, columns)
