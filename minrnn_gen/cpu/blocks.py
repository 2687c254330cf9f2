"""Cells of coupled states in NumPy by scans of maps, block after block, and their gradients; short calls step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from minrnn_gen.cell.lowering_blocks import LoweredBlocks, LoweredBlocksBackward, LoweredMap
from minrnn_gen.cpu.maps import scan_maps
from minrnn_gen.cpu.recurrence import PARALLEL_ELEMENTS_MOST, PARALLEL_STEPS_LEAST, ScanMethod, Values, scan
from minrnn_gen.cpu.scan import EVERY_STEP, StepMarks, gate_values, history_of, input_values, narrowed, time_blocks
from minrnn_gen.cpu.steps import StepsGradients, run_steps, run_steps_backward


def run_blocks(
    cell: LoweredBlocks,
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
    """Run a cell whose blocks are affine over time and return its final states; all is as `scan.run_scan` takes it.

    Without a `method` many steps of few elements go in parallel. Maps of several states are composed in float64.
    """
    if not _is_parallel(gates, method):
        return run_steps(
            cell.steps,
            gates,
            products=None,
            bias=bias,
            parameters=parameters,
            initial=initial,
            arithmetic=arithmetic,
            y=y,
            all_states=all_states,
            marks=marks,
            shared=shared,
            channel_inputs=channel_inputs,
        )
    constants = {f"parameter_{name}": value.astype(arithmetic) for name, value in parameters.items()}
    states = {name: initial[name].astype(arithmetic) for name in cell.steps.states}
    zero, output = numpy.dtype(arithmetic).type(0), cell.steps.step.restricted(("y",))
    with numpy.errstate(all="ignore"):
        for part in time_blocks(gates, states.values()):
            values = constants | gate_values(cell.steps.gates, gates[part], bias, arithmetic)
            values |= input_values(shared, channel_inputs, part, arithmetic)
            marked = marks[part]
            for block in cell.maps:
                histories = _scanned(block, values, [states[name] for name in block.states], marked, y[part].shape)
                for name, history in zip(block.states, histories, strict=True):
                    after = history[1:].astype(arithmetic)
                    before = numpy.concatenate([states[name][None], after[:-1]])
                    values |= {f"state_{name}": after, f"previous_{name}": marked.cut_off(before)}
                    states[name] = after[-1].copy()
                    if all_states is not None and name in all_states:
                        all_states[name][part] = marked.within_or(zero, after)
            results = output.evaluate({name: values[name] for name in output.inputs})
            y[part] = marked.within_or(zero, narrowed(results["y"], y[part].shape))
    return states


def run_blocks_backward(
    cell: LoweredBlocksBackward,
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
) -> StepsGradients:
    """Write the gradient of x and return the others; all is as `steps.run_steps_backward` takes it.

    The gradients of the states are scans by the Jacobians of the steps, which are affine maps of any cell's.
    """
    if not _is_parallel(gates, method):
        return run_steps_backward(
            cell.steps,
            gates,
            products=None,
            clip=None,
            bias=bias,
            parameters=parameters,
            initial=initial,
            states=states,
            dy=dy,
            dfinal=dfinal,
            arithmetic=arithmetic,
            dx=dx,
            marks=marks,
            shared=shared,
            dshared=dshared,
            channel_inputs=channel_inputs,
            dinputs=dinputs,
        )
    steps = cell.steps
    constants = {f"parameter_{name}": value.astype(arithmetic) for name, value in parameters.items()}
    arriving = {name: numpy.zeros(initial[name].shape, arithmetic) for name in steps.states}
    arriving |= {name: value.astype(arithmetic) for name, value in (dfinal or {}).items()}
    labels = [*(f"W_{gate}" for gate in steps.gates), *(f"parameter_{name}" for name in steps.parameters)]
    sums, zero = numpy.zeros((len(labels), *gates.shape[3:])), numpy.dtype(arithmetic).type(0)
    with numpy.errstate(all="ignore"):
        for part in reversed(list(time_blocks(gates, arriving.values()))):
            marked, shape = marks[part], dy[part].shape
            values = constants | gate_values(steps.gates, gates[part], bias, arithmetic)
            values |= input_values(shared, channel_inputs, part, arithmetic) | {"gradient_y": dy[part].astype(arithmetic)}
            for name in steps.read_states:
                history = history_of(states[name], initial[name].astype(arithmetic), marks, part)
                values[f"previous_{name}"] = marked.cut_off(history[:-1])
            for block in cell.maps:
                initials = [arriving[name] for name in block.states]
                histories = _scanned(block, values, initials, marked, shape, reverse=True)
                for name, history in zip(block.states, histories, strict=True):
                    gradient = history.astype(arithmetic)[::-1]
                    values[f"gradient_state_{name}"], arriving[name] = gradient[1:], gradient[0].copy()
            gradients = steps.backward.evaluate({name: values[name] for name in steps.backward.inputs})
            for index, label in enumerate(labels):
                gradient = marked.within_or(zero, narrowed(gradients[f"gradient_{label}"], shape))
                sums[index] += gradient.sum((0, 1), dtype=numpy.float64)
                if index < len(steps.gates):
                    dx[part, :, index] = gradient
            for name, written in (dinputs or {}).items():
                written[part] = marked.within_or(zero, narrowed(gradients[f"gradient_X_{name}"], shape))
    return StepsGradients(arriving, sums, None)


def _is_parallel(gates: Values, method: ScanMethod | None) -> bool:
    elements = gates.shape[1] * gates.shape[3]
    is_chosen = len(gates) >= PARALLEL_STEPS_LEAST and elements <= PARALLEL_ELEMENTS_MOST
    return bool(elements) and (is_chosen if method is None else method == "parallel")


def _scanned(
    block: LoweredMap,
    values: Mapping[str, Values],
    initial: Sequence[Values],
    marks: StepMarks,
    shape: tuple[int, ...],
    *,
    reverse: bool = False,
) -> list[Values]:
    """Return each state before the first step and after each; with `reverse` from the last step to the first.

    Where a forward begins at a reset, b is added after the cut. Against time what is before a reset gets nothing of it.
    """
    results: dict[str, Values] = {}
    for program in block.programs:
        results |= program.evaluate({name: values[name] for name in program.inputs})
    cuts, places = marks.cuts_of(numpy.broadcast_to(numpy.False_, shape)), range(len(block.states))
    form, order = block.form, slice(None, None, -1 if reverse else 1)

    def of(label: str, identity: float) -> Values:
        value = narrowed(results[label].astype(initial[0].dtype), shape)
        value = numpy.where(cuts, value.dtype.type(0), value) if reverse and cuts is not None else value
        return marks.within_or(value.dtype.type(identity), value)[order]

    a = [[of(f"a_{row}_{column}", row == column) for column in places] for row in places]
    b = [of(f"b_{row}", 0) for row in places]
    ordered = None if cuts is None else numpy.broadcast_to(cuts, shape)[order]
    if form in ("scalar", "memory"):
        return [scan(a[place][place], b[place], initial[place], None, ordered) for place in places]
    if form == "rotation":
        turned = scan(_complex(a[0][0], a[1][0]), _complex(*b), _complex(*initial), None, ordered)
        return [turned.real, turned.imag]
    if form == "dual":
        first = scan(a[0][0], b[0], initial[0], None, ordered)
        before = first[:-1] if ordered is None else numpy.where(ordered, first.dtype.type(0), first[:-1])
        return [first, scan(a[1][1], b[1] + a[1][0] * before, initial[1], None, ordered)]
    maps = numpy.stack([numpy.stack(row, -1) for row in a], -2).astype(numpy.float64)
    size = len(block.states)
    states = scan_maps(
        maps.reshape(len(maps), -1, size, size),
        numpy.stack(b, -1).reshape(len(maps), -1, size),
        numpy.stack(initial, -1).reshape(-1, size),
        None if ordered is None else ordered.reshape(len(maps), -1),
    )
    return [states[..., place].reshape(-1, *shape[1:]) for place in places]


def _complex(real: Values, imaginary: Values) -> Values:
    numbers: Values = real + 1j * imaginary.astype(numpy.float64)
    return numbers
