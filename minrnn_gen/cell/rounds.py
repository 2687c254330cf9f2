"""Products that multiply other values than the previous output, in rounds of a step by their dependencies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.expressions import Expr, Symbol
from minrnn_gen.cell.syntax import Place

# The longest chain of products, and the most products of a cell: language bounds, far above any published cell.
LEVELS_MOST, PRODUCTS_MOST = 8, 16


@dataclass(frozen=True)
class Round:
    """Products that multiply one `argument` in the same round of a step: R.g(argument) for each of `gates`."""

    gates: tuple[str, ...]
    argument: Expr


def rounds_of(
    definitions: tuple[tuple[Symbol, Expr], ...], gates: tuple[str, ...], arguments: tuple[tuple[str, Expr], ...]
) -> tuple[Round, ...]:
    """Return the rounds after the product of the previous output, in an order in which each may be computed.

    `arguments` has the operand of each of R's `gates` whose product does not multiply the previous output.
    """
    levels = levels_of(definitions, gates, dict(arguments))
    together: dict[tuple[int, Expr], list[str]] = {}
    for gate, argument in arguments:
        together.setdefault((levels[gate], argument), []).append(gate)
    ordered = sorted(together.items(), key=lambda item: item[0][0])
    return tuple(Round(tuple(gate for gate in gates if gate in of_round), argument) for (_, argument), of_round in ordered)


def places_by_round(gates: Sequence[str], rounds: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    """Return the places in R of the gates that multiply the previous output, and of those of each round."""
    later = {gate for of_round in rounds for gate in of_round}
    by_round = ([gate for gate in gates if gate not in later], *rounds)
    return tuple(tuple(map(gates.index, of_round)) for of_round in by_round)


def levels_of(
    definitions: tuple[tuple[Symbol, Expr], ...], gates: tuple[str, ...], arguments: Mapping[str, Expr]
) -> dict[str, int]:
    """Return the position of each gate's product in the longest chain of products that leads to it, from 1 on."""
    known = dict(definitions)
    levels: dict[str, int] = {}

    def level(gate: str) -> int:
        if gate not in levels:
            argument = arguments.get(gate)
            read = () if argument is None else products_read(argument, known)
            levels[gate] = 1 + max(map(level, read), default=0)
        return levels[gate]

    return {gate: level(gate) for gate in gates}


def products_read(expression: Expr, definitions: Mapping[Symbol, Expr]) -> tuple[str, ...]:
    """Return the gates whose products `expression` reads, directly or through definitions."""
    symbols = dict.fromkeys(_reached(expression, definitions))
    return tuple(symbol.name.removeprefix("R.") for symbol in symbols if symbol.name.startswith("R."))


def reads_previous_step(expression: Expr, definitions: Mapping[Symbol, Expr]) -> bool:
    """Whether `expression` depends on the previous step: on a state before it, or on a product."""
    return any(symbol.name.endswith("[t-1]") or symbol.name.startswith("R.") for symbol in _reached(expression, definitions))


def _reached(expression: Expr, definitions: Mapping[Symbol, Expr]) -> Iterator[Symbol]:
    waiting, seen = [expression], set[Symbol]()
    while waiting:
        for symbol in ex.symbols_of(waiting.pop()):
            if symbol in definitions:
                if symbol not in seen:
                    seen.add(symbol)
                    waiting.append(definitions[symbol])
            else:
                yield symbol


def check_argument(place: Place, gate: str, argument: Expr, definitions: Mapping[Symbol, Expr], shown: str) -> None:
    """Raise `BadInput` for a product whose argument no previous step reaches: it belongs to the projection."""
    if not reads_previous_step(argument, definitions):
        raise place.error(f"R.{gate} multiplies {shown}, which no previous step reaches; project it before the layer")
