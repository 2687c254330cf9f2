"""Results of a backward: arrays by the names of a call, each in the form of the array that it is the gradient of."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.joined import bias_of_sums, biases_by_gate, by_gate
from minrnn_gen.call.results import SlotGradients
from minrnn_gen.call.slots import BIAS, FIXED, RECURRENT_BIAS, WEIGHT, WEIGHTS, R, X


@dataclass(frozen=True, slots=True)
class RawGradients:
    """The gradients as computed: of x and the initial states (in the cell's order), and three that are wider than their arrays.

    All are arrays of a library. `weight` [gates * hidden, input], `dR` of the shape of R, and `sums` [runs, gates + recurrent
    gates + parameters, hidden], of bias, recurrent bias and parameters, are in the arithmetic dtype or a wider one; None if the
    call lacks their arrays. `vectors` [runs, hidden, n] are such sums too, by the names of parameters with the axis n; `shared`
    are the gradients of the inputs S.*, `inputs` of X.*.
    """

    x: Any
    weight: Any
    initial: Sequence[Any]
    sums: Any
    dR: Any = None
    vectors: Mapping[str, Any] = field(default_factory=dict)
    shared: Sequence[Any] = ()
    inputs: Sequence[Any] = ()


AnyGradients = RawGradients | SlotGradients
"""Gradients as computed, or as their arrays are."""


def gradients_by_name(
    interface: Interface, call: Call, raw: AnyGradients, in_form_of: Callable[[Array, Any], Any]
) -> dict[str, Any]:
    """Return {"x", "state", and where they were given "weight", "bias", "R", "recurrent_bias", "parameters", "shared",
    "inputs"}.

    `in_form_of(array, gradient)` turns a gradient into the library, shape and dtype of its array.
    """
    if isinstance(raw, SlotGradients):
        return _of_slots_by_name(interface, call, raw, in_form_of)
    named: dict[str, Any] = {"x": raw.x, "state": dict(zip(interface.states, raw.initial, strict=True))}
    if call.weight is not None:
        named["weight"] = in_form_of(call.weight, raw.weight)
    gates = len(interface.gates)
    if call.bias is not None:
        named["bias"] = in_form_of(call.bias, bias_rows(interface, raw.sums))
    if call.R is not None:
        named["R"] = in_form_of(call.R, raw.dR)
    if call.recurrent_bias is not None:
        named["recurrent_bias"] = in_form_of(call.recurrent_bias, bias_of_sums(interface, raw.sums, gates))
    if call.parameters:
        rows = _parameters_of_sums(interface, raw.sums)
        pairs = zip(interface.parameters, call.parameters, strict=True)
        named["parameters"] = {name: in_form_of(vector, {**rows, **raw.vectors}[name]) for name, vector in pairs}
    if call.shared:
        named["shared"] = dict(zip(interface.shared, raw.shared, strict=True))
    if call.inputs:
        named["inputs"] = dict(zip(interface.inputs, raw.inputs, strict=True))
    return _with_products_by_gate(interface, named)


def _with_products_by_gate(interface: Interface, named: dict[str, Any]) -> dict[str, Any]:
    """Return gradients, with the gradients of products by gate if products have several shapes."""
    if "R" in named and interface.has_unequal_products:
        named["R"] = by_gate(interface, named["R"])
    if "recurrent_bias" in named and interface.has_unequal_biases:
        named["recurrent_bias"] = biases_by_gate(interface, named["recurrent_bias"])
    return named


def bias_rows(interface: Interface, sums: Any) -> Any:
    """Return the gradient of the bias, from sums over batch and time."""
    return sums if interface.summed_count == len(interface.gates) else sums[:, : len(interface.gates)]


def _parameters_of_sums(interface: Interface, sums: Any) -> dict[str, Any]:
    """Return the gradients of parameters without the axis n, from sums over batch and time."""
    first, size = len(interface.gates) + len(interface.recurrent_gates), interface.hidden_size
    rows = {name: sums[:, row] for row, name in enumerate(interface.summed_parameters, first)}
    units = {name: interface.shape_of_parameter(name)[-1] for name in rows}
    return {name: row if units[name] == size else row[:, : units[name]] for name, row in rows.items()}


def _of_slots_by_name(
    interface: Interface, call: Call, raw: SlotGradients, in_form_of: Callable[[Array, Any], Any]
) -> dict[str, Any]:
    slots, arrays = interface.slots, raw.arrays
    named: dict[str, Any] = {"x": arrays[X], "state": dict(zip(interface.states, arrays[slots.states], strict=True))}
    for slot, array in enumerate(call.flat()[WEIGHTS], WEIGHTS.start):
        if array is not None:
            named[FIXED[slot]] = in_form_of(array, arrays[slot])
    if call.parameters:
        pairs = zip(call.parameters, arrays[slots.parameters], strict=True)
        named["parameters"] = dict(zip(interface.parameters, (in_form_of(*pair) for pair in pairs), strict=True))
    return _with_products_by_gate(interface, named)


def gradients_by_slot(interface: Interface, tensors: Sequence[Any], raw: AnyGradients) -> list[Any]:
    """Return the gradients of tensors of torch by slot, each shaped like its tensor, None for an absent tensor.

    No two overlap, since autograd adds to them; parts of the sums over time are adjacent in one buffer.
    """
    slots = interface.slots
    if isinstance(raw, SlotGradients):
        of_states = zip(tensors[slots.states], raw.arrays[slots.states], strict=True)
        return [*raw.arrays[slots.wide], *(None if tensor is None else gradient for tensor, gradient in of_states)]
    gradients = in_forms_of(tensors[slots.wide], wide_by_slot(interface, tensors, raw))
    gradients[X] = None if raw.x is None else raw.x.view(tensors[X].shape)
    pairs = zip(tensors[slots.carried], (*raw.initial, *raw.shared, *raw.inputs), strict=True)
    return gradients + [None if tensor is None else gradient for tensor, gradient in pairs]


def wide_by_slot(interface: Interface, tensors: Sequence[Any], raw: RawGradients) -> list[Any]:
    """Return the gradients of the slots before the states, as they were computed; None for x and for an absent tensor."""
    gates = len(interface.gates)
    sums = raw.sums
    gradients: list[Any] = [None] * len(FIXED)
    if tensors[R] is not None:
        gradients[R] = raw.dR
    if tensors[WEIGHT] is not None:
        gradients[WEIGHT] = raw.weight
    if tensors[BIAS] is not None:
        gradients[BIAS] = bias_rows(interface, sums)
    if tensors[RECURRENT_BIAS] is not None:
        gradients[RECURRENT_BIAS] = bias_of_sums(interface, sums, gates)
    of_names = {**_parameters_of_sums(interface, sums), **raw.vectors} if sums is not None else {**raw.vectors}
    named = zip(interface.parameters, tensors[interface.slots.parameters], strict=True)
    return gradients + [None if vector is None else of_names[name] for name, vector in named]


def in_forms_of(tensors: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """Return gradients of tensors of torch in their dtypes and shapes, contiguous, None where there is none.

    All conversions of dtypes are launched at once: for small layers the host takes longer to launch each than a GPU to run it.
    """
    pairs = zip(tensors, gradients, strict=True)
    # The gradient of R has more axes.
    formed = [None if wide is None else wide if wide.shape == of.shape else wide.reshape(of.shape) for of, wide in pairs]
    others = [at for at, wide in enumerate(formed) if wide is not None and wide.dtype is not tensors[at].dtype]
    if others:
        cast = [tensors[at].new_empty(tensors[at].shape) for at in others]
        sys.modules["torch"]._foreach_copy_(cast, [formed[at] for at in others])
        for at, gradient in zip(others, cast, strict=True):
            formed[at] = gradient
    # The gradient of R has gaps with several heads.
    return [gradient if gradient is None or gradient.is_contiguous() else gradient.contiguous() for gradient in formed]
