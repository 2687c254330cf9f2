"""States of requests that come and go: a pool of slots that steps update in place, and copies between slots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minrnn_gen.call.arguments import Call, CallArguments
from minrnn_gen.call.array import Array, as_numpy, new_numpy, wrap_numpy
from minrnn_gen.call.key import KeyedArrays, is_on_cpu, keyed
from minrnn_gen.call.pool import PAD_SLOT, PoolRows
from minrnn_gen.call.pool_checks import (
    check_accepted,
    check_pool,
    check_range,
    check_size_of_cache,
    check_values,
    check_writes,
    dtype_of_cache,
)
from minrnn_gen.call.results import Places
from minrnn_gen.call.sequences import Sequences
from minrnn_gen.call.validate import INTEGER_DTYPES, check_call, check_dtype, check_exact_shape, check_place
from minrnn_gen.errors import BadInput, kind_of, shown
from minrnn_gen.gpu import memory
from minrnn_gen.run.drafts import Draft, places_on_host
from minrnn_gen.run.executor import Executor


class Cache:
    """States of `slots` requests, initially zero.

    `states` {name: [slots, H]} is the pool that steps take as `state`; its arrays never change, so that CUDA graphs may refer
    to them. With drafts of at most `draft` steps, a slot keeps the state before its last draft and after each step of that
    draft.
    """

    def __init__(self, executor: Executor, whole: Mapping[str, Any], drafts: Any = None, inputs: tuple[Any, ...] = ()) -> None:
        """Take arrays {name: [slots, 1 + draft, H]}, and with a draft `drafts`, int64 zeros [slots, 2].

        With `inputs`, x and inputs S.* of drafts [slots, 2 * draft, ...], kept steps are run again: `whole` is [slots, 1, H].
        """
        self.executor, self.states = executor, {name: array[:, 0] for name, array in whole.items()}
        self._pool = check_pool(executor.interface, memory.inspect, self.states)
        first = next(iter(whole.values()))
        self.draft = int(inputs[0].shape[1]) // 2 if inputs else int(first.shape[1]) - 1
        self.places = {name: array.reshape(-1, *array.shape[2:]) for name, array in whole.items()}
        """The pool of all places of all slots, those of a slot one after the other."""
        self.drafts, self.inputs = drafts, inputs
        """The first place of the last draft of each slot and its steps, [slots, 2], or None; and inputs of its steps."""
        self._arguments: CallArguments | None = None

    @classmethod
    def of(cls, executor: Executor, slots: Any, draft: Any, dtype: Any, like: Any) -> Cache:
        """Return a pool of zeros like the array `like`, by default NumPy's; raises BadInput for other sizes and dtypes."""
        whole, drafts = new_states(executor, (), slots, draft, dtype, like)
        inputs = () if drafts is None else inputs_of_drafts(executor, whole, draft)
        if inputs:
            whole = new_states(executor, (), slots, 0, dtype, like)[0]
        return cls(executor, whole, drafts, inputs)

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return int(self._pool[0].shape[0])

    def copy(self, source: Any, target: Any) -> None:
        """Copy all states of slots `source` to slots `target`: both a number, or both int32 or int64 [B].

        All sources are read before any target is written. If a draft is not committed, the state before it is copied. Raises
        BadInput for slots in host memory that do not exist, and for duplicate targets; on a GPU a pair with a slot that does
        not exist is skipped.
        """
        reads, writes = self._indices(source, "source"), self._indices(target, "target")
        check_exact_shape(writes, reads.shape)
        rows = PoolRows(reads, writes, PAD_SLOT, self.slots)
        if self.draft and not self.inputs:
            self._fold(rows, None)
            return
        if self.draft:
            _places(self.executor, self._over(rows))
        self._move(reads, writes, self._pool)

    def clear(self, slots: Any) -> None:
        """Set all states of slots to zeros: a number, or int32 or int64 [B]; raises BadInput as `copy` does."""
        writes = self._indices(slots, "slots")
        if self.draft:
            _places(self.executor, self._over(PoolRows(writes, None, PAD_SLOT, self.slots)))
        call = call_on_slots(writes, writes, self._pool)
        if self.executor.backend.takes(call):
            self.executor.gpu.move_slots(call, clears=True)
            return
        for array in self._pool:
            as_numpy(array)[as_numpy(writes)] = 0

    def commit(self, slots: Any, accepted: Any = None) -> None:
        """End the last draft of slots and keep `accepted` of its steps, by default none: `states` follow the kept steps.

        Both are a number, or int32 or int64 [B]. Any use of a slot except `verify_draft` requires that its draft is committed.
        Raises BadInput as `copy` does, and for more steps than the draft has; on a GPU such a slot is left as it is.
        """
        if not self.draft:
            raise BadInput("commit ends a draft, but the cache has none; make it with draft, the steps of the longest one")
        rows = PoolRows(self._indices(slots, "slots"), None, PAD_SLOT, self.slots)
        kept = None if accepted is None else self._indices(accepted, "accepted", rows.slots.shape)
        if not self.inputs:
            self._fold(rows, kept)
        elif self._arguments is None:
            _places(self.executor, self._over(rows, kept))
        else:
            self._run_again(rows, kept, self._arguments)

    def next_draft(self, slots: Any, accepted: Any, lengths: Any, pad_slot: int, time: int) -> Places:
        """Return the places of `time` steps of each slot, and note them as its draft; raises BadInput as `verify_draft` does.

        `lengths` int64 [B], of steps, or None.
        """
        if time > self.draft:
            raise BadInput(f"x has {time} steps, but a draft of the cache has {self.draft} at most; make it with more")
        return next_places(self.executor, self.draft + 1, self.drafts, (slots, accepted, lengths), pad_slot, time)

    def run_draft(self, arguments: CallArguments, slots: Any, accepted: Any, lengths: Any, pad_slot: int, time: int) -> Any:
        """Run a draft after the kept steps of the last draft, which run again, and return y."""
        if time > self.draft:
            raise BadInput(f"x has {time} steps, but a draft of the cache has {self.draft} at most; make it with more")
        self._arguments = arguments._replace(x=None, shared=None, lengths=None, state=self.states)
        rows, places = (slots, accepted, lengths), 2 * self.draft
        on_pool = arguments._replace(lengths=None, state=self.states).flat(self.executor.interface)
        arrays = None if on_pool is None else [*on_pool, slots, None, accepted, lengths, self.drafts, *self.inputs]
        call_key = None if is_on_cpu(slots) else keyed(("run a draft", pad_slot, time), arrays)
        if replay := self.executor.gpu.steps.replay(call_key):
            return replay.result.y
        draft = checked_draft(places, self.drafts, rows, pad_slot, time, self.inputs)
        return self._perform(arguments, draft, call_key)

    def _perform(self, arguments: CallArguments, draft: Draft, call_key: KeyedArrays | None) -> Any:
        _check_accepted(draft)
        plain = arguments._replace(lengths=None, state=None)
        call = check_call(self.executor.interface, memory.inspect, lambda _: None, plain)
        return self.executor.gpu.run_draft(replace(call, initial=self._pool, keyed=None), draft, call_key).y

    def _run_again(self, rows: PoolRows, accepted: Array | None, arguments: CallArguments) -> None:
        """Run the kept steps of drafts again, and end the drafts."""
        interface, batch = self.executor.interface, rows.slots.shape[0]

        def no_steps(axes: str) -> Any:
            return memory.new_array(self._pool[0], interface.shape(axes, batch, 0), interface.precision.storage_dtype).owner

        shared = {name: no_steps(interface.shared_axes) for name in interface.shared}
        on_pool = arguments._replace(x=no_steps(interface.x_axes), shared=shared or None)
        inputs = tuple(memory.inspect(array, "cache") for array in self.inputs)
        self._perform(on_pool, Draft(rows, self._noted, 2 * self.draft, 0, accepted, None, True, inputs), None)

    @property
    def _noted(self) -> Array:
        return memory.inspect(self.drafts, "drafts")

    def _over(self, rows: PoolRows, accepted: Array | None = None) -> Draft:
        """Return the folding draft that ends the last drafts."""
        return Draft(rows, self._noted, self.draft + 1, 1, accepted, folds=True)

    def _fold(self, rows: PoolRows, accepted: Array | None) -> None:
        """Move the state after the `accepted` steps of each draft to the first place of the slot that is written."""
        places = _places(self.executor, self._over(rows, accepted))
        pool = check_pool(self.executor.interface, memory.inspect, self.places)
        reads, writes = (memory.inspect(place, "places").selected(0, 0) for place in places)
        self._move(reads, writes, pool)

    def _move(self, reads: Array, writes: Array, pool: tuple[Array, ...]) -> None:
        """Copy states between slots of a pool, reading all before writing any; -1 is no slot."""
        call = call_on_slots(reads, writes, pool)
        if self.executor.backend.takes(call):
            self.executor.gpu.move_slots(call, clears=False)
            return
        source, target = as_numpy(reads), as_numpy(writes)
        is_moved = (source != PAD_SLOT) & (target != PAD_SLOT)
        for array in pool:
            values = as_numpy(array)
            values[target[is_moved]] = values[source[is_moved]]

    def _indices(self, slots: Any, name: str, shape: tuple[int, ...] | None = None) -> Array:
        """Return slots, or counts of steps, as an array on the pool's device, checked where they are in host memory."""
        import numpy

        if isinstance(slots, bool) or slots is None:
            raise BadInput(f"{name} is {kind_of(slots)}; a slot, or int32 or int64 [B], is expected")
        is_plain = isinstance(slots, int | list | tuple | range)
        array = wrap_numpy(numpy.array(slots, ndmin=1), name) if is_plain else memory.inspect(slots, name)
        check_dtype(array, INTEGER_DTYPES)
        check_exact_shape(array, shape or (array.shape[0] if array.shape else 0,))
        like = self._pool[0]
        if array.device is not None:
            check_place(array, like)
            return array
        if name != "accepted":
            check_range(as_numpy(array), name, self.slots)
        if name not in ("source", "accepted"):
            check_writes(as_numpy(array), name)
        return array if like.device is None else memory.int64_beside(like, array)


