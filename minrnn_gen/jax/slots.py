"""Calls of JAX on slots of a pool by rows of states, and drafts on a cache: functions of arrays, which XLA updates in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import jax.numpy as jnp

from minrnn_gen.call.altered import sequence_of_step
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.pool import PoolArguments
from minrnn_gen.call.pool_checks import check_pool
from minrnn_gen.call.validate import INTEGER_DTYPES, check_dtype, check_exact_shape
from minrnn_gen.jax.arrays import as_array, described

# The number of axes of y over time; y of a single step lacks the axis of time.
_TIME_AXES = 3


class Cache(TypedDict):
    """States of requests, a tree of arrays: `places` {name: [slots, 1 + draft, H]}, and `drafts` int32 [slots, 2].

    Place 0 of a slot is its state where no draft follows. `drafts`: the first place of the slot's last draft, and its steps.
    """

    places: dict[str, Any]
    drafts: Any


def on_rows(
    interface: Interface, state: Any, pool: PoolArguments, cu_seqlens: Any, run: Callable[[Mapping[str, Any]], tuple[Any, ...]]
) -> tuple[Any, dict[str, Any]]:
    """Run a call by `run`, from rows of states to y and final states; return y, zeros for padding, and the pool after it.

    A slot that the pool lacks counts as padding. Raises BadInput for slots and pools that do not fit.
    """
    states = _checked_pool(interface, state)
    count = states[interface.states[0]].shape[0]
    reads = _indices(pool.slots, "slots")
    writes = reads if pool.into_slots is None else _indices(pool.into_slots, "into_slots", reads.shape[0])
    live = _exists(reads, pool.pad_slot, count)
    is_read = live
    if pool.has_state is not None:
        has_state = as_array(pool.has_state, "has_state")
        check_dtype(described(has_state, "has_state"), ("bool",))
        check_exact_shape(described(has_state, "has_state"), reads.shape)
        is_read = live & has_state
    carried = jnp.dtype(interface.precision.arithmetic_dtype)

    def row_of(values: Any) -> Any:
        rows = values[jnp.where(is_read, reads, 0)].astype(carried)
        return jnp.where(_beside(is_read, rows), rows, jnp.zeros((), carried))

    y, final = run({name: row_of(values) for name, values in states.items()})
    targets = jnp.where(live & _exists(writes, pool.pad_slot, count), writes, count)  # beyond the pool, and so dropped
    after = {name: values.at[targets].set(final[name].astype(values.dtype), mode="drop") for name, values in states.items()}
    if cu_seqlens is not None:
        steps = sequence_of_step(jnp, as_array(cu_seqlens, "cu_seqlens"), jnp.arange(y.shape[1]))
        return jnp.where(live[steps][None, :, None], y, jnp.zeros((), y.dtype)), after
    axis = Y_AXES[interface.layout].index("b") if y.ndim == _TIME_AXES else 0
    shape = [1] * y.ndim
    shape[axis] = -1
    return jnp.where(live.reshape(shape), y, jnp.zeros((), y.dtype)), after


def next_places(
    drafts: Any, places: int, rows: tuple[Any, Any, Any], pad_slot: int, time: int, folds: bool = False
) -> tuple[Any, Any, Any]:
    """Return the places that each step reads and writes, [time, batch], -1 for none, and `drafts` with the draft noted.

    `rows`: slots, the accepted steps of their last draft and the lengths of this one, each [B]; the last two may be None. With
    `folds` the kept state goes to place 0, and no draft follows.
    """
    slots, accepted, lengths = rows
    reads = _indices(slots, "slots")
    count, batch = drafts.shape[0], reads.shape[0]
    exists = _exists(reads, pad_slot, count)
    last = drafts[jnp.where(exists, reads, 0)]
    kept = jnp.zeros_like(reads) if accepted is None else _indices(accepted, "accepted", batch)
    exists &= (kept >= 0) & (kept <= last[:, 1])
    first = (last[:, 0] + kept) % places
    steps = jnp.full(batch, time, first.dtype) if lengths is None else _indices(lengths, "lengths", batch).astype(first.dtype)
    t = jnp.arange(time, dtype=first.dtype)[:, None]
    runs, following = exists & (t < steps), 0 if folds else (first + t + 1) % places
    noted = jnp.zeros((batch, 2), drafts.dtype) if folds else jnp.stack([first, steps], 1).astype(drafts.dtype)
    after = drafts.at[jnp.where(exists, reads, count)].set(noted, mode="drop")
    return (
        jnp.where(runs, reads * places + (first + t) % places, -1),
        jnp.where(runs, reads * places + following, -1),
        after,
    )


def _checked_pool(interface: Interface, state: Any) -> dict[str, Any]:
    states = {name: as_array(array, f"state['{name}']") for name, array in state.items()} if isinstance(state, Mapping) else {}
    check_pool(interface, described, states)
    return states


def _indices(slots: Any, name: str, batch: int | None = None) -> Any:
    array = as_array(slots, name)
    check_dtype(described(array, name), INTEGER_DTYPES)
    check_exact_shape(described(array, name), array.shape[:1] or (0,) if batch is None else (batch,))
    return array


def _exists(slots: Any, pad_slot: int, count: int) -> Any:
    return (slots != pad_slot) & (slots >= 0) & (slots < count)


def _beside(marks: Any, rows: Any) -> Any:
    return marks.reshape(-1, *[1] * (rows.ndim - 1))
