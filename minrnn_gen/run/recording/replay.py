"""Traces of runs on a GPU, replayed for every call of the same key without inspecting the call.

The operations of a run depend on the key of its arrays alone: every call of a key allocates, multiplies and launches the same,
at other addresses. Traces of calls without a key, or on arrays in no slot, are replayed once and not kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from minrnn_gen.call.array import Array
from minrnn_gen.call.key import CallKey, KeyedArrays
from minrnn_gen.call.results import ResultT
from minrnn_gen.gpu import memory
from minrnn_gen.gpu.device import Place
from minrnn_gen.gpu.memory import Allocation
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES
from minrnn_gen.run.recording.layout import Layout

MetadataT = TypeVar("MetadataT")
HeldT = TypeVar("HeldT")

# Keys in use at once, which differ in batch and time above all; a trace takes a few KiB, and a lost one is recorded again.
TRACES_HELD = 512


class Performable(Protocol):
    """A trace once its memory is allocated."""

    def run(self, addresses: list[int], arrays: list[Any], /) -> None:
        """Run the trace with `arrays`, by slot, which start at `addresses`."""

    def in_one_trip(self, memory: tuple[Any, ...], arrays: list[Any], addresses: list[int], /) -> bool:
        """Allocate `memory`, which is `Layout.in_c`, and run, where one trip can do both; return whether it did."""


class Cast(NamedTuple):
    """An array of a call in another dtype: the slot of the converted array, and the slot of its `source`."""

    slot: int
    source: int
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class Trace(Generic[ResultT, MetadataT]):
    """A run to be replayed for calls of one key, any number of times and by several threads at once.

    It holds the kernels that it launches, but none of the arrays that it was recorded with; `slots` are the results, by slot.
    """

    key: CallKey
    place: Place
    allocations: tuple[Allocation, ...]
    layout: Layout
    casts: tuple[Cast, ...]
    program: Performable
    slots: ResultT
    metadata: MetadataT

    def replay(self, keyed: KeyedArrays) -> Replay[ResultT, MetadataT]:
        """Replay the run on arrays of its key."""
        place, layout, absent = self.place, self.layout, len(self.allocations)
        arrays, addresses = keyed.arrays + [None] * absent, keyed.addresses + [0] * absent
        if not self.casts and self.program.in_one_trip(layout.in_c, arrays, addresses):
            return Replay(self, arrays, addresses)
        allocate = memory.allocator(arrays[0], place)
        # Kernels are chosen for arrays of this alignment, whatever the library's allocator gives.
        for slot, allocation in layout.held:
            arrays[slot], addresses[slot] = allocate(allocation)
            if addresses[slot] % WIDEST_COPY_BYTES:
                arrays[slot], addresses[slot] = memory.allocate_aligned(allocate, allocation, WIDEST_COPY_BYTES)
        for slot, source, dtype in self.casts:
            arrays[slot], addresses[slot] = memory.cast_at(arrays[source], dtype)
            if addresses[slot] % WIDEST_COPY_BYTES:
                converted = arrays[slot]
                arrays[slot], addresses[slot] = memory.allocate_aligned(
                    allocate, self.allocations[slot - len(keyed.arrays)], WIDEST_COPY_BYTES
                )
                arrays[slot][...] = converted
        if layout.piece is not None:
            # It is held until all operations that use it are enqueued.
            _piece, start = allocate(layout.piece)
            if start % WIDEST_COPY_BYTES:
                _piece, start = memory.allocate_aligned(allocate, layout.piece, WIDEST_COPY_BYTES)
            for slot, offset_bytes in layout.scratch:
                addresses[slot] = start + offset_bytes
        self.program.run(addresses, arrays)
        return Replay(self, arrays, addresses)


class Replay(NamedTuple, Generic[ResultT, MetadataT]):
    """A run of a trace: its arrays by slot, the call's first, then its allocations, and their addresses."""

    trace: Trace[ResultT, MetadataT]
    arrays: list[Any]
    addresses: list[int]

    @property
    def result(self) -> ResultT:
        """The results of the run."""
        return self.trace.slots.mapped(self.arrays.__getitem__)

    def bound(self, array: Array) -> Array:
        """Return a described array bound to its memory in this run, without a slot."""
        slot = array.address.slot
        assert slot is not None
        start = self.addresses[slot] + array.address.offset_bytes
        return Array(array.name, array.library, self.arrays[slot], start, array.shape, array.strides, array.dtype, array.device)

    def metadata(self) -> MetadataT:
        """Return the metadata of the trace with the arrays of this run."""
        bound: MetadataT = rebound(self.trace.metadata, self.arrays, self.addresses)
        return bound


