"""Scans of affine-diagonal cells in NumPy and their gradients, vectorised over batch and hidden, in blocks of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy

from minrnn_gen.cell.lowering import LoweredScan, LoweredScanBackward
from minrnn_gen.cpu.call import BackwardCall, ForwardCall, StepMarks, narrowed, write_shared
from minrnn_gen.cpu.recurrence import ScanMethod, Values, scan, scan_in_logarithms


def run_scan(cell: LoweredScan, call: ForwardCall, *, method: ScanMethod | None = None) -> dict[str, Values]:
    """Run an affine-diagonal cell over time and return its final states.

    `method`: the algorithm of the recurrence; by default the sizes choose it (`recurrence.scan`).
    """
    constants, states, y = call.constants(), call.entering(cell.states), call.y
    zero, unit = call.zero, numpy.dtype(call.arithmetic).type(1)
    recur = scan_in_logarithms if cell.scan_arithmetic == "log" else scan
    with numpy.errstate(all="ignore"):
        for part in call.parts():
            steps, marked = cell.coefficients.evaluate(constants | call.values(cell.gates, part)), call.marks[part]
            outputs = dict(constants) | {name: steps[name] for name in cell.carried}
            for name in cell.states:
                shape = (len(y[part]), *states[name].shape)
                a, b = (
                    marked.within_or(identity, narrowed(steps[f"{letter}_{name}"], shape))
                    for letter, identity in (("a", unit), ("b", zero))
                )
                cuts = marked.cuts_of(a)
                if cuts is not None:
                    b = numpy.where(cuts, a * zero + b, b)
                history = recur(a, b, states[name], method, cuts)
                outputs[f"state_{name}"], outputs[f"previous_{name}"] = history[1:], marked.cut_off(history[:-1])
                states[name] = history[-1].copy()
                call.keep(name, part, history[1:])
            needed = {name: outputs[name] for name in cell.output.inputs}
            call.write(part, cell.output.evaluate(needed)["y"])
    return states


def project(x: Values, weight: Values, arithmetic: Any) -> Values:
    """Return x weightᵀ over the last axis of x [..., I], weight [N, I], by BLAS in `arithmetic`."""
    with numpy.errstate(all="ignore"):
        product: Values = x.astype(arithmetic) @ weight.astype(arithmetic).T
    return product


@dataclass(frozen=True)
class ScanGradients:
    """Gradients except that of x: `initial` {state: [B, H]}, `parameters` {name: [H]}, `bias` [G, H] even without a bias.

    `parameters` and `bias`, sums over batch and time, are in float64. For a cell with the axis n, these sums have a last axis
    of 1, and gradients of its parameters with n are `vectors` {name: [H, n]}.
    """

    initial: dict[str, Values]
    parameters: dict[str, Values]
    bias: Values
    vectors: dict[str, Values] = field(default_factory=dict)

    @property
    def sums(self) -> Values:
        """Gradients of bias and parameters: [gates + parameters, H]."""
        return numpy.concatenate([self.bias, *(parameter[None] for parameter in self.parameters.values())])


def run_scan_backward(cell: LoweredScanBackward, call: BackwardCall, *, method: ScanMethod | None = None) -> ScanGradients:
    """Write the gradient of x and return the others.

    `states` of the call are those of `cell.read_states`, y itself for `cell.output_state`; `method` as `run_scan` takes it.
    """
    constants, incoming, dy, zero = call.constants(), call.arriving(cell.states), call.dy, call.zero
    parameter_sums = {name: numpy.zeros(call.parameters[name].shape) for name in cell.parameters}
    bias_sum = numpy.zeros(call.gates.shape[2:])
    with numpy.errstate(all="ignore"):
        for part in call.parts_back():
            inputs, marked = constants | call.values(cell.gates, part), call.marks[part]
            for name in cell.read_states:
                history = call.history(name, part)
                inputs[f"state_{name}"], inputs[f"previous_{name}"] = history[1:], marked.cut_off(history[:-1])
            for name, (deltas, before) in _deltas(cell, inputs, incoming, marked, method).items():
                inputs[f"delta_{name}"], incoming[name] = deltas, before
            gradients = cell.gradients.evaluate({name: inputs[name] for name in cell.gradients.inputs})
            steps = dy[part].shape[:2]
            for index, gate in enumerate(cell.gates):
                gradient = marked.within_or(zero, narrowed(gradients[f"gradient_W_{gate}"], dy[part].shape))
                call.dx[part, :, index] = gradient
                bias_sum[index] += _over_batch_and_time(gradient)
            call.write_inputs(part, gradients)
            for name, total in parameter_sums.items():
                total += _over_batch_and_time(
                    marked.within_or(zero, narrowed(gradients[f"gradient_parameter_{name}"], (*steps, *total.shape)))
                )
            for name, written in call.dshared.items():
                gradient = gradients[f"gradient_S_{name}"]
                shape = (*dy[part].shape[:3], written.shape[-1])
                write_shared(written[part], marked.within_or(zero, numpy.broadcast_to(gradient, shape)))
    vectors = {name: parameter_sums.pop(name) for name in cell.vectors.parameters}
    return ScanGradients(initial=incoming, parameters=parameter_sums, bias=bias_sum, vectors=vectors)


def _deltas(
    cell: LoweredScanBackward,
    inputs: Mapping[str, Values],
    incoming: Mapping[str, Values],
    marks: StepMarks,
    method: ScanMethod | None,
) -> dict[str, tuple[Values, Values]]:
    """Return {state: (its gradient after each step of a block, the gradient before it)} from the gradients after it."""
    steps, dtype = len(inputs["gradient_y"]), inputs["gradient_y"].dtype
    adjoint = cell.adjoint.evaluate({name: inputs[name] for name in cell.adjoint.inputs})

    # Skipped steps pass the incoming gradient on: a = 1, and nothing is added.
    def values_of(label: str, state: str) -> Values:
        value = narrowed(adjoint[f"{label}_{state}"], (steps, *incoming[state].shape))
        return marks.within_or(dtype.type(label == "a"), value)

    result = {}
    for name in cell.states:
        a, added = values_of("a", name), values_of("e", name)
        last, cuts = added[-1] + incoming[name], marks.cuts_of(a)
        passed_back = marks.cut_off(values_of("f", name)) if name in cell.looks_back else numpy.zeros_like(added)
        deltas = scan(a[:0:-1], (added[:-1] + passed_back[1:])[::-1], last, method, None if cuts is None else cuts[:0:-1])[::-1]
        before = marks[:1].cut_off(a[:1] * deltas[:1])[0] + passed_back[0]
        result[name] = (deltas, before)
    return result


def _over_batch_and_time(gradient: Values) -> Values:
    total: Values = gradient.sum(axis=(0, 1), dtype=numpy.float64)
    return total
