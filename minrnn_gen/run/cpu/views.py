"""Views of a call's arrays for the CPU target: time first, and n or 1 after the channels where a cell has the axis n.

A cell without the axis n has arrays [T, B, G, H], [T, B, H] and [B, H]. All functions take calls of one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, as_numpy, numpy_dtype
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.cpu.recurrence import Values


def with_n(interface: Interface, values: Values) -> Values:
    """View an array without the axis n with an axis of 1 after the channels, if the cell has the axis n."""
    return values[..., None] if interface.has_vectors else values


def gates(interface: Interface, call: Call) -> Values:
    """View pre-activations as [T, B, G, H], a single step as T = 1."""
    return gates_of(interface, call.x, call.x_axes)


def gates_of(interface: Interface, array: Array, axes: str) -> Values:
    """View an array with the `axes` of pre-activations, or with those of a single step, as [T, B, G, H]."""
    return with_n(interface, _by_time(array, axes, "tbgh"))


def y(interface: Interface, array: Array) -> Values:
    """View an array with the axes of y as [T, B, H]."""
    return with_n(interface, _by_time(array, Y_AXES[interface.layout], "tbh"))


def states(interface: Interface, arrays: Sequence[Array]) -> dict[str, Values]:
    """View states after every step, of all or none, as [T, B, H] each."""
    return {
        name: _by_time(array, interface.states_axes(name), "tbhn") if name in interface.vector_states else y(interface, array)
        for name, array in zip(interface.states, arrays, strict=False)
    }


def of_names(interface: Interface, arrays: Sequence[Array | None]) -> dict[str, Values]:
    """View states of sequences, or their gradients, as [B, H] each; absent ones are left out."""
    pairs = zip(interface.states, arrays, strict=True)
    return {name: _state(interface, name, as_numpy(array)) for name, array in pairs if array is not None}


def initial(interface: Interface, call: Call, arithmetic: str) -> dict[str, Values]:
    """Return the initial states {name: [B, H]}, by default zeros."""
    present = of_names(interface, call.initial)
    dtype = numpy_dtype(arithmetic)
    for name in interface.states:
        if name not in present:
            shape = (call.batch, interface.units_of_state(name))
            wide = name in interface.vector_states
            present[name] = _state(interface, name, numpy.zeros((*shape, interface.state_size) if wide else shape, dtype))
    return present


def vectors(interface: Interface, call: Call) -> dict[str, Any]:
    """Return the bias [G, H], or None, and the parameters {name: [H]}."""
    shape = (len(interface.gates), interface.hidden_size)
    parameters = ((name, as_numpy(vector)) for name, vector in zip(interface.parameters, call.parameters, strict=True))
    return {
        "bias": None if call.bias is None else with_n(interface, as_numpy(call.bias).reshape(shape)),
        "parameters": {
            name: vector if name in interface.vector_parameters else with_n(interface, vector) for name, vector in parameters
        },
    }


def groups(interface: Interface, array: Array) -> Values:
    """View an input S.*, of all steps or of a single one, as [T, B, groups, n]."""
    axes = interface.shared_axes.replace("d", "")
    return _by_time(array, axes if len(array.shape) == len(axes) else axes.replace("t", ""), "tbkn")


def shared(interface: Interface, call: Call) -> dict[str, Values]:
    """Return the inputs S.* as [T, B, H, n], each group's for all its channels; [T, B, 1, n] where there is one group."""
    channels = interface.hidden_size // interface.groups
    by_group = {name: groups(interface, array) for name, array in zip(interface.shared, call.shared, strict=True)}
    return {
        name: values if interface.groups == 1 else numpy.repeat(values, channels, axis=2) for name, values in by_group.items()
    }


def channel_inputs(interface: Interface, arrays: Sequence[Array]) -> dict[str, Values]:
    """View inputs X.*, or their gradients, of all steps or of a single one, as [T, B, H] each."""
    axes = Y_AXES[interface.layout]
    named = zip(interface.inputs, arrays, strict=True)
    return {
        name: _by_time(array, axes if len(array.shape) == len(axes) else axes.replace("t", ""), "tbh") for name, array in named
    }


def _state(interface: Interface, name: str, values: Values) -> Values:
    return values if name in interface.vector_states else with_n(interface, values)


def _by_time(array: Array, axes: str, wanted: str) -> Values:
    values = as_numpy(array)
    if "t" not in axes:
        values, axes = values[None], "t" + axes
    view: Values = values.transpose([axes.index(axis) for axis in wanted])
    return view