class Finished(NamedTuple, Generic[ResultT, MetadataT]):
    """A performed run: its results as the library's arrays, their description, and the run as a replay of its key.

    `replay` is None where the run is not kept. Otherwise the arrays of `metadata` have no memory; `replay.metadata()` has them.
    """

    result: ResultT
    metadata: MetadataT
    replay: Replay[ResultT, MetadataT] | None


class ByKey(Generic[HeldT]):
    """Traces held for keys of calls, `TRACES_HELD` at most; may be used from several threads."""

    def __init__(self) -> None:
        self._held: dict[CallKey, HeldT] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: CallKey) -> HeldT | None:
        """Return the entry of a key, or None."""
        return self._held.get(key)

    def take(self, key: CallKey) -> HeldT | None:
        """Remove and return the entry of a key."""
        return self._held.pop(key, None)

    def keep(self, key: CallKey, held: HeldT) -> HeldT:
        """Hold an entry for a key, dropping all others where there is no room; return the entry."""
        if len(self._held) >= TRACES_HELD:
            self._held.clear()
        self._held[key] = held
        return held


class TraceCache(Generic[ResultT, MetadataT]):
    """The traces of one kernel, by key; may be used from several threads, which at worst record a trace twice.

    A trace lives as long as this object, or until `TRACES_HELD` keys are held and a new key arrives; a run holds its own trace.
    """

    def __init__(self) -> None:
        self._traces = ByKey[Trace[ResultT, MetadataT]]()

    def __len__(self) -> int:
        return len(self._traces)

    def replay(self, keyed: KeyedArrays | None) -> Replay[ResultT, MetadataT] | None:
        """Replay a call; return None where no call of its key was recorded."""
        if keyed is None:
            return None
        trace = self._traces.get(keyed.key)
        return None if trace is None else trace.replay(keyed)

    def take(self, keyed: KeyedArrays) -> Trace[ResultT, MetadataT] | None:
        """Return the trace of calls of this key, and keep it no longer."""
        return self._traces.take(keyed.key)

    def find(self, keyed: KeyedArrays | None) -> Trace[ResultT, MetadataT] | None:
        """Return the trace of calls of this key, if there is one."""
        return None if keyed is None else self._traces.get(keyed.key)

    def keep(self, replay: Replay[ResultT, MetadataT] | None) -> Replay[ResultT, MetadataT] | None:
        """Keep the trace of a run for calls to come, and return the run."""
        if replay is not None:
            self._traces.keep(replay.trace.key, replay.trace)
        return replay


def without_owners(metadata: Any) -> Any:
    """Return metadata whose arrays hold no memory, which `Replay.metadata` binds to other arrays."""
    if isinstance(metadata, Array):
        return replace(metadata, owner=None)
    return _mapped(without_owners, metadata)


def without_slots(metadata: Any) -> Any:
    """Return metadata whose arrays keep their addresses but lose their slots."""
    if isinstance(metadata, Array):
        return replace(metadata, pointer=int(metadata.pointer))
    return _mapped(without_slots, metadata)


def owners_of(result: ResultT, arrays: Sequence[Any]) -> ResultT:
    """Return a result of a run as the library's arrays: from `arrays` by slot, or the result's own where it has no slot."""

    def owner(array: Array) -> Any:
        slot = array.address.slot
        return array.owner if slot is None else arrays[slot]

    return result.mapped(owner)


def rebound(metadata: Any, arrays: Sequence[Any], addresses: Sequence[int]) -> Any:
    """Return metadata bound to `arrays`, which start at `addresses`, by slot; arrays without a slot stay."""
    if isinstance(metadata, Array):
        return metadata if metadata.address.slot is None else metadata.rebound(arrays, addresses)
    return _mapped(lambda part: rebound(part, arrays, addresses), metadata)


def arrays_in(metadata: Any) -> Iterator[Array]:
    """Yield the arrays of metadata, except arrays of the keys of calls."""
    # No nested function: it would refer to itself, and so hold the arrays until garbage collection.
    if isinstance(metadata, Array):
        yield metadata
    elif isinstance(metadata, tuple):
        if not isinstance(metadata, KeyedArrays):
            for part in metadata:
                yield from arrays_in(part)
    else:
        for name in _names_of(metadata.__class__):
            yield from arrays_in(getattr(metadata, name))


def _mapped(change: Callable[[Any], Any], metadata: Any) -> Any:
    """Return a frozen dataclass or a tuple with all parts changed, without keys of calls, and anything else as it is."""
    if isinstance(metadata, KeyedArrays):
        return None
    if isinstance(metadata, tuple):
        return tuple(change(part) for part in metadata)
    kind = metadata.__class__
    names = _names_of(kind)
    return kind(*(change(getattr(metadata, name)) for name in names)) if names else metadata


@functools.cache
def _names_of(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass, in order; none of any other type."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
