"""What a backward returns: its arrays by the names of a call, each in the form of the array that it is the gradient of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import Interface


@dataclass(frozen=True, slots=True)
class RawGradients:
    """The gradients as computed: of x and the initial states (in the cell's order), and three that are wider than their arrays.

    All are arrays of a library. `weight` [gates * hidden, input], `dR` of the shape of R, and `sums` [runs, gates + recurrent
    gates + parameters, hidden], of bias, recurrent bias and parameters, are in the arithmetic dtype or a wider one; None where
    there is nothing that they are gradients of.
    """

    x: Any
    weight: Any
    initial: Sequence[Any]
    sums: Any
    dR: Any = None


def gradients_by_name(
    interface: Interface, call: Call, raw: RawGradients, in_form_of: Callable[[Array, Any], Any]
) -> dict[str, Any]:
    """Return {"x", "state", and where they were given "weight", "bias", "R", "recurrent_bias", "parameters"}.

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
        pairs = enumerate(zip(interface.parameters, call.parameters, strict=True), parameters_from)
        named["parameters"] = {name: in_form_of(vector, raw.sums[:, index]) for index, (name, vector) in pairs}
    return named
