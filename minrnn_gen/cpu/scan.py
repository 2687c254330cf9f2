"""Scans of affine-diagonal cells in NumPy and their gradients, vectorised over batch and hidden, in blocks of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy

from minrnn_gen.cell.lowering import LoweredScan, LoweredScanBackward
from minrnn_gen.cpu.recurrence import Cuts, ScanMethod, Values, scan, scan_in_logarithms

# Coefficients are computed for as many steps at once as keep the temporaries in the last-level cache.
BLOCK_ELEMENTS = 1 << 20


@dataclass(frozen=True)
class StepMarks:
    """Which steps begin with all states 0, and which lie within their sequence: bool [T, B] each; None for none, and for all.

    What is not within a sequence is passed over: states go through unchanged, y and gradients are 0 there. Selected by them,
    never multiplied, NaN does not get where it does not belong.
    """

    resets: Values | None = None
    within: Values | None = None

    def __getitem__(self, part: slice | int) -> StepMarks:
        """Return the marks of some of the steps, or of one, without the axis of time then."""
        return StepMarks(*(None if mark is None else mark[part] for mark in (self.resets, self.within)))

    @property
    def cuts(self) -> Cuts:
        """The resets within sequences [T, B, 1]; None for none."""
        return None if self.resets is None else self.cuts_of(self.resets[..., None])

    def cuts_of(self, values: Values) -> Cuts:
        """Return the resets within sequences, with as many axes as `values` [T, B, …]; None for none."""
        if self.resets is None:
            return None
        return _spread_like(self.resets if self.within is None else self.resets & self.within, values)

    def within_or(self, otherwise: Any, values: Values) -> Values:
        """Return `values` [T, B, …] where steps are within their sequence, `otherwise` elsewhere."""
        return values if self.within is None else numpy.where(_spread_like(self.within, values), values, otherwise)

    def cut_off(self, values: Values) -> Values:
        """Return `values` [T, B, …] that come from the step before, and 0 at resets."""
        cuts = self.cuts_of(values)
        return values if cuts is None else numpy.where(cuts, values.dtype.type(0), values)


def _spread_like(mark: Values, values: Values) -> Values:
    return mark.reshape(*mark.shape, *(1,) * (values.ndim - mark.ndim))


def narrowed(value: Values, shape: tuple[int, ...]) -> Values:
    """Return a result of a program in `shape`; without the axis n, a shape ends with 1 where the programs' values have n."""
    if value.shape == shape:
        return value
    return numpy.broadcast_to(value[..., : shape[-1]] if value.ndim else value, shape)


EVERY_STEP = StepMarks()


def run_scan(
    cell: LoweredScan,
    gates: Values,
    *,
    bias: Values | None,
    parameters: Mapping[str, Values],
    initial: Mapping[str, Values],
    arithmetic: Any,
    y: Values,
    all_states: Mapping[str, Values] | None = None,
    marks: StepMarks = EVERY_STEP,
    method: ScanMethod | None = None,
    shared: Mapping[str, Values] | None = None,
    channel_inputs: Mapping[str, Values] | None = None,
) -> dict[str, Values]:
    """Run an affine-diagonal cell over time and return its final states.

    `gates` [T, B, G, H] and `y` [T, B, H] in any storage dtype and strides (y is written); `bias` [G, H] or None;
    `parameters` {name: [H]}; `initial` {state: [B, H]}; `marks` are the steps' resets and lengths. Of a cell with the axis n
    they have one more axis after H, of n or of 1, and `shared` {name: [T, B, H or 1, n]} are its inputs S.*.
    `channel_inputs` {name: [T, B, H]} are inputs X.*. Everything is
    computed and carried in `arithmetic` (numpy.float32 or numpy.float64), and y is rounded to its own dtype. `all_states`
    {state: [T, B, H]}, of any of the states, are written as well. `method` is how the recurrence is computed, chosen by the
    sizes where None (`recurrence.scan`).
    Infinities and NaN follow IEEE 754 without warnings, as on a GPU.
    """
    constants = {f"parameter_{name}": value.astype(arithmetic) for name, value in parameters.items()}
    states = {name: initial[name].astype(arithmetic) for name in cell.states}
    zero, unit = numpy.dtype(arithmetic).type(0), numpy.dtype(arithmetic).type(1)
    recur = scan_in_logarithms if cell.scan_arithmetic == "log" else scan
    with numpy.errstate(all="ignore"):
        for part in time_blocks(gates, states.values()):
            inputs = constants | gate_values(cell.gates, gates[part], bias, arithmetic)
            inputs |= input_values(shared, channel_inputs, part, arithmetic)
            steps, marked = cell.coefficients.evaluate(inputs), marks[part]
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
                if all_states is not None and name in all_states:
                    all_states[name][part] = marked.within_or(zero, history[1:])
            needed = {name: outputs[name] for name in cell.output.inputs}
            y[part] = marked.within_or(zero, narrowed(cell.output.evaluate(needed)["y"], y[part].shape))
    return states


