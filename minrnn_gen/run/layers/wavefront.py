"""Layers as a wavefront: which piece of time of which layer runs when, on which lane, and what it waits for.

A layer takes a piece once it has taken the piece before, and the layer below has taken this one. Between two layers is a
product: in a forward the projection of a layer's input, in a backward the gradient of it. Recurrences have a number of lanes,
of which each takes one after the other; products have a lane of their own: that of a piece runs during the recurrence of the
piece before.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["product", "recurrence"]

# What a product takes of the time of a recurrence, about: so much that two steps are in the order in which they end.
PRODUCT_TIME = 0.25


@dataclass(frozen=True)
class Step:
    """A piece of a layer, counted in the order in which they are taken; `waits`: the steps of other lanes that it comes after.

    `end` is when it is over, in recurrences of a piece.
    """

    kind: Kind
    layer: int
    piece: int
    lane: int
    waits: tuple[int, ...]
    end: float


@functools.lru_cache(maxsize=256)
def wavefront(layers: int, pieces: int, lanes: int, products_first: bool) -> tuple[Step, ...]:
    """Return the steps of all layers in an order in which each follows what it waits for; products have the last lane.

    `products_first`: those of a piece come before its recurrence, as in a forward. A list schedule: of the steps in the order
    of their distance to the first, each takes the lane on which it begins first.
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
            # The lane of the piece before needs no event.
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
