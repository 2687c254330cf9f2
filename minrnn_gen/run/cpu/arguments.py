"""Arguments of native code by name, of calls of one direction; sizes and strides may be expressions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.codegen.cpu_source import CpuPlan, NativePlan
from minrnn_gen.codegen.cpu_vectors import CHUNK_STEPS, SHARED_AXES
from minrnn_gen.program.number import Number
from minrnn_gen.run.cpu.threads import Schedule

# The axes along which a kernel has strides, by their words in the names of its arguments.
_AXES = {"row": "b", "time": "t", "channel": "h", "group": "k", "value": "n"}
_WORDS = ("row", "time", "channel")


class Steps(NamedTuple):
    """The steps of sequences: addresses of each first step and of the counts, 0 for all steps, and the longest count.

    `fills`: steps beyond a sequence are written, too.
    """

    firsts: Any
    counts: Any
    longest: Number
    fills: Number


class ProductGradients(NamedTuple):
    """Output of a backward of one direction of a dense cell, for the gradient of R.

    `outputs`, with `axes`: the output before each step. `dproducts` [rows, T, Gr, H]: the gradients of the products, None where
    the gradients of x serve. `arguments`, shaped like `outputs`: the operands of each round of a step. `places`: indices in R
    of the gates that multiply the output, then of the gates of each round.
    """

    axes: str
    outputs: Array
    dproducts: Array | None
    arguments: tuple[Array, ...]
    places: tuple[tuple[int, ...], ...]


def products_shape(interface: Interface, rows: Number, time: Number) -> tuple[Number, ...]:
    """Return the shape of a forward's saved array in addition to states: products with R, or some states of n values; or ()."""
    runs = len(interface.runs_reversed)
    if interface.has_vectors:
        # Chunks of time are no axis of their own: where time is a symbol of torch, an axis that may be 1 would bound it.
        return (runs, rows * _chunk_values(interface, time))
    if not interface.recurrent_gates:
        return ()
    return (runs, rows, time, len(interface.recurrent_gates), interface.hidden_size)


def forward_arguments(interface: Interface, call: Call, outputs: Outputs, steps: Steps, schedule: Schedule) -> dict[str, Any]:
    """Return the arguments of a forward, which writes products where `outputs` has them."""
    values = _of_call(interface, call, steps, schedule)
    values |= _strides("y_{}", call, outputs.y, Y_AXES[interface.layout])
    values["y"] = outputs.y.pointer
    values |= _named("kept", interface.states, outputs.kept)
    values |= _named("final", interface.states, outputs.final)
    if call.R is not None:
        values["recurrent_bias"] = _place(call.recurrent_bias)
        values |= _products(interface, call, outputs.products)
    if interface.has_vectors:
        values |= _vectors_of_forward(interface, call, outputs)
    return values


def backward_arguments(
    interface: Interface,
    plan: NativePlan,
    call: Call,
    outputs: Outputs,
    incoming: IncomingGradient,
    gradients: Gradients,
    extra: ProductGradients | None,
    clip: float | None,
    steps: Steps,
    schedule: Schedule,
) -> dict[str, Any]:
    """Return the arguments of a backward, whose gradients of products are within `clip`."""
    values = _of_call(interface, call, steps, schedule)
    values |= _strides("y_{}", call, outputs.y, Y_AXES[interface.layout])
    kept = dict(zip(interface.states, outputs.kept, strict=False))
    if isinstance(plan, CpuPlan):
        for state in plan.saved_states:
            values[f"state_{state}"] = (outputs.y if state == plan.saved_in_storage else kept[state]).pointer
    else:
        values |= _vectors_of_backward(interface, call, outputs, gradients)
    values["dy"] = incoming.dy.pointer
    values |= _named("dfinal", interface.states, incoming.dfinal)
    values |= _strides("dx_{}", call, gradients.dx, call.x_axes)
    values |= _gates("dW", interface, gradients.dx, call.x_axes)
    values |= _named("dinitial", interface.states, gradients.dinitial)
    values |= _named("dX", interface.inputs, gradients.dinputs)
    values["sums"] = _place(gradients.sums)
    if call.R is not None:
        values |= _products(interface, call, outputs.products)
        values |= {"clips": clip is not None, "clip": clip or 0}
    if extra is not None:
        values |= _strides("outputs_{}", call, extra.outputs, extra.axes)
        values |= {"outputs": extra.outputs.pointer, "dproducts": _place(extra.dproducts)}
        values |= {f"arguments_{number}": array.pointer for number, array in enumerate(extra.arguments)}
    return values


