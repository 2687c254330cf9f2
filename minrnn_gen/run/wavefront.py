"""Layers as a wavefront: which piece of time of which layer runs when, on which lane, and what it waits for.

Layer l takes piece p once layer l - 1 has taken it and layer l has taken piece p - 1. Of all that may run, as many run at once
as there are lanes; a lane takes its steps one after the other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A piece of a layer; `waits`: the places, in the order of steps, of those on other lanes that it comes after."""

    layer: int
    piece: int
    lane: int
    waits: tuple[int, ...]


@functools.lru_cache(maxsize=256)
def wavefront(layers: int, pieces: int, lanes: int) -> tuple[Step, ...]:
    """Return the steps of all layers in an order in which each stands behind what it waits for.

    A list schedule of steps that take equally long: of those that may run, first those on the longest way to the end.
    """
    steps: list[Step] = []
    place_of: dict[tuple[int, int], int] = {}
    left = {(layer, piece) for layer in range(layers) for piece in range(pieces)}
    while left:
        ready = sorted((node for node in left if all(before in place_of for before in _before(*node))), key=_urgency)
        taken = ready[:lanes]
        free = [*range(lanes)]
        # A layer stays on the lane of its piece before where it can, and needs no event there.
        lane_of: dict[tuple[int, int], int] = {}
        for layer, piece in taken:
            before = place_of.get((layer, piece - 1))
            if before is not None and steps[before].lane in free:
                lane_of[layer, piece] = steps[before].lane
                free.remove(steps[before].lane)
        for layer, piece in taken:
            lane = lane_of[layer, piece] if (layer, piece) in lane_of else free.pop(0)
            waits = (place_of[before] for before in _before(layer, piece))
            steps.append(Step(layer, piece, lane, tuple(place for place in waits if steps[place].lane != lane)))
        place_of |= {node: len(steps) - len(taken) + at for at, node in enumerate(taken)}
        left.difference_update(taken)
    return tuple(steps)


def rounds_of(steps: tuple[Step, ...]) -> int:
    """Return how long a schedule takes, in steps."""
    ends: list[int] = []
    end_of_lane: dict[int, int] = {}
    for step in steps:
        ends.append(1 + max((*(ends[place] for place in step.waits), end_of_lane.get(step.lane, 0))))
        end_of_lane[step.lane] = ends[-1]
    return max(ends)


def _before(layer: int, piece: int) -> Iterator[tuple[int, int]]:
    if layer:
        yield layer - 1, piece
    if piece:
        yield layer, piece - 1


def _urgency(node: tuple[int, int]) -> tuple[int, int]:
    layer, piece = node
    return layer + piece, layer
