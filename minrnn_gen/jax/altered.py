"""Reset states and holds: their kernel, and the arguments of its call."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from minrnn_gen.build.altered_cells import altered_recipe
from minrnn_gen.call.altered import (
    check_marks,
    check_reset_states,
    named_reset_states,
    sequence_count,
    sequence_of_step,
    spread,
    spread_holds,
)
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.known_names import known_names
from minrnn_gen.errors import BadInput
from minrnn_gen.jax.arrays import as_array, as_integers
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by


def altered_call(kernel: Kernel, arguments: CallArguments, reset_states: Any, holds: Any) -> tuple[Kernel, CallArguments]:
    """Return the kernel of a call with reset states, holds or both, and its arguments.

    Raises BadInput for arguments that do not fit.
    """
    interface, x = kernel.interface, as_array(arguments.x, "x")
    axes, storage = interface.channel_axes, interface.precision.storage_dtype
    recipe = altered_recipe(kernel.recipe, reset_states is not None, holds is not None)
    added: dict[str, Any] = {}
    if reset_states is not None:
        states, sequence = _checked(kernel, arguments, reset_states, x)
        for name, added_input in recipe.begins:
            added[added_input] = spread(jnp, axes, arguments.resets, states[name].astype(storage), sequence)
    if recipe.hold is not None:
        check_marks(holds, "holds", interface.x_axes, x)
        if holds.dtype != bool:
            raise BadInput(f"holds has dtype {holds.dtype}; bool is expected and nothing is cast silently")
        added[recipe.hold] = spread_holds(jnp, axes, holds, jnp.ones((*interface.directions, interface.hidden_size), storage))
    inputs = {**known_names(arguments.inputs, interface.inputs, "inputs"), **added}
    return kernel_by(recipe.recipe), arguments._replace(inputs=inputs)


def _checked(kernel: Kernel, arguments: CallArguments, reset_states: Any, x: Any) -> tuple[dict[str, Any], Any]:
    """Return the reset states, and the sequence of each step where sequences are packed."""
    interface, marks = kernel.interface, arguments.resets
    named = named_reset_states(interface, reset_states, marks)
    check_marks(marks, "resets", interface.x_axes, x)
    ends = None if arguments.cu_seqlens is None else as_integers(arguments.cu_seqlens, "cu_seqlens")
    states = {name: as_array(named[name], f"reset_states['{name}']") for name in interface.states}
    check_reset_states(interface, states, sequence_count(marks, ends))
    return states, None if ends is None else sequence_of_step(jnp, ends, jnp.arange(marks.shape[1]))
