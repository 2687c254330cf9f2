"""Runs on a GPU, recorded as they are performed, and replayed for every call of the same key without looking at it closer.

What a run does depends on nothing but the key of its arrays: so the next one allocates, multiplies and launches what the first
did, at other addresses. Runs of calls without a key, or on arrays of unknown origin, are not recorded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from minrnn_gen.call.address import Address, PointerDifference, address_of, has_slots, plain_numbers
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import CallKey, KeyedArrays
from minrnn_gen.call.results import ResultT
from minrnn_gen.gpu import cublas, graph, memory
from minrnn_gen.gpu import stream as gpu_stream
from minrnn_gen.gpu.cublas import Product
from minrnn_gen.gpu.device import Place
from minrnn_gen.gpu.lanes import Lanes, lanes_of
from minrnn_gen.gpu.memory import Allocation
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES
from minrnn_gen.run.layout import Allocated, Layout, laid_out
from minrnn_gen.run.operations import (
    CopyOperation,
    LaunchOperation,
    Module,
    Operation,
    Program,
    StepsOnLanes,
    product_operation,
)
from minrnn_gen.run.scan_launch import Launch

MetadataT = TypeVar("MetadataT")
HeldT = TypeVar("HeldT")

# Keys in use at once, which differ in batch and time above all; a trace takes a few KiB, and a lost one is recorded again.
TRACES_HELD = 512
# A byte with all bits ones.
ALL_ONES = 255


class Cast(NamedTuple):
    """An array of a call in another dtype: the slot of what is converted, and that of its `source`."""

    slot: int
    source: int
    dtype: str


class TraceRecorder:
    """A run on a GPU: each method performs something, and records it. All that a replay has to do goes this way."""

    def __init__(self, like: Array, keyed: KeyedArrays | None) -> None:
        """Begin a run beside `like`; the arrays of `keyed` have their slots in the arrays that the run works on."""
        self._like = like
        self._key = None if keyed is None else keyed.key
        self._arrays: list[Any] = [] if keyed is None else [*keyed.arrays]
        self._addresses: list[int] = [] if keyed is None else [*keyed.addresses]
        self._inputs = len(self._arrays)
        self._allocated: list[Allocated] = []
        self._casts: list[Cast] = []
        self._results: list[Array] = []
        self._operations: list[Operation] = []
        self._is_replayable = keyed is not None
        self.lane: int | None = None
        """The lane of the step that is enqueued now."""

    @contextmanager
    def lanes(self, count: int) -> Iterator[RecordedLanes]:
        """Return lanes, on which steps run beside each other; they begin behind the run so far, and it goes on behind them."""
        device, before = self._like.device, self._operations
        assert device is not None
        stream, lanes = gpu_stream.current_stream(self._like), lanes_of(device)
        recorded = RecordedLanes(self, lanes)
        lanes.fork(stream, count)
        try:
            yield recorded
        finally:
            lanes.join(stream, count)
        self._operations = before
        if self._is_replayable:  # in a run that is not, arrays may have no slots
            before.append(StepsOnLanes(Place(self._like.library, device), recorded.steps))

    @contextmanager
    def on_lane(self, lane: int) -> Iterator[list[Operation]]:
        """Record what is enqueued within, on a lane, into a list of its own."""
        self.lane, self._operations = lane, []
        try:
            yield self._operations
        finally:
            self.lane = None

    def new_array(self, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
        """Allocate an array; uninitialised without `fill`, see `memory.Allocation`."""
        if self.lane is None or fill is None:
            return self._with_next_slot(memory.new_array(self._like, shape, dtype, fill=fill), fill)
        # The library would fill it on its own stream.
        array = memory.new_array(self._like, shape, dtype)
        memory.set_bytes(self._like, array.pointer, math.prod(shape) * array.itemsize, fill)
        return self._with_next_slot(array, fill)

    def workspace(self, size_bytes: int) -> Array | None:
        """Allocate bytes, all bits ones, for the launches of this run alone; None for no bytes."""
        return self.new_array((size_bytes,), "uint8", fill=ALL_ONES) if size_bytes else None

    def cast(self, array: Array, dtype: str) -> Array:
        """Return a whole array of the call in a dtype, itself where it has that already."""
        if array.dtype == dtype:
            return array
        converted, source = memory.inspect(memory.cast(array.owner, dtype), array.name), array.address.slot
        if source is None or source >= self._inputs:
            return converted  # a run on it is not replayed
        converted = self._with_next_slot(converted, None)
        self._casts.append(Cast(len(self._arrays) - 1, source, dtype))
        return converted

    def contiguous(self, array: Array) -> Array:
        """Return a whole array as a contiguous one, a copy where it is not; a run on it is not replayed."""
        return memory.without_gaps(array)

    def zeroed_beyond(self, x: Array, axes: str, lengths: Array) -> Array:
        """Return an array with zeros beyond lengths; a run on it is not replayed."""
        return memory.zeroed_beyond(x, axes, lengths)

    @staticmethod
    def loop(start: int, stop: int, step: int = 1) -> range:
        """Return the numbers of a range."""
        return range(start, stop, step)

    def launch(self, module: Module, launch: Launch, threads: int) -> None:
        """Launch a kernel."""
        arguments = plain_numbers(launch.arguments)
        module.launch(self._like, launch.blocks, threads, arguments)
        pointers = [
            (position, argument)
            for position, argument in enumerate(launch.arguments)
            if isinstance(argument, (Address, PointerDifference))
        ]
        operation = LaunchOperation(module, launch.blocks, threads, arguments, pointers)
        self._record(operation, [argument for _, argument in pointers])

    def multiply(self, product: Product, workspace: int = 0) -> None:
        """Multiply by cuBLAS on the current stream; `workspace` as `cublas.multiply` takes it."""
        for part in product.parts:
            cublas.multiply(self._like.device, gpu_stream.current_stream(self._like), part, None, int(workspace))
            self._record(*product_operation(part, workspace))

    def copy_heads_first(self, R: Array, target: int) -> None:
        """Copy a contiguous R [gates, heads, D, D] to the address `target`, [heads, gates, D, D]."""
        graph.copy_heads_first(self._like.device, gpu_stream.current_stream(self._like), R, R.pointer, int(target))
        pointers = (R.address, address_of(target))
        self._record(CopyOperation(R, pointers), pointers)

    def stop(self) -> None:
        """Record no more: this run will not be replayed."""
        self._is_replayable = False

    def finish(self, result: ResultT, metadata: MetadataT, /) -> Replay[ResultT, MetadataT] | None:
        """Return the run, which is over, as one that can be replayed, or None where it cannot.

        `result` names arrays of the run; `metadata`, of frozen dataclasses and tuples, says what they look like.
        """
        if self._key is None:
            return None
        slots = result.mapped(self._slot_of)
        aligned = not any(address % WIDEST_COPY_BYTES for address in self._addresses[self._inputs :])
        if not (self._is_replayable and aligned):
            return None
        place = Place(self._like.library, self._like.device)
        held = {slot for array in (*self._results, *_arrays_in(metadata)) if (slot := array.address.slot) is not None}
        converted = {cast.slot for cast in self._casts}
        allocated = [array for array in self._allocated if array.slot not in converted]
        layout = laid_out(allocated, held, memory.own_dtype(self._like, "uint8"))
        trace = Trace(
            key=self._key,
            place=place,
            allocations=tuple(array.allocation for array in self._allocated),
            layout=layout,
            casts=tuple(self._casts),
            program=Program(place, (*layout.fills, *self._operations)),
            slots=slots,
            metadata=_without_owners(metadata),
        )
        for slot, _ in layout.scratch:
            self._arrays[slot] = None
        return Replay(trace, self._arrays, self._addresses)

    def _with_next_slot(self, array: Array, fill: int | None) -> Array:
        """Return an array that the run made, in a slot behind all others."""
        slot = len(self._arrays)
        self._arrays.append(array.owner)
        self._addresses.append(array.pointer)
        allocation = Allocation(array.shape, array.strides, array.owner.dtype, fill)
        self._allocated.append(Allocated.of(slot, allocation, array.itemsize))
        return array.with_slot(slot)

    def _slot_of(self, array: Array) -> int | None:
        slot = array.address.slot
        if slot is None:
            self.stop()
        self._results.append(array)
        return slot

    def _record(self, operation: Operation, pointers: Sequence[Address | PointerDifference]) -> None:
        self._is_replayable = self._is_replayable and all(map(has_slots, pointers))
        self._operations.append(operation)


class RecordedLanes:
    """Lanes of a run that is recorded; `steps`: of each its lane, the steps that it waits for, and what it does."""

    def __init__(self, recorder: TraceRecorder, lanes: Lanes) -> None:
        self._recorder, self._lanes = recorder, lanes
        self.steps: list[tuple[int, tuple[int, ...], list[Operation]]] = []

    @contextmanager
    def step(self, lane: int, waits: Sequence[int]) -> Iterator[None]:
        """Have what is done within be the next step, on a lane, behind the steps of other lanes that it `waits` for."""
        number = len(self.steps)
        stream = self._lanes.begin(lane, waits)
        with gpu_stream.redirected(stream), self._recorder.on_lane(lane) as operations:
            self.steps.append((lane, tuple(waits), operations))
            yield
        self._lanes.end(lane, number)


@dataclass(frozen=True, slots=True, eq=False)
class Trace(Generic[ResultT, MetadataT]):
    """A run to be replayed for calls of one key, any number of times and by several threads at once.

    It holds the kernels that it launches, and none of the arrays that it was recorded with: `slots` are the results, by slot.
    """

    key: CallKey
    place: Place
    allocations: tuple[Allocation, ...]
    layout: Layout
    casts: tuple[Cast, ...]
    program: Program
    slots: ResultT
    metadata: MetadataT

    def replay(self, keyed: KeyedArrays) -> Replay[ResultT, MetadataT] | None:
        """Do the run again; None, before anything is launched, where an allocation is not aligned as its key says."""
        place, layout, absent = self.place, self.layout, len(self.allocations)
        arrays, addresses = keyed.arrays + [None] * absent, keyed.addresses + [0] * absent
        allocate = memory.allocator(arrays[0], place)
        for slot, allocation in layout.held:
            arrays[slot], address = allocate(allocation)
            addresses[slot] = address
            if address % WIDEST_COPY_BYTES:
                return None
        for slot, source, dtype in self.casts:
            arrays[slot], addresses[slot] = memory.cast_at(arrays[source], dtype)
            if addresses[slot] % WIDEST_COPY_BYTES:
                return None
        if layout.piece is not None:
            # It is held until everything is enqueued that works in it.
            _piece, start = allocate(layout.piece)
            if start % WIDEST_COPY_BYTES:
                return None
            for slot, offset_bytes in layout.scratch:
                addresses[slot] = start + offset_bytes
        self.program.run(addresses)
        return Replay(self, arrays, addresses)


class Replay(NamedTuple, Generic[ResultT, MetadataT]):
    """A run of a trace: its arrays by slot, first those of the call, then what it allocated, and where they start."""

    trace: Trace[ResultT, MetadataT]
    arrays: list[Any]
    addresses: list[int]

    @property
    def result(self) -> ResultT:
        """The arrays that the run is there for."""
        return self.trace.slots.mapped(self.arrays.__getitem__)

    def metadata(self) -> MetadataT:
        """Return the metadata of the trace with the arrays of this run."""
        rebound: MetadataT = _rebound(self.trace.metadata, self.arrays, self.addresses)
        return rebound


class ByKey(Generic[HeldT]):
    """What is held for keys of calls, `TRACES_HELD` at most; may be used from several threads."""

    def __init__(self) -> None:
        self._held: dict[CallKey, HeldT] = {}

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: CallKey) -> HeldT | None:
        """Return what is held for a key, if there is something."""
        return self._held.get(key)

    def keep(self, key: CallKey, held: HeldT) -> HeldT:
        """Hold something for a key, instead of all else where there is no room; return it."""
        if len(self._held) >= TRACES_HELD:
            self._held.clear()
        self._held[key] = held
        return held


class TraceCache(Generic[ResultT, MetadataT]):
    """The traces of one kernel, by key; may be used from several threads, which at worst record a trace twice.

    A trace lives as long as this object, or until `TRACES_HELD` keys are there and another one comes; a run holds its own.
    """

    def __init__(self) -> None:
        self._traces = ByKey[Trace[ResultT, MetadataT]]()

    def __len__(self) -> int:
        return len(self._traces)

    def replay(self, keyed: KeyedArrays | None) -> Replay[ResultT, MetadataT] | None:
        """Run a call again, or return None where no call of its key was recorded."""
        if keyed is None:
            return None
        trace = self._traces.get(keyed.key)
        return None if trace is None else trace.replay(keyed)

    def find(self, keyed: KeyedArrays | None) -> Trace[ResultT, MetadataT] | None:
        """Return the trace of calls of this key, if there is one."""
        return None if keyed is None else self._traces.get(keyed.key)

    def keep(self, replay: Replay[ResultT, MetadataT] | None) -> Replay[ResultT, MetadataT] | None:
        """Keep the trace of a run for calls to come, and return the run."""
        if replay is not None:
            self._traces.keep(replay.trace.key, replay.trace)
        return replay


def _without_owners(metadata: Any) -> Any:
    """Return metadata whose arrays are nowhere and hold no memory, to be given other ones by `_rebound`."""
    if isinstance(metadata, Array):
        return replace(metadata, owner=None)
    return _mapped(_without_owners, metadata)


def _rebound(metadata: Any, arrays: Sequence[Any], addresses: Sequence[int]) -> Any:
    """Return metadata with its arrays, all of them with slots, among `arrays`, which start at `addresses`."""
    if isinstance(metadata, Array):
        return metadata.rebound(arrays, addresses)
    return _mapped(lambda part: _rebound(part, arrays, addresses), metadata)


def _arrays_in(metadata: Any) -> Iterator[Array]:
    """Yield the arrays of metadata, but those of keys of calls."""
    # No function within, which would refer to itself and so hold the arrays until garbage is collected.
    if isinstance(metadata, Array):
        yield metadata
    elif isinstance(metadata, tuple):
        if not isinstance(metadata, KeyedArrays):
            for part in metadata:
                yield from _arrays_in(part)
    elif is_dataclass(metadata) and not isinstance(metadata, type):
        for field in fields(metadata):
            yield from _arrays_in(getattr(metadata, field.name))


def _mapped(change: Callable[[Any], Any], metadata: Any) -> Any:
    """Return a frozen dataclass or a tuple with all parts changed, without keys of calls, and anything else as it is."""
    if isinstance(metadata, KeyedArrays):
        return None
    if isinstance(metadata, tuple):
        return tuple(change(part) for part in metadata)
    if is_dataclass(metadata) and not isinstance(metadata, type):
        return replace(metadata, **{field.name: change(getattr(metadata, field.name)) for field in fields(metadata)})
    return metadata
