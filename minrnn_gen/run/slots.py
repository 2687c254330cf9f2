"""Steps on the states of a pool: a kernel's arguments for slots, and states moved between slots and rows for other kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.pool import PoolRows
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import ArrayNames, named_arrays
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.precision import precision_storing
from minrnn_gen.program.number import divided_up, most
from minrnn_gen.run.backend import Recorder
from minrnn_gen.run.launch import Launch, address_or_null, launch_in_grid, named

# The number of axes of y over time; y of a single step lacks the axis of time.
TIME_AXES = 3


def with_slots(specialization: Specialization, call: Call) -> Specialization:
    """Return the specialization of a single step, on the states of a pool where the call has one."""
    first = next((state for state in call.initial if state is not None), None)
    if call.pool is None or first is None:
        return specialization
    return replace(specialization, pool="arithmetic" if first.dtype == _arithmetic(first) else "storage")


def step_states(names: ArrayNames, call: Call, final: Sequence[Array | None]) -> dict[str, Any]:
    """Return a single step's arguments for states: the initial states of its sequences and `final`, or a pool."""
    if call.pool is None:
        return named("initial", names.states, call.initial) | named("final", names.states, final)
    return pool_values(names, call)


def pool_values(names: ArrayNames, call: Call) -> dict[str, Any]:
    """Return a kernel's arguments for a pool and the slots of a call."""
    states = [state for state in call.initial if state is not None]
    assert call.pool is not None
    strides = [state.strides[0] for state in states]
    return {
        **named("pool", names.states, states),
        **dict(zip(named_arrays("slot_stride", names.states), strides, strict=True)),
        **slot_values(call.pool),
    }


def slot_values(pool: PoolRows) -> dict[str, Any]:
    """Return a kernel's arguments for the slots that are read and written."""
    import numpy

    reads, writes = pool.slots, pool.written
    return {
        "slots": reads.address,
        "into_slots": writes.address,
        "wide_slots": numpy.uint32((reads.dtype == "int64") | (writes.dtype == "int64") << 1),
        "slots_stride": reads.strides[0],
        "into_slots_stride": writes.strides[0],
        "slot_count": pool.count,
        "pad_slot": pool.pad_slot,
    }


def new_rows(recorder: Recorder, call: Call, fill: int | None = None) -> tuple[Array, ...]:
    """Allocate states of the sequences of a call on a pool."""
    states = [state for state in call.initial if state is not None]
    return tuple(recorder.new_array((call.batch, *state.shape[1:]), _arithmetic(state), fill=fill) for state in states)


def rows_from_pool(recorder: Recorder, specialization: Specialization, names: ArrayNames, call: Call) -> Call:
    """Read the states of a call from its slots, zeros for padding; return the call on these rows."""
    rows = new_rows(recorder, call)
    _move(recorder, specialization, names, call, rows, None)
    return replace(call, initial=rows, pool=None)


def rows_into_pool(
    recorder: Recorder,
    specialization: Specialization,
    names: ArrayNames,
    call: Call,
    rows: Sequence[Array | None],
    y: Array | None = None,
) -> None:
    """Write states of the sequences of a call into its slots, except None and padding; y of padding is set to 0."""
    _move(recorder, specialization, names, call, rows, y, writes=True)


def _move(
    recorder: Recorder,
    specialization: Specialization,
    names: ArrayNames,
    call: Call,
    rows: Sequence[Array | None],
    y: Array | None,
    writes: bool = False,
) -> None:
    kernel = recorder.load(recorder.choose("slots", with_slots(specialization, call), Sizes(call.batch, 1)))
    kernel.launch(_launch(kernel.plan, names, call, rows, y, writes))


def _launch(
    plan: KernelPlan, names: ArrayNames, call: Call, rows: Sequence[Array | None], y: Array | None, writes: bool
) -> Launch:
    widths = [math.prod(state.shape[1:]) for state in call.initial if state is not None]
    values = {
        **pool_values(names, call),
        **named("rows", names.states, rows),
        **dict(zip(named_arrays("width", names.states), widths, strict=True)),
        "has_state": address_or_null(call.pool.has_state if call.pool else None),
        "y": address_or_null(y),
        "begins": address_or_null(call.sequences.cu_seqlens),
        **_places(y, plan.problem.layout, call.sequences.cu_seqlens is not None),
        "writes": int(writes),
        "batch": call.batch,
    }
    blocks = call.batch * divided_up(most(*widths), plan.launch.threads)
    return launch_in_grid(blocks, pack(signature(plan, names), values))


def _arithmetic(state: Array) -> str:
    """Return the dtype of the arithmetic on states of a pool, which may be in the storage dtype."""
    precision = precision_storing(state.dtype)
    return state.dtype if precision is None else precision.arithmetic_dtype


def _places(y: Array | None, layout: str, is_packed: bool) -> dict[str, int]:
    """Return the layout of a sequence's y: the number of values, how many are adjacent, and the strides between these groups.

    The values of packed sequences start at their first rows.
    """
    if y is None:
        return dict.fromkeys(("y_values", "y_inner", "y_outer_stride", "y_row_stride"), 0)
    batch_axis = int(layout == "TBD" and len(y.shape) == TIME_AXES)
    inner = math.prod(y.shape[batch_axis + 1 :])
    outer = y.shape[0] if batch_axis else 1
    return {
        "y_values": outer * inner,
        "y_inner": most(inner, 1),
        "y_outer_stride": y.strides[0] if batch_axis else 0,
        "y_row_stride": y.shape[-1] if is_packed else y.strides[batch_axis],
    }
