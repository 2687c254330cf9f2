"""The CPU target of cells that are no scan: one step after the other in NumPy, vectorised over batch and hidden."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from minrnn_gen.cell.lowering_steps import LoweredSteps
from minrnn_gen.cpu.matmul import RecurrentProduct
from minrnn_gen.cpu.recurrence import Values
from minrnn_gen.cpu.scan import EVERY_STEP, StepMarks, gate_values, time_blocks


def run_steps(
    cell: LoweredSteps,
    gates: Values,
    *,
    product: RecurrentProduct | None,
    bias: Values | None,
    parameters: Mapping[str, Values],
    initial: Mapping[str, Values],
    arithmetic: Any,
    y: Values,
    all_states: Mapping[str, Values] | None = None,
    marks: StepMarks = EVERY_STEP,
) -> dict[str, Values]:
    """Run any cell over time and return its final states.

    All but `product` is as `cpu.run_scan` takes it. `product`, of a dense cell, multiplies the previous output, a state, as it
    is carried in `arithmetic`, not the y that was rounded to storage.
    """
    constants = {f"parameter_{name}": value.astype(arithmetic) for name, value in parameters.items()}
    states = {name: initial[name].astype(arithmetic) for name in cell.states}
    zero = numpy.dtype(arithmetic).type(0)
    with numpy.errstate(all="ignore"):
        for part in time_blocks(gates):
            values = gate_values(cell.gates, gates[part], bias, arithmetic)
            for step in range(part.start, part.stop):
                marked = marks[step]
                inputs = constants | {name: one[step - part.start] for name, one in values.items()}
                inputs |= {f"previous_{name}": marked.cut_off(one) for name, one in states.items()}
                if product is not None:
                    products = product.of(inputs[f"previous_{cell.output_state}"])
                    inputs |= {f"R_{gate}": one for gate, one in zip(cell.recurrent_gates, products, strict=True)}
                found = cell.step.evaluate(inputs)
                for name, before in states.items():
                    after = spread(found[f"state_{name}"], before)
                    states[name] = marked.within_or(before, after)
                    if all_states is not None and name in all_states:
                        all_states[name][step] = marked.within_or(zero, after)
                y[step] = marked.within_or(zero, found["y"])
    return states


def spread(value: Values, like: Values) -> Values:
    """Return a result of a program, which has no more axes than its inputs, in the shape and dtype of `like`."""
    return value if value.shape == like.shape else numpy.broadcast_to(value.astype(like.dtype), like.shape)
