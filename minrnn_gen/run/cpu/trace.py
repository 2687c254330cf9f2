"""Programs on this processor: launches of native code and computations of the arrays' library, in sequence."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy

from minrnn_gen.build.cpu_kernel import CpuKernel
from minrnn_gen.build.store import Store
from minrnn_gen.call.address import Address
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import DTYPE_BYTES, Array, as_numpy, wrap_numpy
from minrnn_gen.call.key import CallKey, KeyedArrays
from minrnn_gen.call.results import ResultT
from minrnn_gen.config.environment import thread_count
from minrnn_gen.gpu.device import Place
from minrnn_gen.gpu.memory import Allocation, own_dtype, start_of
from minrnn_gen.native import trip
from minrnn_gen.program import data
from minrnn_gen.program.data import At, KernelRef, Program
from minrnn_gen.run.cpu.arguments import Steps
from minrnn_gen.run.cpu.interrupts import interpreter
from minrnn_gen.run.cpu.memory import WORKSPACE
from minrnn_gen.run.cpu.products import without_autocast
from minrnn_gen.run.cpu.threads import threads_of
from minrnn_gen.run.recording.described_run import TracedRun
from minrnn_gen.run.recording.layout import Layout
from minrnn_gen.run.recording.replay import Cast, Replay, Trace, TraceCache


class NativeRecorder(TracedRun):
    """A run of native code on arrays in host memory."""

    def __init__(self, store: Store, like: Array, keyed: KeyedArrays | None) -> None:
        """Begin a run on the device of `like`; kernels of `store` are launched on its threads."""
        super().__init__(like, keyed)
        self._store, self._loaded = store, dict[KernelRef, CpuKernel]()
        self._has_key = keyed is not None

    def run_kernel(self, kernel: CpuKernel, values: Mapping[str, Any]) -> None:
        """Note a launch with arguments by name; absent ones are 0."""
        ref = KernelRef(kernel.address)
        self._loaded[ref] = kernel
        sources = (values.get(field.name, 0) for field in kernel.plan.fields)
        arguments = tuple([value if type(value) in (int, bool) else self._source(value) for value in sources])
        self.note(data.Launch(ref, 1, values["threads"], arguments))

    def steps_of(self, call: Call) -> Steps:
        """Return the steps of a call's sequences; lengths are read at once, and a run with lengths is not kept."""
        ends, lengths = call.sequences.cu_seqlens, call.sequences.lengths
        if ends is not None:
            first_steps = numpy.ascontiguousarray(as_numpy(ends), numpy.int64)
            firsts, counts = first_steps[:-1].copy(), numpy.diff(first_steps)
            return Steps(self._held(firsts), self._held(counts), int(counts.max(initial=0)), False)
        if lengths is not None:
            counts = numpy.array(as_numpy(lengths), numpy.int64)
            return Steps(0, self._held(counts), int(counts.max(initial=0)), True)
        return Steps(0, 0, call.time, False)

    def _held(self, numbers: Any) -> int:
        return self.hold(wrap_numpy(numbers, "steps")).pointer

    def run(self, kept: TraceCache[ResultT, None], result: ResultT) -> Replay[ResultT, None]:
        """Perform the run, and keep it for calls of its key where possible."""
        replay = self.perform(result, None)
        return (kept.keep(replay) if self.is_kept else None) or replay

    def _at(self, pointer: int) -> At:
        """Return a place; without a key, an array's slot belongs to another call."""
        if not self._has_key and isinstance(pointer, Address):
            return At(None, int(pointer))
        return super()._at(pointer)

    def _whole(self, array: Array) -> Any:
        """Return the slot of an array, or the array itself where it has no slot; then the run is not kept."""
        if array.owner is None or (self._has_key and array.address.slot is not None):
            return array.address.slot
        self.stop()
        return array.owner

    def _trace(self, program: Program) -> Trace[Any, Any]:
        key = keyed_by_threads(self.keyed).key if self.is_kept else ()
        return host_trace_of(program, key, Place(self._like.library, None), self._loaded, self._store)


def keyed_by_threads(keyed: KeyedArrays) -> KeyedArrays:
    """Return arrays with a key that includes the current number of threads."""
    return KeyedArrays((keyed.key, thread_count()), keyed.arrays, keyed.addresses)


def host_trace_of(
    program: Program, key: CallKey, place: Place, kernels: Mapping[KernelRef, CpuKernel], store: Store
) -> Trace[Any, Any]:
    """Return a trace that executes a program in host memory; each buffer is a separate allocation."""
    computed: set[int | None] = {cast.slot for cast in program.casts}
    computed |= {operation.slot for operation in program.operations if isinstance(operation, data.Computed)}
    allocations = tuple(
        [Allocation(buffer.shape, buffer.strides, own_dtype(place, buffer.dtype), buffer.fill) for buffer in program.buffers]
    )
    by_slot = enumerate(allocations, program.inputs)
    held = tuple([(slot, allocation) for slot, allocation in by_slot if slot not in computed])
    return Trace(
        key=key,
        place=place,
        allocations=allocations,
        layout=Layout(held, (), None, ()),
        casts=tuple(Cast(cast.slot, cast.source, cast.dtype) for cast in program.casts),
        program=HostProgram(tuple(_operations(program, kernels, store))),
        slots=program.results,
        metadata=program.metadata,
    )


