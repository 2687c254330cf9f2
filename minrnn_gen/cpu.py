"""The CPU target: the cell's own equations in NumPy, vectorised over batch and hidden, time by time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
from numpy.typing import NDArray

from minrnn_gen.cell.lowering import LoweredScan

Values = NDArray[Any]

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
) -> dict[str, Values]:
    """Run an affine-diagonal cell over time and return its final states.

    `gates` [T, B, G, H] and `y` [T, B, H] in any storage dtype and strides (y is written); `bias` [G, H] or None;
    `parameters` {name: [H]}; `initial` {state: [B, H]}. Everything is computed and carried in `arithmetic`
    (numpy.float32 or numpy.float64), and y is rounded to its own dtype. Infinities and NaN follow IEEE 754 without warnings,
    as on a GPU.
    """
    time, batch, _, hidden = gates.shape
    constants = {f"parameter_{name}": value.astype(arithmetic) for name, value in parameters.items()}
    offsets = None if bias is None else bias.astype(arithmetic)
    states = {name: initial[name].astype(arithmetic) for name in cell.states}
    block = max(1, BLOCK_ELEMENTS // max(1, batch * hidden))
    with numpy.errstate(all="ignore"):
        for start in range(0, time, block):
            part = slice(start, min(start + block, time))
            inputs = dict(constants)
            for index, gate in enumerate(cell.gates):
                value = gates[part, :, index].astype(arithmetic)
                inputs[f"W_{gate}"] = value if offsets is None else value + offsets[index]
            steps = cell.coefficients.evaluate(inputs)
            outputs = dict(constants) | {name: steps[name] for name in cell.carried}
            for name in cell.states:
                history, states[name] = _walk(steps[f"a_{name}"], steps[f"b_{name}"], states[name], inputs)
                outputs[f"state_{name}"], outputs[f"previous_{name}"] = history[1:], history[:-1]
            needed = {name: outputs[name] for name in cell.output.inputs}
            y[part] = cell.output.evaluate(needed)["y"]
    return states


def _walk(a: Values, b: Values, state: Values, inputs: Mapping[str, Values]) -> tuple[Values, Values]:
    """Return all states [T + 1, B, H], the initial one first, and the last."""
    shape = next(iter(inputs[name] for name in inputs if name.startswith("W_"))).shape
    a, b = numpy.broadcast_to(a, shape), numpy.broadcast_to(b, shape)
    history = numpy.empty((shape[0] + 1, *shape[1:]), state.dtype)
    history[0] = state
    for t in range(shape[0]):
        numpy.multiply(a[t], history[t], out=history[t + 1])
        history[t + 1] += b[t]
    return history, history[-1].copy()


def project(x: Values, weight: Values, arithmetic: Any) -> Values:
    """Return x weightᵀ over the last axis of x [..., I], weight [N, I], by BLAS in `arithmetic`."""
    with numpy.errstate(all="ignore"):
        product: Values = x.astype(arithmetic) @ weight.astype(arithmetic).T
    return product
