"""The CPU target: the cell's own equations in NumPy, vectorised over batch and hidden, in blocks of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy

from minrnn_gen.cell.lowering import LoweredScan
from minrnn_gen.cpu_recurrence import ScanMethod, Values, scan

# Coefficients are computed for as many steps at once as keep the temporaries in the last-level cache.
BLOCK_ELEMENTS = 1 << 20


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
    method: ScanMethod | None = None,
) -> dict[str, Values]:
    """Run an affine-diagonal cell over time and return its final states.

    `gates` [T, B, G, H] and `y` [T, B, H] in any storage dtype and strides (y is written); `bias` [G, H] or None;
    `parameters` {name: [H]}; `initial` {state: [B, H]}. Everything is computed and carried in `arithmetic`
    (numpy.float32 or numpy.float64), and y is rounded to its own dtype. `all_states` {state: [T, B, H]}, of any of the states,
    are written as well. `method` is how the recurrence is computed, chosen by the sizes where None (`cpu_recurrence.scan`).
    Infinities and NaN follow IEEE 754 without warnings, as on a GPU.
    """
    constants = {f"parameter_{name}": value.astype(arithmetic) for name, value in parameters.items()}
    states = {name: initial[name].astype(arithmetic) for name in cell.states}
    with numpy.errstate(all="ignore"):
        for part in time_blocks(gates):
            inputs = constants | gate_values(cell.gates, gates[part], bias, arithmetic)
            steps = cell.coefficients.evaluate(inputs)
            outputs = dict(constants) | {name: steps[name] for name in cell.carried}
            shape = y[part].shape
            for name in cell.states:
                a, b = (numpy.broadcast_to(steps[f"{letter}_{name}"], shape) for letter in "ab")
                history = scan(a, b, states[name], method)
                outputs[f"state_{name}"], outputs[f"previous_{name}"] = history[1:], history[:-1]
                states[name] = history[-1].copy()
                if all_states is not None and name in all_states:
                    all_states[name][part] = history[1:]
            needed = {name: outputs[name] for name in cell.output.inputs}
            y[part] = cell.output.evaluate(needed)["y"]
    return states


def time_blocks(gates: Values) -> Iterator[slice]:
    """Yield the time steps of `gates` [T, B, G, H] in blocks, in their order."""
    time, batch, _, hidden = gates.shape
    block = max(1, BLOCK_ELEMENTS // max(1, batch * hidden))
    for start in range(0, time, block):
        yield slice(start, min(start + block, time))


def gate_values(names: tuple[str, ...], gates: Values, bias: Values | None, arithmetic: Any) -> dict[str, Values]:
    """Return {W_<gate>: [T, B, H]} of gates [T, B, G, H] in `arithmetic`, bias [G, H] added."""
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
