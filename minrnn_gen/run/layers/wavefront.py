"""Layers as a wavefront: the order, the lane and the dependencies of each layer's pieces of time.

A layer runs a piece after its previous piece and after the same piece of the layer below. Between two layers is a product: in a
forward the projection of a layer's input, in a backward the gradient of that input. Recurrences have several lanes; each lane
runs its recurrences in sequence. Products have their own lane: the product of a piece runs during the recurrence of the piece
before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["product", "recurrence"]

# A product's share of the time of a recurrence, roughly: enough to order steps by their end.
PRODUCT_TIME = 0.25


@dataclass(frozen=True)
class Step:
    """A piece of a layer, numbered in run order; `waits`: the steps of other lanes that it follows.

    `end`: its time of completion, in units of a piece's recurrence.
    """

    kind: Kind
    layer: int
    piece: int
    lane: int
    waits: tuple[int, ...]
    end: float


@functools.lru_cache(maxsize=256)
def wavefront(layers: int, pieces: int, lanes: int, products_first: bool) -> tuple[Step, ...]:
    """Return the steps of all layers, each after the steps that it waits for; products have the last lane.

    `products_first`: the product of a piece comes before its recurrence, as in a forward. The order is a list schedule: steps,
    by their distance from the first, each take the lane on which they begin earliest.
    """
    kinds: tuple[Kind, Kind] = ("product", "recurrence") if products_first else ("recurrence", "product")
    diagonals = sorted((layer + piece, layer) for layer in range(layers) for piece in range(pieces))
    nodes = [(kind, layer, at - layer) for at, layer in diagonals for kind in kinds]
    nodes.sort(key=lambda node: (node[1] + node[2], kinds.index(node[0])))
    steps: list[Step] = []
    numbers: dict[tuple[Kind, int, int], int] = {}
    free_at = [0.0] * (lanes + 1)
    for node in nodes:
        kind, layer, piece = node
        before = [numbers[other] for other in _before(node, products_first)]
        ready_at = max((steps[number].end for number in before), default=0.0)
        own = numbers.get((kind, layer, piece - 1))
        lane = lanes
        if kind == "recurrence":
            # The lane of the previous piece needs no event.
            preferred = None if own is None else steps[own].lane
            lane = min(range(lanes), key=lambda place: (max(free_at[place], ready_at), place != preferred, place))
        end = max(free_at[lane], ready_at) + (1.0 if kind == "recurrence" else PRODUCT_TIME)
        free_at[lane] = end
        numbers[node] = len(steps)
        waits = tuple(number for number in before if steps[number].lane != lane)
        steps.append(Step(kind, layer, piece, lane, waits, end))
    return tuple(steps)


def _before(node: tuple[Kind, int, int], products_first: bool) -> Iterator[tuple[Kind, int, int]]:
    kind, layer, piece = node
    if kind == "recurrence" and piece:
        yield "recurrence", layer, piece - 1
    if kind == "product":
        if not products_first:
            yield "recurrence", layer, piece
        elif layer:
            yield "recurrence", layer - 1, piece
    elif products_first:
        yield "product", layer, piece
    elif layer:
        yield "product", layer - 1, piece
