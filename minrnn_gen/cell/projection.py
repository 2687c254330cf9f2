"""The axis p of a cell: which of its names have P projected units, and which units each product reads and returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # NumPy is imported only where a program is computed
    from minrnn_gen.cell.levels import Level
    from minrnn_gen.cell.program import Program


@dataclass(frozen=True)
class Projection:
    """The names of a cell with P units instead of H, and the products that do not map a head's D units to D units.

    Products of the gates in `to` return P units, products of the gates in `of` multiply P units, and products of the gates in
    `across` mix the units of all heads. `output`: the output has P units. `biases` says whether a gate's product has a
    recurrent bias, where that is not left to the spec.
    """

    states: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    across: tuple[str, ...] = ()
    output: bool = False
    biases: tuple[tuple[str, bool], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.states or self.parameters or self.to)

    @property
    def is_plain(self) -> bool:
        """Whether all products have one shape and the same bias, as in cells that list no products."""
        return not (self or self.across or self.biases)

    def has(self, label: str) -> bool:
        """Whether an input or a result of a program has P units; an argument does not count."""
        kind, _, name = label.removeprefix("gradient_").partition("_")
        if label.removeprefix("gradient_") == "y":
            return self.output
        names = {"R": self.to, "state": self.states, "previous": self.states, "parameter": self.parameters}
        return name in names.get(kind, ())


NO_PROJECTION = Projection()


@lru_cache(maxsize=256)
def by_units(program: Program, projection: Projection, argument: bool = False) -> tuple[tuple[bool, Program], ...]:
    """Return the independent parts of `program`, each with whether it has P units; one part without the axis p.

    `argument`: the result "argument" has P units.
    """
    if not projection:
        return ((False, program),)
    of_p = [label for label, _ in program.results if (argument if label == "argument" else projection.has(label))]
    others = [label for label, _ in program.results if label not in of_p]
    return tuple((is_p, program.restricted(labels)) for is_p, labels in ((False, others), (True, of_p)) if labels)


@lru_cache(maxsize=256)
def by_summand(level: Level, projection: Projection) -> tuple[Program, ...]:
    """Return the parts of a level's program, each for the same units: one for each mean if the cell has the axis p."""
    if not projection:
        return (level.program,)
    return tuple(level.program.restricted([label]) for label, _ in level.program.results)


def shown_products(projection: Projection, gates: tuple[str, ...]) -> str:
    """Return the units that each product reads and returns, for people, if products differ."""
    words = {
        gate: f"{'P' if gate in projection.to else 'H'} from {'P' if gate in projection.of else 'H'}"
        + (" over all heads" if gate in projection.across else "")
        for gate in gates
    }
    together: dict[str, list[str]] = {}
    for gate, leads in words.items():
        together.setdefault(leads, []).append(f"R.{gate}")
    return "; ".join(f"{', '.join(named)}: {leads}" for leads, named in together.items())
