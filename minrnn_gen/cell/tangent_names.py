"""Names in the tangent of a cell: of the cell's arrays and of the arrays that the tangent adds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

NAME_LENGTH = 64


@dataclass(frozen=True)
class TangentNames:
    """Names in the tangent cell: for each array of the cell, the name of its tangent.

    `products`: for each gate of R, the name of its product with the tangent and, where R has a tangent, of the product with R's
    tangent. Where `has_output`, R multiplies the tangent alone, since its products with the output are known.
    `inputs_of_products` then has, for each gate of R whose product is not added to its gate of x, the inputs X.* for the
    product with R and for the product with R's tangent. `total`: in a joint cell, the state that sums the output's tangent,
    and the factor X.* of it.
    """

    gates: Mapping[str, str]
    states: Mapping[str, str]
    parameters: Mapping[str, str]
    shared: Mapping[str, str]
    inputs: Mapping[str, str]
    products: Mapping[str, tuple[str, str | None]]
    has_output: bool
    inputs_of_products: Mapping[str, tuple[str, str]]
    total: tuple[str, str] | None = None


class Names:
    """Names that a cell does not use, for tangents and values."""

    def __init__(self, used: Collection[str]) -> None:
        """Take all names but those `used`."""
        self._used = set(used)

    def tangents_of(self, names: Collection[str]) -> dict[str, str]:
        """Return each name with the name of its tangent."""
        return {name: self.tangent_of(name) for name in names}

    def tangent_of(self, name: str) -> str:
        """Return the name of a value's tangent."""
        return self._free(f"d_{name}")

    def of_matrix(self, gate: str) -> str:
        """Return the name of a product with the tangent of R."""
        return self._free(f"dR_{gate}")

    def of_product(self, gate: str) -> str:
        """Return the name of an input that is a product with R."""
        return self._free(f"R_{gate}")

    def of_value(self) -> str:
        """Return the name of a value that several equations use."""
        return next(filter(self._take, _numbered("v")))

    def _free(self, name: str) -> str:
        candidates = (candidate for candidate in (name, f"{name}_") if len(candidate) <= NAME_LENGTH)
        return next(filter(self._take, (*candidates,)), None) or next(filter(self._take, _numbered("d")))

    def _take(self, name: str) -> bool:
        is_free = name not in self._used
        self._used.add(name)
        return is_free


def _numbered(stem: str) -> Iterator[str]:
    place = 0
    while True:
        yield f"{stem}{place}"
        place += 1
