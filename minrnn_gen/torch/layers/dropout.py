"""Dropout between layers: torch draws the masks before a call runs, so that every way of running it gives the same bits."""

from __future__ import annotations

from typing import Any

import torch

from minrnn_gen.run.layers.dropout import scale_of


def draw_masks(x: Any, width: int, count: int, probability: float) -> tuple[Any, ...]:
    """Return `count` masks for outputs of `width` channels, on the device of x, True where values stay; none at probability 0.

    x [..., I] gives the other axes and the device, whose generator draws: `torch.manual_seed` repeats the masks.
    """
    if not probability:
        return ()
    shape = (*x.shape[:-1], width)
    return tuple(x.new_empty(shape, dtype=torch.bool).bernoulli_(1 - probability) for _ in range(count))


def dropped(values: Any, mask: Any, probability: float) -> Any:
    """Return `values`, or their gradient, scaled and rounded once where `mask` keeps them; zeros elsewhere."""
    return torch.where(mask, values * scale_of(probability), 0)
