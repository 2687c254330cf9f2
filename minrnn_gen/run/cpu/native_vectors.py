"""Arguments of native code for cells with n values per channel, by name: inputs S.*, states and what is kept for a backward."""

from __future__ import annotations

from typing import Any

from minrnn_gen.call.arguments import Call, Gradients, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.codegen.cpu_vectors import CHUNK_STEPS


def checkpoints_shape(interface: Interface, rows: int, time: int) -> tuple[int, ...]:
    """Return the shape of the states that a forward keeps for its backward: those of a few steps, for each direction.

    Chunks of time are no axis of their own: where time is a symbol of torch, an axis that may be 1 would bound it.
    """
    return (len(interface.runs_reversed), rows * _chunks(time) * _state_values(interface) * interface.hidden_size)


def vectors_of_forward(interface: Interface, call: Call, outputs: Outputs) -> dict[str, Any]:
    """Return the arguments of a forward that other cells' have not."""
    values = _of_call(interface, call, outputs.products)
    wide = [
        (array, interface.states_axes(name))
        for name, array in zip(interface.states, outputs.kept, strict=False)
        if name in interface.vector_states
    ]
    if wide:
        (array, axes), *_ = wide
        by_axis = dict(zip(axes, array.strides, strict=True))
        names = {"row": "b", "time": "t", "channel": "h", "value": "n"}
        values |= {f"states_{name}": by_axis[axis] for name, axis in names.items()}
        values["states_row"] = of_rows(call, by_axis["b"])
    return values


def vectors_of_backward(interface: Interface, call: Call, outputs: Outputs, gradients: Gradients) -> dict[str, Any]:
    """Return the arguments of a backward that other cells' have not."""
    values = _of_call(interface, call, outputs.products)
    values |= _shared(interface, call, "dS", gradients.dshared)
    pairs = zip(interface.vector_parameters, gradients.vectors, strict=True)
    return values | {f"vectors_{name}": array.pointer for name, array in pairs}


def _of_call(interface: Interface, call: Call, checkpoints: Array | None) -> dict[str, Any]:
    return {
        "values": interface.state_size,
        "groups": interface.groups,
        "checkpoints": 0 if checkpoints is None else checkpoints.pointer,
        "checkpoints_row": of_rows(call, _chunks(call.time) * _state_values(interface) * interface.hidden_size),
        **_shared(interface, call, "S", call.shared),
    }


def _shared(interface: Interface, call: Call, kind: str, arrays: tuple[Array, ...]) -> dict[str, Any]:
    """Return the places and strides of inputs S.*, or of their gradients; a single step has no axis of time."""
    values: dict[str, Any] = {}
    for name, array in zip(interface.shared, arrays, strict=True):
        axes = interface.shared_axes.replace("d", "")
        axes = axes if len(axes) == len(array.shape) else axes.replace("t", "")
        by_axis = dict(zip(axes, array.strides, strict=True))
        values[f"{kind}_{name}"] = array.pointer
        of_axes = {
            "row": of_rows(call, by_axis["b"]),
            "time": by_axis.get("t", 0),
            "group": by_axis["k"],
            "value": by_axis["n"],
        }
        values |= {f"{axis}_{kind}_{name}": stride for axis, stride in of_axes.items()}
    return values


def _chunks(time: int) -> int:
    """Return into how many chunks time is cut."""
    return (time + CHUNK_STEPS - 1) // CHUNK_STEPS


def of_rows(call: Call, stride: int) -> int:
    """Return the stride from a sequence to the next one: packed ones lie in one row."""
    return 0 if call.sequences.cu_seqlens is not None else stride


def _state_values(interface: Interface) -> int:
    """Return how many values a channel has of all states."""
    wide = len(interface.vector_states)
    return wide * interface.state_size + len(interface.states) - wide
