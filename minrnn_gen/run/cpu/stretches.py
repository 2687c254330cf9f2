"""Sequences of a call in NumPy that run at once: all of them, or packed sequences one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, as_numpy
from minrnn_gen.cpu.call import StepMarks
from minrnn_gen.cpu.recurrence import Values


@dataclass(frozen=True)
class Stretch:
    """Sequences that run at once: their steps and rows in x and y, and their rows of the states."""

    steps: slice
    rows: slice
    sequences: slice
    reverse: bool
    marks: StepMarks

    def of(self, array: Values) -> Values:
        """View the part of an array [T, rows, ...] in the order in which it is run."""
        part = array[self.steps, self.rows]
        return part[::-1] if self.reverse else part

    def of_each(self, arrays: Mapping[str, Values]) -> dict[str, Values]:
        """View the part of each array."""
        return {name: self.of(array) for name, array in arrays.items()}

    def of_states(self, states: Mapping[str, Values]) -> dict[str, Values]:
        """View the part of each state, [sequences, ...]."""
        return {name: state[self.sequences] for name, state in states.items()}


def stretches_of(call: Call) -> Iterator[Stretch]:
    """Yield all sequences of a call of one direction as one stretch, or each packed sequence as its own."""
    sequences, order = call.sequences, slice(None, None, -1 if call.reverse else 1)
    resets = None if sequences.resets is None else as_numpy(sequences.resets).T
    if sequences.cu_seqlens is not None:
        ends = as_numpy(sequences.cu_seqlens).tolist()
        for index, (begin, end) in enumerate(pairwise(ends)):
            marks = StepMarks(None if resets is None else resets[begin:end][order])
            yield Stretch(slice(begin, end), slice(None), slice(index, index + 1), call.reverse, marks)
        return
    within = None if sequences.lengths is None else _within_lengths(sequences.lengths, call.time)
    marks = StepMarks(*(None if steps is None else steps[order] for steps in (resets, within)))
    yield Stretch(slice(None), slice(None), slice(None), call.reverse, marks)


def _within_lengths(lengths: Array, time: int) -> Values:
    """Return [T, B]: which steps lie within their sequence."""
    within: Values = numpy.arange(time)[:, None] < as_numpy(lengths)
    return within