class Operation(Protocol):
    """An operation on arrays, by slot, and their addresses."""

    def run(self, arrays: list[Any], addresses: list[int], /) -> None: ...


@dataclass(frozen=True, slots=True)
class HostProgram:
    """Operations in order."""

    operations: tuple[Operation, ...]

    @property
    def launches(self) -> list[LaunchOperation] | None:
        """The operations if all of them are launches."""
        launches = [operation for operation in self.operations if isinstance(operation, LaunchOperation)]
        return launches if len(launches) == len(self.operations) else None

    def in_one_trip(self, _memory: tuple[Any, ...], _arrays: list[Any], _addresses: list[int]) -> bool:
        """Return False: nothing allocates host memory in C."""
        return False

    def run(self, addresses: list[int], arrays: list[Any]) -> None:
        """Do all operations."""
        with without_autocast():
            for operation in self.operations:
                operation.run(arrays, addresses)


@dataclass(frozen=True, slots=True)
class LaunchOperation:
    """A kernel run with these arguments; `pointers` point into arrays of the call: position, slot, offset in bytes."""

    kernel: CpuKernel
    numbers: list[Any]
    pointers: tuple[tuple[int, int, int], ...]
    workspace_place: int
    workspace_bytes: int

    def in_c(self) -> tuple[Any, ...]:
        """Return the launch in the form of `trip.c`."""
        patches = tuple((position, 0, 0, slot, offset_bytes, 0) for position, slot, offset_bytes in self.pointers)
        packed = self.kernel.plan.packer.pack(*self.numbers)
        return trip.KERNEL, self.kernel.address, packed, patches, self.workspace_place, self.workspace_bytes

    def run(self, _arrays: list[Any], addresses: list[int]) -> None:
        """Run the kernel; raises what a signal's handler raises."""
        numbers = self.numbers.copy()
        numbers[:3] = interpreter()
        for position, slot, offset_bytes in self.pointers:
            numbers[position] = addresses[slot] + offset_bytes
        numbers[self.workspace_place], _held = WORKSPACE.of(self.workspace_bytes)
        self.kernel.run(self.kernel.plan.packer.pack(*numbers))


@dataclass(frozen=True, slots=True)
class ComputeOperation:
    """A computation by the arrays' library."""

    computed: data.Computed

    def run(self, arrays: list[Any], addresses: list[int]) -> None:
        """Compute it."""
        slot, sources, compute = self.computed.slot, self.computed.sources, self.computed.compute
        result = compute(*[arrays[source] if type(source) is int else source for source in sources])
        if slot is not None:
            arrays[slot], addresses[slot] = result, start_of(result)


@dataclass(frozen=True, slots=True)
class FillOperation:
    """Bytes of one value in an array."""

    slot: int
    value: int
    size_bytes: int

    def run(self, _arrays: list[Any], addresses: list[int]) -> None:
        """Set the bytes."""
        ctypes.memset(addresses[self.slot], self.value, self.size_bytes)


def _operations(program: Program, kernels: Mapping[KernelRef, CpuKernel], store: Store) -> Iterator[Operation]:
    for buffer in program.buffers:
        if buffer.fill is not None:
            yield FillOperation(buffer.slot, buffer.fill, math.prod(buffer.shape) * DTYPE_BYTES[buffer.dtype])
    for operation in program.operations:
        match operation:
            case data.Launch(kernel, _, threads, arguments):
                yield _launch(kernels[kernel], threads, arguments, store)
            case data.Computed():
                yield ComputeOperation(operation)
            case _:
                raise TypeError(f"no native code does {operation!r}")


def _launch(kernel: CpuKernel, threads: int, arguments: Sequence[Any], store: Store) -> LaunchOperation:
    plan, numbers, pointers = kernel.plan, [*arguments], []
    for position, source in enumerate(arguments):
        if isinstance(source, At):
            numbers[position] = source.offset_bytes if source.slot is None else 0
            if source.slot is not None:
                pointers.append((position, source.slot, source.offset_bytes))
    if threads > 1:
        pool = threads_of(store)
        numbers[plan.places["parallel"]], numbers[plan.places["team_size"]] = pool.parallel, pool.team_size
    workspace_bytes = kernel.workspace_bytes(plan.packer.pack(*numbers))
    return LaunchOperation(kernel, numbers, tuple(pointers), plan.places["workspace"], workspace_bytes)
