"""Steps on the states of a pool in host memory, whose slots were checked: rows are read from it and written back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, as_numpy
from minrnn_gen.call.results import StepResult
from minrnn_gen.gpu import memory


def step_on_pool(step: Callable[[Call], StepResult], call: Call) -> StepResult:
    """Run one step by `step`, which takes rows of states; the states of the result are in the pool alone."""
    pool = call.pool
    assert pool is not None
    reads, writes = as_numpy(pool.slots), as_numpy(pool.written)
    is_live = reads != pool.pad_slot

    def row_of(state: Array) -> Array:
        row = memory.new_array(call.x, (call.batch, *state.shape[1:]), state.dtype)
        values = as_numpy(row)
        values[~is_live] = 0
        values[is_live] = as_numpy(state)[reads[is_live]]
        return row

    initial = tuple(state if state is None else row_of(state) for state in call.initial)
    result = step(replace(call, initial=initial, pool=None))
    is_kept = is_live & (writes != pool.pad_slot)
    for state, final in zip(call.initial, result.final, strict=True):
        if state is not None:
            as_numpy(state)[writes[is_kept]] = as_numpy(memory.inspect(final, "state"))[is_kept]
    as_numpy(memory.inspect(result.y, "y"))[~is_live] = 0
    return StepResult(result.y, ())
