"""States that resets begin from: the kernel that adds them, and the arguments of its call."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from minrnn_gen.build.reset_cells import resetting_recipe
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.reset_states import check_marks, check_shape, named_reset_states, sequence_of_step, spread
from minrnn_gen.call.validate import known_names
from minrnn_gen.errors import BadInput
from minrnn_gen.jax.arrays import as_array, as_integers
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by


def begun(kernel: Kernel, arguments: CallArguments, reset_states: Any) -> tuple[Kernel, CallArguments]:
    """Return the kernel of a call with reset states, and what it is given; raises BadInput for what does not fit."""
    interface, marks = kernel.interface, arguments.resets
    named = named_reset_states(interface, reset_states, marks)
    check_marks(marks)
    again = resetting_recipe(kernel.recipe)
    count, sequence = marks.shape[0], None
    if arguments.cu_seqlens is not None:
        ends = as_integers(arguments.cu_seqlens, "cu_seqlens")
        count, sequence = max(ends.shape[0] - 1, 0), sequence_of_step(jnp, ends, jnp.arange(marks.shape[1]))
    storage = interface.precision.storage_dtype
    dtypes = tuple(dict.fromkeys((interface.precision.arithmetic_dtype, storage)))
    states: dict[str, Any] = {}
    for name in interface.states:
        states[name] = as_array(named[name], f"reset_states['{name}']")
        if states[name].dtype.name not in dtypes:
            expected = " or ".join(dtypes)
            raise BadInput(
                f"reset_states['{name}'] has dtype {states[name].dtype}; {expected} is expected and nothing is cast silently"
            )
        check_shape(states[name], name, interface.directions, interface.hidden_size, count)
    axes = interface.channel_axes
    added = {
        added_input: spread(jnp, axes, marks, states[name].astype(storage), sequence) for name, added_input in again.inputs
    }
    inputs = {**known_names(arguments.inputs, interface.inputs, "inputs"), **added}
    return kernel_by(again.recipe), arguments._replace(inputs=inputs)
