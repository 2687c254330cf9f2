"""The recurrent product of a dense cell in NumPy: by BLAS, head by head, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from minrnn_gen.cell.rounds import places_by_round
from minrnn_gen.cpu.recurrence import Cuts, Values


@dataclass(frozen=True)
class StepProducts:
    """The products of one step of a dense cell by rounds: `of_output`, of the previous output, and `rounds`, of arguments.

    `gates` are R's, and `places` where among them those of each product are, of the previous output first.
    """

    gates: tuple[str, ...]
    places: tuple[tuple[int, ...], ...]
    of_output: RecurrentProduct
    rounds: tuple[RecurrentProduct, ...]

    @classmethod
    def prepared(
        cls, gates: tuple[str, ...], rounds: Sequence[tuple[str, ...]], R: Values, bias: Values | None, arithmetic: Any
    ) -> StepProducts:
        """Pack R and its bias, as `RecurrentProduct` takes them, for the previous output and for the gates of each round."""
        places = places_by_round(gates, rounds)
        packed = [
            RecurrentProduct.prepared(R[list(place)], None if bias is None else bias[list(place)], arithmetic)
            for place in places
        ]
        return cls(gates, places, packed[0], tuple(packed[1:]))

    def named(self, number: int, products: Values) -> dict[str, Values]:
        """Return the products [gates, ...] of a round, or of the previous output at 0, by their names in a program."""
        return {f"R_{self.gates[place]}": product for place, product in zip(self.places[number], products, strict=True)}


@dataclass(frozen=True)
class RecurrentProduct:
    """What R makes of a previous output h: R.g of head n, unit o is the sum over i of R[g, n, o, i] h[n * D + i], plus a bias.

    `packed` [N, D, Gr * D] is R as one matrix a head, from the units of the previous output to those of all gates, and `bias`
    [Gr, H] or None; both in the arithmetic dtype.
    """

    packed: Values
    bias: Values | None

    @classmethod
    def prepared(cls, R: Values, bias: Values | None, arithmetic: Any) -> RecurrentProduct:
        """Pack R [Gr, N, D, D] (gate, head, out, in) for all steps of a call; bias [Gr, N, D] or None."""
        gates, heads, head_dim, _ = R.shape
        packed = R.astype(arithmetic).transpose(1, 3, 0, 2).reshape(heads, head_dim, gates * head_dim)
        offsets = None if bias is None else bias.astype(arithmetic).reshape(gates, heads * head_dim)
        return cls(numpy.ascontiguousarray(packed), offsets)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of R."""
        heads, head_dim, columns = self.packed.shape
        return columns // head_dim, heads, head_dim, head_dim

    def of(self, output: Values, cuts: Cuts) -> Values:
        """Return the products [Gr, rows, H] of previous outputs [rows, H]; at `cuts` [rows, 1] the bias, whatever R has."""
        gates, heads, head_dim, _ = self.shape
        if not gates:
            return numpy.empty((0, *output.shape), output.dtype)
        by_head = self._outputs_by_head(output) @ self.packed
        by_gate = by_head.reshape(heads, len(output), gates, head_dim).transpose(2, 1, 0, 3)
        products: Values = by_gate.reshape(gates, *output.shape)
        if cuts is not None:
            products = numpy.where(cuts, products.dtype.type(0), products)
        return products if self.bias is None else products + self.bias[:, None]

    def to_output(self, gradients: Values) -> Values:
        """Return the gradient of the previous outputs [rows, H], given that of the products [Gr, rows, H]."""
        by_head = self._gates_by_head(gradients) @ self.packed.swapaxes(1, 2)
        return by_head.transpose(1, 0, 2).reshape(gradients.shape[1:])

    def to_matrix(self, gradients: Values, output: Values) -> Values:
        """Return the gradient of R, given that of the products [Gr, rows, H] of outputs [rows, H]; summed in float64."""
        gates, heads, head_dim, _ = self.shape
        by_gate = self._gates_by_head(gradients).astype(numpy.float64).swapaxes(1, 2)
        by_head: Values = by_gate @ self._outputs_by_head(output).astype(numpy.float64)
        return by_head.reshape(heads, gates, head_dim, head_dim).swapaxes(0, 1)

    def _outputs_by_head(self, output: Values) -> Values:
        _, heads, head_dim, _ = self.shape
        return output.reshape(len(output), heads, head_dim).transpose(1, 0, 2)

    def _gates_by_head(self, gradients: Values) -> Values:
        """Return [Gr, rows, H] as [N, rows, Gr * D]."""
        gates, heads, head_dim, _ = self.shape
        rows = gradients.shape[1]
        return gradients.reshape(gates, rows, heads, head_dim).transpose(2, 1, 0, 3).reshape(heads, rows, gates * head_dim)