def next_places(executor: Executor, places: int, drafts: Any, rows: tuple[Any, Any, Any], pad_slot: int, time: int) -> Places:
    """Return the places of a draft's steps, and note the draft in `drafts`; each slot has `places` places.

    `rows`: slots, the accepted steps of their last draft, and the lengths of this draft, each [B]; the last two may be None.
    Raises BadInput for arrays that do not fit.
    """
    slots, accepted, lengths = rows
    call_key = keyed(("draft", pad_slot, places, time), [slots, None, accepted, lengths, drafts])
    if not is_on_cpu(slots) and (replay := executor.gpu.drafts.replay(call_key)):
        return replay.result
    return _places(executor, checked_draft(places, drafts, rows, pad_slot, time), call_key)


def checked_draft(
    places: int, drafts: Any, rows: tuple[Any, Any, Any], pad_slot: int, time: int, inputs: tuple[Any, ...] = ()
) -> Draft:
    """Return the draft of some slots, checked; raises BadInput for slots and counts that do not fit."""
    slots, accepted, lengths = rows
    noted, read = memory.inspect(drafts, "cache"), memory.inspect(slots, "slots")
    kept = None if accepted is None else memory.inspect(accepted, "accepted")
    for array in (read, *(() if kept is None else (kept,))):
        check_dtype(array, INTEGER_DTYPES)
        check_exact_shape(array, read.shape[:1] or (0,))
        check_place(array, noted)
    pool = PoolRows(read, None, pad_slot, noted.shape[0])
    if read.device is None:
        check_values(pool)
    steps = None if lengths is None else memory.inspect(lengths, "lengths")
    of_steps = tuple(memory.inspect(array, "cache") for array in inputs)
    return Draft(pool, noted, places, time, kept, steps, inputs=of_steps)