def _of_call(interface: Interface, call: Call, steps: Steps, schedule: Schedule) -> dict[str, Any]:
    """Return the arguments that a forward and a backward of a call share."""
    resets, parts = call.sequences.resets, interface.precision.parts
    values: dict[str, Any] = {
        "rows": call.batch,
        "time": call.time,
        "steps": steps.longest,
        "firsts": steps.firsts,
        "counts": steps.counts,
        "fills": steps.fills,
        "hidden": interface.hidden_size * parts,
        "heads": interface.heads,
        "head_dim": interface.head_dim * parts,
        "reverse": call.reverse,
        **schedule._asdict(),
        "bias": _place(call.bias),
        "R": _place(call.R),
        **_strides("x_{}", call, call.x, call.x_axes),
        **_gates("W", interface, call.x, call.x_axes),
        **_named("parameter", interface.parameters, call.parameters),
        **_named("initial", interface.states, call.initial),
        **_named("X", interface.inputs, call.inputs),
    }
    if resets is not None:
        values |= {"resets": resets.pointer, "resets_row": _of_rows(call, resets.strides[0]), "resets_time": resets.strides[1]}
    return values


def _strides(
    form: str, call: Call, array: Array, axes: str, words: Sequence[str] = ("row", "time", "channel")
) -> dict[str, Any]:
    """Return the strides of an array by the names of a kernel; a single step has none in time, a complex number is two."""
    by_axis, parts = dict(zip(axes, array.strides, strict=True)), 2 if array.dtype.startswith("complex") else 1
    strides = {word: by_axis.get(_AXES[word], 0) * (1 if word == "channel" else parts) for word in words}
    strides["row"] = _of_rows(call, strides["row"])
    return {form.format(word): stride for word, stride in strides.items()}


def _gates(name: str, interface: Interface, array: Array, axes: str) -> dict[str, Any]:
    """Return the address of each gate's pre-activations."""
    step_bytes = array.strides[axes.index("g")] * array.itemsize
    return {f"{name}_{gate}": array.pointer + index * step_bytes for index, gate in enumerate(interface.gates)}


def _named(kind: str, names: tuple[str, ...], arrays: Sequence[Array | None]) -> dict[str, Any]:
    return {f"{kind}_{name}": _place(array) for name, array in zip(names, arrays, strict=False)}


def _products(interface: Interface, call: Call, products: Array | None) -> dict[str, Any]:
    width = len(interface.recurrent_gates) * interface.hidden_size
    return {"products": _place(products), "products_row": _of_rows(call, call.time * width)}


def _place(array: Array | None) -> Any:
    return 0 if array is None else array.pointer


def _vectors_of_forward(interface: Interface, call: Call, outputs: Outputs) -> dict[str, Any]:
    """Return the arguments of a forward that others lack."""
    values = _vectors_of_call(interface, call, outputs.products)
    kept = zip(interface.states, outputs.kept, strict=False)
    for name, array in [pair for pair in kept if pair[0] in interface.vector_states][:1]:  # they all lie alike
        values |= _strides("states_{}", call, array, interface.states_axes(name), (*_WORDS, "value"))
    return values


def _vectors_of_backward(interface: Interface, call: Call, outputs: Outputs, gradients: Gradients) -> dict[str, Any]:
    """Return the arguments of a backward that others lack."""
    values = _vectors_of_call(interface, call, outputs.products)
    values |= _shared(interface, call, "dS", gradients.dshared)
    pairs = zip(interface.vector_parameters, gradients.vectors, strict=True)
    return values | {f"vectors_{name}": array.pointer for name, array in pairs}


def _vectors_of_call(interface: Interface, call: Call, checkpoints: Array | None) -> dict[str, Any]:
    return {
        "values": interface.state_size,
        "groups": interface.groups,
        "checkpoints": _place(checkpoints),
        "checkpoints_row": _of_rows(call, _chunk_values(interface, call.time)),
        **_shared(interface, call, "S", call.shared),
    }


def _shared(interface: Interface, call: Call, kind: str, arrays: tuple[Array, ...]) -> dict[str, Any]:
    """Return the addresses and strides of inputs S.*, or of their gradients; a single step has no axis of time."""
    values: dict[str, Any] = {}
    for name, array in zip(interface.shared, arrays, strict=True):
        axes = interface.shared_axes.replace("d", "")
        axes = axes if len(axes) == len(array.shape) else axes.replace("t", "")
        values[f"{kind}_{name}"] = array.pointer
        values |= _strides(f"{{}}_{kind}_{name}", call, array, axes, SHARED_AXES)
    return values


def _of_rows(call: Call, stride: Number) -> Number:
    """Return the stride from a sequence to the next one: packed ones lie in one row."""
    return 0 if call.sequences.cu_seqlens is not None else stride


def _chunk_values(interface: Interface, time: Number) -> Number:
    """Return how many values a row saves for a backward: all states at the start of each chunk of time."""
    wide = len(interface.vector_states)
    values = wide * interface.state_size + len(interface.states) - wide
    return (time + CHUNK_STEPS - 1) // CHUNK_STEPS * values * interface.hidden_size
