"""Products by R of a cell that runs step after step, and the rounds in which a step computes them."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.cell.lowering_steps import LoweredSteps, LoweredStepsBackward
from minrnn_gen.cell.rounds import places_by_round
from minrnn_gen.codegen.cell_names import CellNames


@dataclass(frozen=True)
class ProductNames(CellNames):
    """The products of a lowered cell, in either pass."""

    lowered: LoweredSteps | LoweredStepsBackward

    @property
    def products(self) -> tuple[str, ...]:
        """The recurrent gates, in R's order."""
        return self.lowered.recurrent_gates

    @property
    def round_of_products(self) -> tuple[int, ...]:
        """For each product, the exchange of a step that it follows: 0 for the previous output, then the rounds."""
        numbers = {place: number for number, places in enumerate(self.products_by_round) for place in places}
        return tuple(map(numbers.__getitem__, range(len(self.products))))

    @property
    def products_by_round(self) -> tuple[tuple[int, ...], ...]:
        """For each round, the indices of its products; the first round multiplies the previous output."""
        return places_by_round(self.products, [products.gates for products in self.lowered.rounds])

    @property
    def products_in_order(self) -> tuple[int, ...]:
        """The indices of the products, round by round."""
        return tuple(place for places in self.products_by_round for place in places)

    @property
    def places_in_round(self) -> tuple[tuple[int, int], ...]:
        """For each product in that order its place, and where it is among those of its round."""
        return tuple((place, number) for places in self.products_by_round for number, place in enumerate(places))

    @property
    def in_rounds(self) -> bool:
        return bool(self.lowered.rounds)
