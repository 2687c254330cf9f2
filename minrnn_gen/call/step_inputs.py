"""Inputs X.* of one value per step as kernels take them, with that value in every channel, and their gradients."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from minrnn_gen.call.altered import in_axes
from minrnn_gen.call.array import is_tensor
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.joined import contiguous, library_of
from minrnn_gen.errors import BadInput, kind_of


def spread_inputs(interface: Interface, inputs: Any, x: Any, library: Any = None) -> Any:
    """Return the inputs X.* of a call, with inputs of one value per step, [B, T] or [B] of a single step, in all channels.

    `x` is the call's, and `library` the module of the arrays' library, where it is known. Raises BadInput for another shape.
    """
    if not isinstance(inputs, Mapping):
        return inputs
    spread = dict(inputs)
    is_step = len(x.shape) < len(interface.x_axes)
    axes, own, of_x = (axes.replace("t", "" if is_step else "t") for axes in (interface.channel_axes, "bt", interface.x_axes))
    sizes = {axis: x.shape[of_x.index(axis)] for axis in own if len(x.shape) == len(of_x)}
    sizes |= {"d": len(interface.runs_reversed), "h": interface.hidden_size}
    for name in interface.step_inputs:
        if name not in spread:
            continue
        array, expected = spread[name], [sizes.get(axis) for axis in own]
        if not hasattr(array, "shape"):
            raise BadInput(f"inputs['{name}'] is {kind_of(array)}; an array {expected} is expected")
        if list(array.shape) != expected:
            raise BadInput(f"inputs['{name}'] has shape {list(array.shape)}; {expected} is expected, one value for each step")
        names = library or library_of(array)
        # JAX adds up the gradient in the dtype of what is spread, others in a wider one.
        is_narrow = names.__name__ == "jax.numpy" and array.dtype.itemsize < names.dtype("float32").itemsize
        wide = array.astype("float32") if is_narrow else array
        wide = names.broadcast_to(in_axes(wide, own, axes), tuple(sizes[axis] for axis in axes))
        spread[name] = contiguous(wide.astype(array.dtype) if is_narrow else wide)
    return spread


def gathered_inputs(interface: Interface, gradients: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gradients of inputs X.* from the gradients of spread inputs: sums over channels, and directions."""
    axes, gathered = interface.channel_axes, dict(gradients)
    summed = tuple(place for place, axis in enumerate(axes) if axis not in "bt")
    for name in interface.step_inputs:
        gradient, wide = gathered[name], interface.precision.arithmetic_dtype
        if is_tensor(gradient):
            wide = getattr(sys.modules["torch"], wide)
        total = gradient.sum(summed, dtype=wide)
        total = total if axes.index("b") < axes.index("t") else total.swapaxes(0, 1)
        gathered[name] = contiguous(total.to(gradient.dtype) if is_tensor(gradient) else total.astype(gradient.dtype))
    return gathered
