"""Cells of coupled states in NumPy by scans of maps, block by block, and their gradients; short calls step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy

from minrnn_gen.cell.lowering_blocks import LoweredBlocks, LoweredBlocksBackward
from minrnn_gen.cell.lowering_steps import LoweredMap
from minrnn_gen.cpu.call import BackwardCall, ForwardCall, StepMarks, narrowed
from minrnn_gen.cpu.maps import scan_maps
from minrnn_gen.cpu.recurrence import PARALLEL_ELEMENTS_MOST, PARALLEL_STEPS_LEAST, ScanMethod, Values, scan
from minrnn_gen.cpu.steps import StepsGradients, run_steps, run_steps_backward


def run_blocks(cell: LoweredBlocks, call: ForwardCall, *, method: ScanMethod | None = None) -> dict[str, Values]:
    """Run a cell whose blocks are affine over time and return its final states.

    Without a `method`, long calls of few elements run in parallel. Maps of several states are composed in float64.
    """
    if not _is_parallel(call.gates, method):
        return run_steps(cell.steps, call)
    constants, states, output = call.constants(), call.entering(cell.steps.states), cell.steps.step.restricted(("y",))
    with numpy.errstate(all="ignore"):
        for part in call.parts():
            values, marked = constants | call.values(cell.steps.gates, part), call.marks[part]
            for block in cell.maps:
                histories = _scanned(block, values, [states[name] for name in block.states], marked, call.y[part].shape)
                for name, history in zip(block.states, histories, strict=True):
                    after = history[1:].astype(call.arithmetic)
                    before = numpy.concatenate([states[name][None], after[:-1]])
                    values |= {f"state_{name}": after, f"previous_{name}": marked.cut_off(before)}
                    states[name] = after[-1].copy()
                    call.keep(name, part, after)
            call.write(part, output.evaluate({name: values[name] for name in output.inputs})["y"])
    return states


def run_blocks_backward(cell: LoweredBlocksBackward, call: BackwardCall, *, method: ScanMethod | None = None) -> StepsGradients:
    """Write the gradient of x and return the others; arguments are those of `steps.run_steps_backward`.

    The gradients of the states are scans by the Jacobians of the steps, which are affine maps for every cell.
    """
    steps, gates, dy, zero = cell.steps, call.gates, call.dy, call.zero
    # A scan multiplies by coefficients of 0 where a step passes nothing on: 0 times NaN is NaN.
    if not _is_parallel(gates, method) or not (method or call.is_finite()):
        return run_steps_backward(steps, call)
    constants, arriving = call.constants(), call.arriving(steps.states)
    labels = [*(f"W_{gate}" for gate in steps.gates), *(f"parameter_{name}" for name in steps.parameters)]
    sums = numpy.zeros((len(labels), *gates.shape[3:]))
    with numpy.errstate(all="ignore"):
        for part in call.parts_back():
            values, marked, shape = constants | call.values(steps.gates, part), call.marks[part], dy[part].shape
            values |= {f"previous_{name}": call.previous(name, part) for name in steps.read_states}
            for block in cell.maps:
                initials = [arriving[name] for name in block.states]
                histories = _scanned(block, values, initials, marked, shape, reverse=True)
                for name, history in zip(block.states, histories, strict=True):
                    gradient = history.astype(call.arithmetic)[::-1]
                    values[f"gradient_state_{name}"], arriving[name] = gradient[1:], gradient[0].copy()
            gradients = steps.backward.evaluate({name: values[name] for name in steps.backward.inputs})
            for index, label in enumerate(labels):
                gradient = marked.within_or(zero, narrowed(gradients[f"gradient_{label}"], shape))
                sums[index] += gradient.sum((0, 1), dtype=numpy.float64)
                if index < len(steps.gates):
                    call.dx[part, :, index] = gradient
            call.write_inputs(part, gradients)
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

    Where a forward begins at a reset, b is added after the cut. Against time, no gradient passes a reset.
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
