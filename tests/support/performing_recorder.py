"""A recorder that performs what it records, step by step: what descriptions and their traces are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from minrnn_gen.call.address import Address, PointerDifference, address_of, has_slots, plain_numbers
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import ResultT
from minrnn_gen.gpu import cublas, graph, memory
from minrnn_gen.gpu import stream as gpu_stream
from minrnn_gen.gpu.cublas import Product
from minrnn_gen.gpu.device import Place
from minrnn_gen.gpu.graph import Scratch, scratch_bytes_of
from minrnn_gen.gpu.lanes import Lanes, lanes_of
from minrnn_gen.gpu.memory import Allocation
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, KernelKey, KernelPass, Sizes
from minrnn_gen.run.cuda import CudaBackend, KernelLoader
from minrnn_gen.run.launch import Launch
from minrnn_gen.run.recording.describer import ALL_ONES
from minrnn_gen.run.recording.layout import Allocated, laid_out
from minrnn_gen.run.recording.operations import (
    CopyOperation,
    LaunchOperation,
    Module,
    Operation,
    ProductOperation,
    Program,
    StepsOnLanes,
)
from minrnn_gen.run.recording.replay import Cast, Finished, MetadataT, Replay, Trace, arrays_in, without_owners
from minrnn_gen.run.saved import owner_of


class TraceRecorder:
    """A run on a GPU: each method performs something, and records it. All that a replay has to do goes this way."""

    @staticmethod
    def can_store(*, waits: bool) -> bool:  # noqa: ARG004
        """Say that the arrays' library ends a run."""
        return False

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

    def multiply(self, product: Product, workspace: int | None = None) -> None:
        """Multiply by cuBLAS on the current stream; `workspace` as `cublas.multiply` takes it."""
        at = None if workspace is None else address_of(workspace)
        for part in product.parts:
            cublas.multiply(self._like.device, gpu_stream.current_stream(self._like), part, None, int(at or 0))
            pointers = tuple(address_of(matrix.pointer) for matrix in (part.left, part.right, part.result))
            self._record(ProductOperation(part, at), pointers if at is None else (*pointers, at))

    def copy_heads_first(self, R: Array, target: int) -> None:
        """Copy a contiguous R [gates, heads, D, D] to the address `target`, [heads, gates, D, D]."""
        graph.copy_heads_first(self._like.device, gpu_stream.current_stream(self._like), R, R.pointer, int(target))
        pointers = (R.address, address_of(target))
        self._record(CopyOperation(R, pointers), pointers)

    def stop(self) -> None:
        """Record no more: this run will not be replayed."""
        self._is_replayable = False

    def finish(self, result: ResultT, metadata: MetadataT, /) -> Finished[ResultT, MetadataT]:
        """Return the run, which was performed, and as a replay where it can be replayed."""
        return Finished(result.mapped(owner_of), metadata, self._replay(result, metadata))

    @staticmethod
    def enqueue(action: Callable[[Callable[[Any], Any]], None]) -> None:
        """Do what only Python does; pointers are addresses."""
        action(lambda pointer: pointer)

    def _replay(self, result: ResultT, metadata: MetadataT) -> Replay[ResultT, MetadataT] | None:
        if self._key is None:
            return None
        slots = result.mapped(self._slot_of)
        aligned = not any(address % WIDEST_COPY_BYTES for address in self._addresses[self._inputs :])
        if not (self._is_replayable and aligned):
            return None
        place = Place(self._like.library, self._like.device)
        held = {slot for array in (*self._results, *arrays_in(metadata)) if (slot := array.address.slot) is not None}
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
            metadata=without_owners(metadata),
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


class PerformingRecorder(TraceRecorder):
    """A run of the kernels of a backend on a GPU.

    `gives_workspace`: products work in memory of the run, as they do on lanes, where they run beside each other. Without,
    cuBLAS allocates some where the stream is captured, and a graph with allocations cannot become a part of another one.
    """

    def __init__(self, like: Array, keyed: KeyedArrays | None, kernels: KernelLoader, gives_workspace: bool = False) -> None:
        super().__init__(like, keyed)
        self._kernels, self._gives_workspace = kernels, gives_workspace
        self._workspaces: dict[int | None, Address] = {}

    def multiply(self, product: Product, workspace: int | None = None) -> None:
        """Multiply by cuBLAS on the current stream; all products of the run, or of a lane, share a workspace."""
        if workspace is None and (self._gives_workspace or self.lane is not None):
            if self.lane not in self._workspaces:
                self._workspaces[self.lane] = self.new_array((cublas.WORKSPACE_BYTES,), "uint8").address
            workspace = self._workspaces[self.lane]
        super().multiply(product, workspace)

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the kernel for a call of these sizes."""
        return self._kernels.choose(kernel_pass, specialization, sizes)

    def load(self, kernel: KernelKey, part: str = "") -> RecordedKernel:
        """Return a kernel, built and loaded when it is first met; `part` is the end of its name where the plan has several."""
        loaded, plan = self._kernels.load(kernel, part)
        return RecordedKernel(self, loaded, plan, self._like.device)

    @contextmanager
    def by_half(self) -> Iterator[None]:
        """Have the kernels that are chosen and loaded within be those for half of the GPU."""
        whole, self._kernels = self._kernels, self._kernels.half
        try:
            yield
        finally:
            self._kernels = whole

    def scratch(self, sizes_bytes: Mapping[str, int]) -> Scratch:
        """Allocate named pieces of memory, one behind the other, for the launches of this run alone."""
        return Scratch.laid_out(sizes_bytes, self.new_array((scratch_bytes_of(sizes_bytes),), "uint8").address)


class RecordedKernel(NamedTuple):
    """A kernel whose launches are recorded."""

    recorder: TraceRecorder
    loaded: LoadedKernel
    plan: KernelPlan
    device: int | None

    def launch(self, launch: Launch) -> None:
        """Launch, and record it."""
        self.recorder.launch(self.loaded, launch, self.plan.launch.threads)

    def resident_blocks(self) -> int:
        """Return how many blocks the device holds at once."""
        return self.loaded.resident_blocks(self.device, self.plan.launch.threads)


class PerformingBackend(CudaBackend):
    """A backend whose runs are performed step by step."""

    def begin(self, like: Array, keyed: KeyedArrays | None, _operands: Any) -> PerformingRecorder:  # type: ignore[override]
        """Begin a run beside `like`."""
        return PerformingRecorder(like, keyed, self._kernels, gives_workspace=not self.has_graphs)
