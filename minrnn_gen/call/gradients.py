"""What a backward returns: its arrays by the names of a call, each in the form of the array that it is the gradient of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minrnn_gen.call.arguments import PARAMETERS_FROM, SEQUENCES_FROM, Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface


@dataclass(frozen=True, slots=True)
class RawGradients:
    """The gradients as computed: of x and the initial states (in the cell's order), and three that are wider than their arrays.

    All are arrays of a library. `weight` [gates * hidden, input], `dR` of the shape of R, and `sums` [runs, gates + recurrent
    gates + parameters, hidden], of bias, recurrent bias and parameters, are in the arithmetic dtype or a wider one; None where
    there is nothing that they are gradients of. `vectors` [runs, hidden, n] are such sums too, by the names of parameters with
    the axis n; `shared` are the gradients of the inputs S.*.
    """

    x: Any
    weight: Any
    initial: Sequence[Any]
    sums: Any
    dR: Any = None
    vectors: Mapping[str, Any] = field(default_factory=dict)
    shared: Sequence[Any] = ()


def gradients_by_name(
    interface: Interface, call: Call, raw: RawGradients, in_form_of: Callable[[Array, Any], Any]
) -> dict[str, Any]:
    """Return {"x", "state", and where they were given "weight", "bias", "R", "recurrent_bias", "parameters", "shared"}.

    `in_form_of(array, gradient)` turns a gradient into the library, shape and dtype of its array.
    """
    named: dict[str, Any] = {"x": raw.x, "state": dict(zip(interface.states, raw.initial, strict=True))}
    if call.weight is not None:
        named["weight"] = in_form_of(call.weight, raw.weight)
    gates = len(interface.gates)
    parameters_from = gates + len(interface.recurrent_gates)
    if call.bias is not None:
        named["bias"] = in_form_of(call.bias, raw.sums if interface.summed_count == gates else raw.sums[:, :gates])
    if call.R is not None:
        named["R"] = in_form_of(call.R, raw.dR)
    if call.recurrent_bias is not None:
        named["recurrent_bias"] = in_form_of(call.recurrent_bias, raw.sums[:, gates:parameters_from])
    if call.parameters:
        rows = {name: raw.sums[:, row] for row, name in enumerate(interface.summed_parameters, parameters_from)}
        pairs = zip(interface.parameters, call.parameters, strict=True)
        named["parameters"] = {name: in_form_of(vector, {**rows, **raw.vectors}[name]) for name, vector in pairs}
    if call.shared:
        named["shared"] = dict(zip(interface.shared, raw.shared, strict=True))
    return named


def gradients_by_slot(interface: Interface, tensors: Sequence[Any], raw: RawGradients) -> list[Any]:
    """Return the gradients of tensors of torch by slot, each in the form of its tensor, None where there is none of it.

    No two overlap, since autograd adds to them; parts of the sums over time lie side by side in one buffer.
    """
    x, R, weight, bias, recurrent_bias, *_ = tensors
    gates = len(interface.gates)
    behind_gates = gates + len(interface.recurrent_gates)
    sums = raw.sums
    gradients = [None if raw.x is None else raw.x.view(x.shape), None if R is None else _in_form_of(R, raw.dR)]
    gradients += [None if weight is None else _in_form_of(weight, raw.weight)]
    gradients += [None if bias is None else _in_form_of(bias, sums[:, :gates] if gates < interface.summed_count else sums)]
    gradients.append(None if recurrent_bias is None else _in_form_of(recurrent_bias, sums[:, gates:behind_gates]))
    gradients += [None] * (PARAMETERS_FROM - SEQUENCES_FROM)
    states_from = PARAMETERS_FROM + len(interface.parameters)
    vectors = tensors[PARAMETERS_FROM:states_from]
    rows = {name: sums[:, row] for row, name in enumerate(interface.summed_parameters, behind_gates)}
    of_names = {**rows, **raw.vectors}
    named = zip(interface.parameters, vectors, strict=True)
    gradients += [None if vector is None else _in_form_of(vector, of_names[name]) for name, vector in named]
    pairs = zip(tensors[states_from:], (*raw.initial, *raw.shared), strict=True)
    return gradients + [None if tensor is None else gradient for tensor, gradient in pairs]


def _in_form_of(tensor: Any, gradient: Any) -> Any:
    """Return a gradient in the dtype and shape of a tensor, contiguous."""
    if gradient.dtype is not tensor.dtype:
        gradient = gradient.to(tensor.dtype)
    # Of R it has more axes, and with several heads gaps.
    if gradient.shape != tensor.shape:
        gradient = gradient.reshape(tensor.shape)
    return gradient if gradient.is_contiguous() else gradient.contiguous()
