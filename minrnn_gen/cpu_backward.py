"""The CPU target's gradients: the reversed scan of an affine-diagonal cell in NumPy, in blocks of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from minrnn_gen.cell.lowering import LoweredScanBackward
from minrnn_gen.cpu import gate_values, time_blocks
from minrnn_gen.cpu_recurrence import ScanMethod, Values, scan


@dataclass(frozen=True)
class ScanGradients:
    """Gradients beside that of x: `initial` {state: [B, H]}, `parameters` {name: [H]}, `bias` [G, H] whether given or not."""

    initial: dict[str, Values]
    parameters: dict[str, Values]
    bias: Values


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
    method: ScanMethod | None = None,
) -> ScanGradients:
    """Write the gradient of x and return the others.

    `gates`, `bias`, `parameters`, `initial` and `method` as given to `run_scan`; `states` {name: [T, B, H]} has the state after
    each step for each of `cell.read_states` (y itself for `cell.output_state`); `dy` [T, B, H] and `dfinal` {state: [B, H]},
    where a missing one is 0, are the incoming gradients; `dx` [T, B, G, H] is written. Dtypes and strides may be any; all is
    computed in `arithmetic` (numpy.float32 or numpy.float64), dx is rounded to its own dtype and the rest returned in
    `arithmetic`. Sums over batch and time are accumulated in float64.
    """
    constants = {f"parameter_{name}": value.astype(arithmetic) for name, value in parameters.items()}
    _, batch, _, hidden = gates.shape
    incoming = {name: numpy.zeros((batch, hidden), arithmetic) for name in cell.states}
    incoming |= {name: value.astype(arithmetic) for name, value in (dfinal or {}).items()}
    parameter_sums = {name: numpy.zeros(hidden) for name in cell.parameters}
    bias_sum = numpy.zeros((len(cell.gates), hidden))
    with numpy.errstate(all="ignore"):
        for part in reversed(list(time_blocks(gates))):
            inputs = constants | gate_values(cell.gates, gates[part], bias, arithmetic)
            inputs["gradient_y"] = dy[part].astype(arithmetic)
            for name in cell.read_states:
                current = states[name][part].astype(arithmetic)
                before = initial[name] if part.start == 0 else states[name][part.start - 1]
                inputs[f"state_{name}"] = current
                inputs[f"previous_{name}"] = numpy.concatenate([before[None].astype(arithmetic), current[:-1]])
            for name, (deltas, before) in _deltas(cell, inputs, incoming, method).items():
                inputs[f"delta_{name}"], incoming[name] = deltas, before
            found = cell.gradients.evaluate({name: inputs[name] for name in cell.gradients.inputs})
            for index, gate in enumerate(cell.gates):
                dx[part, :, index] = found[f"gradient_W_{gate}"]
                bias_sum[index] += _over_batch_and_time(found[f"gradient_W_{gate}"], dy[part].shape)
            for name in cell.parameters:
                parameter_sums[name] += _over_batch_and_time(found[f"gradient_parameter_{name}"], dy[part].shape)
    return ScanGradients(
        initial=incoming,
        parameters={name: total.astype(arithmetic) for name, total in parameter_sums.items()},
        bias=bias_sum.astype(arithmetic),
    )


def _deltas(
    cell: LoweredScanBackward, inputs: Mapping[str, Values], incoming: Mapping[str, Values], method: ScanMethod | None
) -> dict[str, tuple[Values, Values]]:
    """Return {state: (its gradient after each step of a block, what arrives before the block)}; `incoming` arrives behind it."""
    shape = inputs["gradient_y"].shape
    adjoint = cell.adjoint.evaluate({name: inputs[name] for name in cell.adjoint.inputs})
    values = {label: numpy.broadcast_to(value, shape) for label, value in adjoint.items()}
    result = {}
    for name in cell.states:
        a, local = values[f"a_{name}"], values[f"e_{name}"]
        last = local[-1] + incoming[name]
        added = local[:-1] + values[f"f_{name}"][1:] if name in cell.looks_back else local[:-1]
        deltas = scan(a[:0:-1], added[::-1], last, method)[::-1]
        before = a[0] * deltas[0]
        result[name] = (deltas, before + values[f"f_{name}"][0] if name in cell.looks_back else before)
    return result


def _over_batch_and_time(gradient: Values, shape: tuple[int, ...]) -> Values:
    total: Values = numpy.broadcast_to(gradient, shape).sum(axis=(0, 1), dtype=numpy.float64)
    return total
