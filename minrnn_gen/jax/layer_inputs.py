"""The inputs X.* of one of a layer's recurrences, as its kernel takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from minrnn_gen.errors import BadInput
from minrnn_gen.jax.arrays import as_array
from minrnn_gen.layers.architecture import Architecture


def inputs_of_layer(made: Architecture, inputs: Any, layer: int, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Return the inputs X.* of a layer: in `dtype` unless it is None, one value per step broadcast to `shape`.

    `shape`: the shape of the other inputs; an input with one value per step has its leading axes. Raises BadInput for inputs
    that do not fit.
    """
    if isinstance(inputs, list | tuple):
        if len(inputs) != len(made.names):
            raise BadInput(
                f"inputs has {len(inputs)} mappings; {len(made.names)} are expected, one for each layer, or one for all"
            )
        inputs = inputs[layer]
    if not isinstance(inputs, Mapping) or (dtype is None and not made.step_inputs):
        return inputs
    named = {name: as_array(array, f"inputs['{name}']") for name, array in inputs.items()}
    named = named if dtype is None else {name: array.astype(dtype) for name, array in named.items()}
    return {name: _in_all(array, name, shape) if name in made.step_inputs else array for name, array in named.items()}


def _in_all(array: Any, name: str, shape: tuple[int, ...]) -> Any:
    lead = shape[: array.ndim]
    if array.shape != lead or array.ndim == len(shape):
        raise BadInput(f"inputs['{name}'] has shape {list(array.shape)}; one value for each step is expected, of {list(shape)}")
    # The gradient, a sum, is in float32 at least.
    wide = array.astype(jnp.promote_types(array.dtype, jnp.float32)).reshape(*lead, *(1,) * (len(shape) - array.ndim))
    return jnp.broadcast_to(wide, shape).astype(array.dtype)