def time_blocks(gates: Values, states: Iterable[Values]) -> Iterator[slice]:
    """Yield the time steps of `gates` [T, B, G, H] in blocks, in their order; `states` are those of one step."""
    time = len(gates)
    block = max(1, BLOCK_ELEMENTS // max(1, *(state.size for state in states)))
    for start in range(0, time, block):
        yield slice(start, min(start + block, time))


def input_values(
    shared: Mapping[str, Values] | None, channel_inputs: Mapping[str, Values] | None, part: slice, arithmetic: Any
) -> dict[str, Values]:
    """Return {S_<name>: some of its steps} of inputs S.* [T, …], and {X_<name>: …} of inputs X.*, in `arithmetic`."""
    kinds = ("S", shared), ("X", channel_inputs)
    return {
        f"{kind}_{name}": values[part].astype(arithmetic) for kind, named in kinds for name, values in (named or {}).items()
    }


def gate_values(names: tuple[str, ...], gates: Values, bias: Values | None, arithmetic: Any) -> dict[str, Values]:
    """Return {W_<gate>: [T, B, H]} of gates [T, B, G, H] in `arithmetic`, bias [G, H] added; H may have 1 after it."""
    offsets = None if bias is None else bias.astype(arithmetic)
    values = {}
    for index, name in enumerate(names):
        value = gates[:, :, index].astype(arithmetic)
        values[f"W_{name}"] = value if offsets is None else value + offsets[index]
    return values


def project(x: Values, weight: Values, arithmetic: Any) -> Values:
    """Return x weightᵀ over the last axis of x [..., I], weight [N, I], by BLAS in `arithmetic`."""
    with numpy.errstate(all="ignore"):
        product: Values = x.astype(arithmetic) @ weight.astype(arithmetic).T
    return product


@dataclass(frozen=True)
class ScanGradients:
    """Gradients other than that of x: `initial` {state: [B, H]}, `parameters` {name: [H]}, `bias` [G, H] whether given or not.

    The sums over batch and time, of the latter two, are in float64. Of a cell with the axis n they have one more of 1, and its
    parameters with it are `vectors` {name: [H, n]}.
    """

    initial: dict[str, Values]
    parameters: dict[str, Values]
    bias: Values
    vectors: dict[str, Values] = field(default_factory=dict)

    @property
    def sums(self) -> Values:
        """Gradients of bias and parameters: [gates + parameters, H]."""
        return numpy.concatenate([self.bias, *(parameter[None] for parameter in self.parameters.values())])


def run_scan_backward(
    cell: LoweredScanBackward,
    gates: Values,
    *,
    bias: Values | None,
    parameters: Mapping[str, Values],
    initial: Mapping[str, Values],
    states: Mapping[str, Values],
    dy: Values,
    dfinal: Mapping[str, Values] | None,
    arithmetic: Any,
    dx: Values,
    marks: StepMarks = EVERY_STEP,
    method: ScanMethod | None = None,
    shared: Mapping[str, Values] | None = None,
    dshared: Mapping[str, Values] | None = None,
    channel_inputs: Mapping[str, Values] | None = None,
    dinputs: Mapping[str, Values] | None = None,
) -> ScanGradients:
    """Write the gradient of x and return the others.

    `gates`, `bias`, `parameters`, `initial`, `marks` and `method` as given to `run_scan`; `states` {name: [T, B, H]} has the
    state after each step for each of `cell.read_states` (y itself for `cell.output_state`); `dy` [T, B, H] and `dfinal`
    {state: [B, H]}, where a missing one is 0, are the incoming gradients; `dx` [T, B, G, H] is written. Dtypes and strides may
    be any; all is computed in `arithmetic` (numpy.float32 or numpy.float64) and dx is rounded to its own dtype. `dshared`
    {name: [T, B, groups, n]}, the gradients of `shared`, are written, summed over the channels of each group; `dinputs`
    {name: [T, B, H]} are those of `channel_inputs`.
    """
    constants = {f"parameter_{name}": value.astype(arithmetic) for name, value in parameters.items()}
    incoming = {name: numpy.zeros(initial[name].shape, arithmetic) for name in cell.states}
    incoming |= {name: value.astype(arithmetic) for name, value in (dfinal or {}).items()}
    parameter_sums = {name: numpy.zeros(parameters[name].shape) for name in cell.parameters}
    bias_sum = numpy.zeros(gates.shape[2:])
    zero = numpy.dtype(arithmetic).type(0)
    with numpy.errstate(all="ignore"):
        for part in reversed(list(time_blocks(gates, incoming.values()))):
            inputs, marked = constants | gate_values(cell.gates, gates[part], bias, arithmetic), marks[part]
            inputs |= input_values(shared, channel_inputs, part, arithmetic)
            inputs["gradient_y"] = dy[part].astype(arithmetic)
            for name in cell.read_states:
                history = history_of(states[name], initial[name].astype(arithmetic), marks, part)
                inputs[f"state_{name}"], inputs[f"previous_{name}"] = history[1:], marked.cut_off(history[:-1])
            for name, (deltas, before) in _deltas(cell, inputs, incoming, marked, method).items():
                inputs[f"delta_{name}"], incoming[name] = deltas, before
            gradients = cell.gradients.evaluate({name: inputs[name] for name in cell.gradients.inputs})
            steps = dy[part].shape[:2]
            for index, gate in enumerate(cell.gates):
                gradient = marked.within_or(zero, narrowed(gradients[f"gradient_W_{gate}"], dy[part].shape))
                dx[part, :, index] = gradient
                bias_sum[index] += _over_batch_and_time(gradient)
            for name, written in (dinputs or {}).items():
                written[part] = marked.within_or(zero, narrowed(gradients[f"gradient_X_{name}"], dy[part].shape))
            for name, total in parameter_sums.items():
                total += _over_batch_and_time(
                    marked.within_or(zero, narrowed(gradients[f"gradient_parameter_{name}"], (*steps, *total.shape)))
                )
            for name, written in (dshared or {}).items():
                gradient = gradients[f"gradient_S_{name}"]
                shape = (*dy[part].shape[:3], written.shape[-1])
                write_shared(written[part], marked.within_or(zero, numpy.broadcast_to(gradient, shape)))
    vectors = {name: parameter_sums.pop(name) for name in cell.vectors.parameters}
    return ScanGradients(initial=incoming, parameters=parameter_sums, bias=bias_sum, vectors=vectors)


def write_shared(written: Values, gradient: Values) -> None:
    """Write the gradient of an input S.* [T, B, groups, n], given that of each channel [T, B, H, n]; summed in float64."""
    by_group = gradient.reshape(*written.shape[:3], gradient.shape[2] // written.shape[2], written.shape[3])
    written[...] = by_group.sum(axis=3, dtype=numpy.float64)


def history_of(states: Values, initial: Values, marks: StepMarks, part: slice) -> Values:
    """Return the state before the first step of `part` and after each, [steps + 1, B, H], as the forward had it.

    Where a forward passed over the steps before a sequence, the state was the initial one, whatever `states` has there.
    """
    first = max(part.start - 1, 0)
    values = marks[first : part.stop].within_or(initial, states[first : part.stop].astype(initial.dtype))
    return values if part.start else numpy.concatenate([initial[None], values])


def _deltas(
    cell: LoweredScanBackward,
    inputs: Mapping[str, Values],
    incoming: Mapping[str, Values],
    marks: StepMarks,
    method: ScanMethod | None,
) -> dict[str, tuple[Values, Values]]:
    """Return {state: (its gradient after each step of a block, what arrives before it)}, given what arrives after it."""
    steps, dtype = len(inputs["gradient_y"]), inputs["gradient_y"].dtype
    adjoint = cell.adjoint.evaluate({name: inputs[name] for name in cell.adjoint.inputs})

    # Steps that are passed over pass on what arrives: a = 1, and nothing is added.
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
