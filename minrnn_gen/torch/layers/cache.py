"""The states of requests of layers on top of each other, in slots, and steps on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.run.cache import Cache


class LayerCache:
    """The states of `slots` requests in all layers, zeros to begin with.

    `states` {name: [num_layers, slots, H]}, in the order of the layer's states; its tensors stay the same, so that CUDA graphs
    may have them.
    """

    def __init__(self, recipes: Sequence[str], slots: int, dtype: torch.dtype, device: torch.device, draft: int = 0) -> None:
        """Make it for layers of these recipes, on a device; raises BadInput for sizes that are none."""
        like = torch.empty(0, dtype=dtype, device=device)
        made = [kernel_by(recipe).cache(slots, draft, dtype, like=like) for recipe in recipes]
        names = [*made[0].states]
        self.states = {name: torch.stack([of_layer.states[name] for of_layer in made]) for name in names}
        self._layers = [
            Cache(kernel_by(recipe).executor, {name: states[layer] for name, states in self.states.items()})
            for layer, recipe in enumerate(recipes)
        ]

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return self._layers[0].slots

    def copy(self, source: Any, target: Any) -> None:
        """Copy all states of slots `source` to slots `target`, as `Cache.copy` does."""
        for layer in self._layers:
            layer.copy(source, target)

    def clear(self, slots: Any) -> None:
        """Set all states of slots to zeros, as `Cache.clear` does."""
        for layer in self._layers:
            layer.clear(slots)
