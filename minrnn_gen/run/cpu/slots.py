"""Calls on a pool in host memory, with checked slots: rows of states are read from the pool and written back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, as_numpy
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.results import StepResult
from minrnn_gen.gpu import memory
from minrnn_gen.run.saved import Forward


def step_on_pool(interface: Interface, step: Callable[[Call], StepResult], call: Call) -> StepResult:
    """Run one step, or a call over time, by `step`, which takes rows of states; the new states go to the pool only."""
    result = step(_on_rows(interface, call))
    _into_pool(call, [memory.inspect(final, "state") for final in result.final])
    _clear_padding(interface, call, memory.inspect(result.y, "y"))
    return StepResult(result.y, ())


def forward_on_pool(interface: Interface, forward: Callable[[Call], Forward], call: Call) -> Forward:
    """Run a call over time by `forward`, which takes rows of states."""
    result = forward(_on_rows(interface, call))
    _into_pool(call, result.outputs.final)
    _clear_padding(interface, call, result.outputs.y)
    return result


def _clear_padding(interface: Interface, call: Call, y: Array) -> None:
    """Set y of padding to 0."""
    values, is_padding, ends = as_numpy(y), ~_is_live(call), call.sequences.cu_seqlens
    if ends is not None:
        values[0, numpy.repeat(is_padding, numpy.diff(as_numpy(ends)))] = 0
    else:
        axes = Y_AXES[interface.layout] if "t" in call.x_axes else "bh"
        numpy.moveaxis(values, axes.index("b"), 0)[is_padding] = 0


def _is_live(call: Call) -> Any:
    assert call.pool is not None
    return as_numpy(call.pool.slots) != call.pool.pad_slot


def _on_rows(interface: Interface, call: Call) -> Call:
    """Return a call on rows of states, read from the sequences' slots; zeros for padding and for sequences without a state."""
    pool, arithmetic = call.pool, interface.precision.arithmetic_dtype
    assert pool is not None
    reads, is_read = as_numpy(pool.slots), _is_live(call)
    if pool.has_state is not None:
        is_read &= as_numpy(pool.has_state)

    def row_of(state: Array) -> Array:
        row = memory.new_array(call.x, (call.batch, *state.shape[1:]), arithmetic)
        values = as_numpy(row)
        values[~is_read] = 0
        values[is_read] = as_numpy(state)[reads[is_read]]
        return row

    return replace(call, initial=tuple(state if state is None else row_of(state) for state in call.initial), pool=None)


def _into_pool(call: Call, final: Sequence[Array]) -> None:
    """Write states of sequences into their slots, except for padding and dropped states."""
    pool = call.pool
    assert pool is not None
    writes = as_numpy(pool.written)
    is_kept = _is_live(call) & (writes != pool.pad_slot)
    for state, row in zip(call.initial, final, strict=True):
        if state is not None:
            as_numpy(state)[writes[is_kept]] = as_numpy(row)[is_kept]
