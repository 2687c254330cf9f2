"""The arrays of a call in host memory as NumPy views, time first and in the order in which it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, as_numpy, numpy_dtype
from minrnn_gen.call.interface import Y_AXES, Contract
from minrnn_gen.cpu.recurrence import Values
from minrnn_gen.cpu.scan import StepMarks


@dataclass(frozen=True)
class Stretch:
    """Sequences that are run at once: their steps and rows in x and y, and their places among the states."""

    steps: slice
    rows: slice
    sequences: slice
    reverse: bool
    marks: StepMarks

    def of(self, array: Values) -> Values:
        """View the part of an array [T, rows, ...] in the order in which it is run."""
        part = array[self.steps, self.rows]
        return part[::-1] if self.reverse else part


def stretches_of(call: Call) -> Iterator[Stretch]:
    """Yield all sequences of a call of one direction as one stretch, or packed ones as one each."""
    sequences, order = call.sequences, slice(None, None, -1 if call.reverse else 1)
    resets = None if sequences.resets is None else as_numpy(sequences.resets).T
    if sequences.cu_seqlens is not None:
        ends = as_numpy(sequences.cu_seqlens).tolist()
        for index, (begin, end) in enumerate(pairwise(ends)):
            marks = StepMarks(None if resets is None else resets[begin:end][order])
            yield Stretch(slice(begin, end), slice(None), slice(index, index + 1), call.reverse, marks)
        return
    within = None if sequences.lengths is None else within_lengths(sequences.lengths, call.time)
    marks = StepMarks(*(None if one is None else one[order] for one in (resets, within)))
    yield Stretch(slice(None), slice(None), slice(None), call.reverse, marks)


def within_lengths(lengths: Array, time: int) -> Values:
    """Return [T, B]: which steps lie within their sequence."""
    within: Values = numpy.arange(time)[:, None] < as_numpy(lengths)
    return within


def gates_by_time(call: Call) -> Values:
    """View pre-activations as [T, B, G, H], a single step as T = 1."""
    x, axes = as_numpy(call.x), call.x_axes
    if "t" not in axes:
        x, axes = x[None], "t" + axes
    view: Values = x.transpose([axes.index(axis) for axis in "tbgh"])
    return view


def y_by_time(contract: Contract, y: Array) -> Values:
    """View an array with the axes of y as [T, B, H]."""
    axes = Y_AXES[contract.layout]
    view: Values = as_numpy(y).transpose([axes.index(axis) for axis in "tbh"])
    return view


def vectors_of(contract: Contract, call: Call) -> dict[str, Any]:
    """Return the bias [G, H], or None, and the parameters {name: [H]} of a call of one direction."""
    shape = (len(contract.gates), contract.hidden_size)
    return {
        "bias": None if call.bias is None else as_numpy(call.bias).reshape(shape),
        "parameters": {name: as_numpy(one) for name, one in zip(contract.parameters, call.parameters, strict=True)},
    }


def initial_of(contract: Contract, call: Call, arithmetic: str) -> dict[str, Values]:
    """Return the initial states {name: [B, H]} of a call of one direction, zeros where none were given."""
    zeros = numpy.zeros((call.batch, contract.hidden_size), numpy_dtype(arithmetic))
    given = zip(contract.states, call.initial, strict=True)
    return {name: zeros if one is None else as_numpy(one) for name, one in given}
