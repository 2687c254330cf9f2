"""The states of requests of layers on top of each other, in slots, and steps on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.run.cache import Cache, new_states


class LayerCache:
    """The states of `slots` requests in all layers, zeros to begin with.

    `states` {name: [num_layers, slots, H]}, in the order of the layer's states; its tensors stay the same, so that CUDA graphs
    may use them. With a `draft` (its most steps), slots keep the states before their last draft and after each of its steps.
    """

    def __init__(self, recipes: Sequence[str], slots: int, dtype: torch.dtype, device: torch.device, draft: int = 0) -> None:
        """Make the cache for layers of these recipes, on a device; raises BadInput for invalid sizes."""
        like, executors = torch.empty(0, dtype=dtype, device=device), [kernel_by(recipe).executor for recipe in recipes]
        whole, drafts = new_states(executors[0], (len(recipes),), slots, draft, dtype, like)
        self.states = {name: array[:, :, 0] for name, array in whole.items()}
        self.layers = [
            Cache(executor, {name: array[layer] for name, array in whole.items()}, None if drafts is None else drafts[layer])
            for layer, executor in enumerate(executors)
        ]
        """The cache of each layer."""

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.layers[0].slots

    @property
    def draft(self) -> int:
        """The most steps of a draft, 0 without drafts."""
        return self.layers[0].draft

    def copy(self, source: Any, target: Any) -> None:
        """Copy all states of slots `source` to slots `target`, as `Cache.copy` does."""
        for layer in self.layers:
            layer.copy(source, target)

    def clear(self, slots: Any) -> None:
        """Set all states of slots to zeros, as `Cache.clear` does."""
        for layer in self.layers:
            layer.clear(slots)

    def commit(self, slots: Any, accepted: Any = None) -> None:
        """End the last draft of slots and keep its `accepted` steps, as `Cache.commit` does."""
        for layer in self.layers:
            layer.commit(slots, accepted)
