"""A call's slots and pool of states held against the interface of the kernel; each refusal is one sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, as_numpy, contiguous_strides
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.known_names import known_names
from minrnn_gen.call.pool import PoolArguments, PoolRows
from minrnn_gen.call.validate import (
    INTEGER_DTYPES,
    Inspect,
    check_dtype,
    check_exact_shape,
    check_place,
    check_plain,
)
from minrnn_gen.errors import BadInput, kind_of, shown


def pool_arguments(slots: Any, into_slots: Any, pad_slot: Any, has_state: Any = None) -> PoolArguments | None:
    """Return the arguments of a call on slots, None if it has none; raises BadInput for arguments that need slots."""
    if isinstance(pad_slot, bool) or not isinstance(pad_slot, int):
        raise BadInput(f"pad_slot is {kind_of(pad_slot)}; a whole number is expected")
    if slots is not None:
        return PoolArguments(slots, into_slots, pad_slot, has_state)
    for name, array in (("into_slots", into_slots), ("has_state", has_state)):
        if array is not None:
            raise BadInput(f"{name} was given without slots; give the slots that are read too, or leave it out")
    return None


def check_size_of_cache(size: Any, name: str) -> None:
    """Refuse everything but positive integers."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise BadInput(f"{name} is {shown(size)}; a positive integer is expected")


def dtype_of_cache(interface: Interface, named: str | None, said: str) -> str:
    """Return the dtype of a cache's states, by default that of the arithmetic; raises BadInput for others, named as `said`."""
    carried = interface.precision.arithmetic_dtype
    allowed = dict.fromkeys((carried, interface.precision.storage_dtype))
    if named is not None and named not in allowed:
        raise BadInput(f"dtype is {said}; {' or '.join(allowed)} is expected")
    return named or carried


def with_pool(interface: Interface, inspect: Inspect, call: Call, state: Any, asked: PoolArguments) -> Call:
    """Return a checked call, which has no states, with the states of a pool; raises BadInput with one sentence.

    The values of slots are checked where they are in host memory.
    """
    pool = check_pool(interface, inspect, state)
    slots = _indices(inspect(asked.slots, "slots"), call)
    into = None if asked.into_slots is None else _indices(inspect(asked.into_slots, "into_slots"), call)
    for array in pool:
        check_place(array, call.x)
    has_state = None
    if asked.has_state is not None:
        has_state = check_plain(inspect(asked.has_state, "has_state"), ("bool",), (call.batch,))
        check_place(has_state, call.x)
    y = None
    if asked.y is not None:
        y = check_plain(inspect(asked.y, "y"), (interface.precision.storage_dtype,), interface.step_shape(call.batch))
    rows = PoolRows(slots, into, asked.pad_slot, pool[0].shape[0], has_state, y)
    if slots.device is None:
        check_values(rows)
    return replace(call, initial=pool, pool=rows)


def check_pool(interface: Interface, inspect: Inspect, state: Any) -> tuple[Array, ...]:
    """Return the arrays of a pool, all states of the cell, each [slots, ...] without gaps within a slot; refuse any other."""
    states = known_names(state, interface.states, "state")
    for name in interface.states:
        if name not in states:
            raise BadInput(f"slots were given, but state lacks '{name}'; give the pool, all of {', '.join(interface.states)}")
    pool = tuple(inspect(states[name], f"state['{name}']") for name in interface.states)
    count, precision = pool[0].shape[0] if pool[0].shape else 0, interface.precision
    dtypes = tuple(dict.fromkeys((precision.arithmetic_dtype, precision.storage_dtype)))
    for name, array in zip(interface.states, pool, strict=True):
        check_dtype(array, dtypes if array is pool[0] else (pool[0].dtype,))
        shape = interface.shape_of_state(name, count)
        check_exact_shape(array, shape)
        of_slot, size = array.strides[1:], math.prod(shape[1:])
        slot = replace(array, shape=shape[1:], strides=of_slot)
        if not slot.is_contiguous or (count > 1 and array.strides[0] < size):
            raise BadInput(
                f"{array.name} has strides {list(array.strides)}; each slot needs {list(contiguous_strides(shape[1:]))}, and "
                f"slots have to be at least {size} elements apart"
            )
    return pool


def _indices(array: Array, call: Call) -> Array:
    check_dtype(array, INTEGER_DTYPES)
    check_exact_shape(array, (call.batch,))
    check_place(array, call.x)
    return array


def check_values(rows: PoolRows) -> None:
    """Refuse slots that the pool lacks, and a slot that one sequence writes and another one writes or reads."""
    import numpy

    reads, writes = as_numpy(rows.slots), as_numpy(rows.written)
    name = rows.written.name
    for slots, called in ((reads, "slots"), (writes, name)):
        check_range(slots, called, rows.count, rows.pad_slot)
    live = numpy.flatnonzero(reads != rows.pad_slot)
    writers = live[writes[live] != rows.pad_slot]
    writer = numpy.full(rows.count, -1)
    writer[writes[writers]] = writers
    for others, slots, verb in ((writers, writes, "write"), (live, reads, "read")):
        clash = others[(writer[slots[others]] >= 0) & (writer[slots[others]] != others)]
        if clash.size:
            row = int(clash[0])
            raise BadInput(
                f"{name}[{writer[slots[row]]}] is {slots[row]}, which sequence {row} {verb}s too; "
                "each sequence has to write a slot that no other one writes or reads"
            )


def check_accepted(rows: PoolRows, accepted: Array, drafts: Array) -> None:
    """Refuse counts of accepted steps beyond the last draft of a slot, all in host memory; `drafts` has its steps second."""
    slots, counts = as_numpy(rows.slots), as_numpy(accepted)
    steps = as_numpy(drafts)[:, 1][slots]
    wrong = (slots != rows.pad_slot) & ((counts < 0) | (counts > steps))
    if wrong.any():
        row = int(wrong.argmax())
        raise BadInput(
            f"accepted[{row}] is {counts[row]}, but the last draft of slot {slots[row]} has {steps[row]} steps; "
            f"0 to {steps[row]} is expected"
        )


def check_range(slots: Any, name: str, count: int, pad_slot: int | None = None) -> None:
    """Refuse slots beyond a pool of `count` slots, except `pad_slot`."""
    wrong = (slots < 0) | (slots >= count)
    if pad_slot is not None:
        wrong &= slots != pad_slot
    if wrong.any():
        place, pads = int(wrong.argmax()), "" if pad_slot is None else f", or pad_slot, {pad_slot}"
        raise BadInput(f"{name}[{place}] is {slots[place]}; a slot of the pool, 0 to {count - 1}{pads}, is expected")


def check_writes(slots: Any, name: str) -> None:
    """Refuse a slot that is written twice."""
    import numpy

    written, counts = numpy.unique(slots, return_counts=True)
    if (counts > 1).any():
        place = int(counts.argmax())
        raise BadInput(f"{name} has slot {written[place]} {counts[place]} times; each slot is written once at most")