def _check_accepted(draft: Draft) -> None:
    if draft.accepted is not None and draft.drafts.device is None:
        check_accepted(draft.rows, draft.accepted, draft.drafts)


def _places(executor: Executor, draft: Draft, call_key: KeyedArrays | None = None) -> Places:
    _check_accepted(draft)
    if executor.backend.takes(call_on_slots(draft.rows.slots, draft.rows.written, ())):
        return executor.gpu.places(draft, call_key)
    return places_on_host(draft)


def call_on_slots(reads: Array, writes: Array, pool: tuple[Array, ...]) -> Call:
    """Return a call whose only array is a pool; its sequences read and write these slots."""
    return Call(
        x=reads,
        x_axes="b",
        rows=reads.shape[0],
        time=1,
        weight=None,
        bias=None,
        parameters=(),
        initial=pool,
        sequences=Sequences(reads.shape[0]),
        pool=PoolRows(reads, writes, PAD_SLOT, pool[0].shape[0] if pool else 0),
    )


def new_states(
    executor: Executor, layers: tuple[int, ...], slots: Any, draft: Any, dtype: Any, like: Any
) -> tuple[dict[str, Any], Any]:
    """Return zeros {name: [*layers, slots, 1 + draft, H]} and, with a draft, int64 zeros [*layers, slots, 2]."""
    interface = executor.interface
    check_size_of_cache(slots, "slots")
    if isinstance(draft, bool) or not isinstance(draft, int) or draft < 0:
        raise BadInput(f"draft is {shown(draft)}; the steps of the longest draft, 0 for none, are expected")
    named = dtype_of_cache(interface, None if dtype is None else str(dtype).removeprefix("torch."), shown(dtype))
    beside = new_numpy((0,), named, None) if like is None else memory.inspect(like, "like")

    def zeros(shape: tuple[int, ...], of: str) -> Any:
        return memory.new_array(beside, (*layers, slots, *shape), of, fill=0).owner

    whole = {name: zeros((1 + draft, *interface.shape_of_state(name, 1)[1:]), named) for name in interface.states}
    return whole, zeros((2,), "int64") if draft else None


def inputs_of_drafts(executor: Executor, whole: Mapping[str, Any], draft: int) -> tuple[Any, ...]:
    """Return zeros for x and the inputs S.* of each slot's drafts; nothing where drafted steps are not run again."""
    interface, like = executor.interface, memory.inspect(next(iter(whole.values())), "state")
    is_forward = not interface.runs_reversed[0]
    if not is_forward or not executor.backend.takes(call_on_slots(like, like, ())):
        return ()
    is_narrow = like.dtype != interface.precision.arithmetic_dtype
    if not executor.draft_plan(draft, "storage" if is_narrow else "arithmetic").replays:
        return ()
    shapes = [interface.shape(axes, 1, 1)[1:] for axes in ("bgh", *["bkn"] * len(interface.shared))]
    storage, lead = interface.precision.storage_dtype, (like.shape[0], 2 * draft)
    return tuple(memory.new_array(like, (*lead, *shape), storage, fill=0).owner for shape in shapes)
