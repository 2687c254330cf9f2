"""Recipes of kernels that serve another's calls: without its input projection, and for several calls at once."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from minrnn_gen.build.recipe import cell_source_of, recipe_of, spec_from
from minrnn_gen.config.spec import SIZE_LIMIT, load_spec


@lru_cache(maxsize=256)
def without_projection(recipe: str) -> str:
    """Return the recipe of the same kernel on pre-activations."""
    spec = spec_from(recipe)
    if not spec.input_size:
        return recipe
    return recipe_of(load_spec(spec, input_size=None), cell_source_of(spec))


def with_heads(recipe: str, count: int, interface: Any, means_over_all: bool) -> str | None:
    """Return the recipe with `count` times the heads, or groups of a cell with the axis n.

    None where no spec has so many channels, or heads need each other, as in means over all units.
    """
    spec = spec_from(recipe)
    if spec.hidden_size * count > SIZE_LIMIT or means_over_all:
        return None
    shares = {"heads": spec.heads * count}
    if interface.has_vectors:  # their channels are no heads, and without inputs S.* they have no groups either
        shares = {"groups": (spec.groups or 1) * count} if interface.shared else {}
    wider = load_spec(json.loads(recipe), hidden_size=spec.hidden_size * count, **shares)
    return recipe_of(wider, cell_source_of(wider))
