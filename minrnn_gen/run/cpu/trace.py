"""Native calls on tensors in host memory, recorded as they are performed and replayed for every call of the same key.

What a call does depends on nothing but the key of its tensors and the number of threads: the next one allocates, multiplies
and launches what the first did, at other addresses.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol

from minrnn_gen.build.cpu_kernel import CpuKernel
from minrnn_gen.build.store import Store
from minrnn_gen.call.address import Address
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import ResultT
from minrnn_gen.config.environment import thread_count
from minrnn_gen.gpu import memory
from minrnn_gen.native import trip
from minrnn_gen.run.cpu.interrupts import interpreter
from minrnn_gen.run.cpu.memory import WORKSPACE, empty, multiply, project
from minrnn_gen.run.cpu.products import without_autocast
from minrnn_gen.run.cpu.threads import threads_of
from minrnn_gen.run.recording.replay import TRACES_HELD

Matrix = Any
"""An array of a library: a tensor, or one of NumPy."""


class Operation(Protocol):
    """Something that a call does with its arrays, by slot, and their addresses."""

    def run(self, arrays: list[Any], addresses: list[int], /) -> None: ...


@dataclass(frozen=True, slots=True)
class LaunchOperation:
    """A kernel run with these arguments; `pointers` are those in arrays of the call: position, slot, offset in bytes."""

    kernel: CpuKernel
    numbers: list[Any]
    pointers: tuple[tuple[int, int, int], ...]
    workspace_place: int
    workspace_bytes: int

    def in_c(self) -> tuple[Any, ...]:
        """Return it as `trip.c` takes it."""
        patches = tuple((position, 0, 0, slot, offset_bytes, 0) for position, slot, offset_bytes in self.pointers)
        packed = self.kernel.plan.packer.pack(*self.numbers)
        return trip.KERNEL, self.kernel.address, packed, patches, self.workspace_place, self.workspace_bytes

    def run(self, _arrays: list[Any], addresses: list[int]) -> None:
        """Run it at other addresses; raises what a signal's handler raises."""
        numbers = self.numbers.copy()
        numbers[:3] = interpreter()
        for position, slot, offset_bytes in self.pointers:
            numbers[position] = addresses[slot] + offset_bytes
        numbers[self.workspace_place], _held = WORKSPACE.of(self.workspace_bytes)
        self.kernel.run(self.kernel.plan.packer.pack(*numbers))


@dataclass(frozen=True, slots=True)
class Projection:
    """x times the transposed weight, a tensor of `shape`; all by slot."""

    x: int
    weight: int
    product: int
    shape: tuple[int, ...]

    def run(self, arrays: list[Any], addresses: list[int]) -> None:
        """Multiply by torch."""
        product = project(arrays[self.x], arrays[self.weight]).view(self.shape)
        arrays[self.product], addresses[self.product] = product, product.data_ptr()


@dataclass(frozen=True, slots=True)
class ProjectionOfSteps:
    """`count` steps of x from `first` on, of the axis `axis`, times the transposed weight, into a tensor that has room."""

    x: int
    weight: int
    product: int
    axis: int
    first: int
    count: int

    def run(self, arrays: list[Any], _addresses: list[int]) -> None:
        """Multiply by torch."""
        weight = arrays[self.weight]
        outputs, inputs = weight.shape
        steps = arrays[self.x].narrow(self.axis, self.first, self.count).reshape(-1, inputs)
        torch = sys.modules["torch"]
        with torch.no_grad():
            torch.mm(steps, weight.t(), out=arrays[self.product].view(-1)[: steps.shape[0] * outputs].view(-1, outputs))


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """The product of two tensors as matrices of so many columns, the first one transposed or not, of `shape`; all by slot."""

    first: int
    first_columns: int
    is_transposed: bool
    second: int
    second_columns: int
    product: int
    shape: tuple[int, ...]

    def run(self, arrays: list[Any], addresses: list[int]) -> None:
        """Multiply by torch."""
        first = arrays[self.first].view(-1, self.first_columns)
        second = arrays[self.second].view(-1, self.second_columns)
        product = multiply(first.t() if self.is_transposed else first, second).view(self.shape)
        arrays[self.product], addresses[self.product] = product, product.data_ptr()


@dataclass(frozen=True, slots=True)
class Zeros:
    """A tensor of zeros, by slot."""

    slot: int
    shape: tuple[int, ...]
    dtype: Any

    def run(self, arrays: list[Any], addresses: list[int]) -> None:
        """Allocate it by torch."""
        tensor = sys.modules["torch"].zeros(self.shape, dtype=self.dtype)
        arrays[self.slot], addresses[self.slot] = tensor, tensor.data_ptr()


class Allocation(NamedTuple):
    """A tensor to be allocated."""

    slot: int
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, slots=True, eq=False)
class CpuTrace(Generic[ResultT]):
    """A call to be replayed, any number of times and by several threads at once; `slots` are its results."""

    count: int
    allocations: tuple[Allocation, ...]
    operations: tuple[Operation, ...]
    slots: ResultT

    def replay(self, keyed: KeyedArrays) -> ResultT:
        """Do the call again."""
        arrays, addresses = keyed.arrays + [None] * self.count, keyed.addresses + [0] * self.count
        for slot, shape, dtype in self.allocations:
            arrays[slot] = tensor = empty(shape, dtype)
            addresses[slot] = tensor.data_ptr()
        with without_autocast():
            for operation in self.operations:
                operation.run(arrays, addresses)
        return self.slots.mapped(lambda slot: None if slot is None else arrays[slot])


class CpuTraceCache(Generic[ResultT]):
    """The traces of one kernel by key and number of threads; may be used from several threads."""

    def __init__(self) -> None:
        self._traces: dict[Hashable, CpuTrace[ResultT]] = {}

    def replay(self, keyed: KeyedArrays | None, kind: Hashable = None) -> ResultT | None:
        """Do a call again, or return None where no call of its key was recorded; `kind` is a part of the key."""
        if keyed is None:
            return None
        trace = self._traces.get((keyed.key, kind, thread_count()))
        return None if trace is None else trace.replay(keyed)

    def take(self, keyed: KeyedArrays, kind: Hashable = None) -> CpuTrace[ResultT] | None:
        """Return the trace of a call, and keep it no longer."""
        return self._traces.pop((keyed.key, kind, thread_count()), None)

    def keep(self, keyed: KeyedArrays | None, kind: Hashable, trace: CpuTrace[ResultT] | None) -> None:
        """Keep a trace, instead of all else where there is no room."""
        if keyed is None or trace is None:
            return
        if len(self._traces) >= TRACES_HELD:
            self._traces.clear()
        self._traces[keyed.key, kind, thread_count()] = trace


class CpuRecorder:
    """A native call: each method performs something, and records it where it can be replayed."""

    def __init__(self, store: Store, like: Array, keyed: KeyedArrays | None) -> None:
        """Begin a call beside `like`; the arrays of `keyed` have their slots."""
        self._store, self._like = store, like
        self._inputs = self._next_slot = 0 if keyed is None else len(keyed.arrays)
        self._is_replayable = keyed is not None
        self._allocations: list[Allocation] = []
        self._operations: list[Operation] = []

    def new_array(self, shape: tuple[int, ...], dtype: str) -> Array:
        """Allocate an array beside the caller's."""
        array = self._allocated(shape, dtype)
        slot = self._take_slot()
        if self._is_replayable:
            self._allocations.append(Allocation(slot, shape, array.owner.dtype))
        return array.with_slot(slot)

    def _allocated(self, shape: tuple[int, ...], dtype: str) -> Array:
        if self._like.library != "torch":
            return memory.new_array(self._like, shape, dtype)
        return memory.inspect(empty(shape, getattr(sys.modules["torch"], dtype)), "result")

    @property
    def is_replayable(self) -> bool:
        """Whether this call is recorded."""
        return self._is_replayable

    def stop(self) -> None:
        """Record no more: this call will not be replayed."""
        self._is_replayable = False

    def with_slot(self, array: Array) -> Array:
        """Return the result of a product that was just performed, in a slot of its own."""
        return array.with_slot(self._take_slot())

    def record(self, operation: Operation) -> None:
        """Record what was performed."""
        self._operations.append(operation)

    def perform(self, operation: Operation, arrays: Sequence[Array]) -> None:
        """Perform an operation on arrays by slot, and record it."""
        owners: dict[int, Any] = {array.address.slot or 0: array.owner for array in arrays}
        operation.run([owners.get(slot) for slot in range(max(owners) + 1)], [])
        self.record(operation)

    def launch(self, kernel: CpuKernel, values: Mapping[str, Any]) -> None:
        """Run a kernel with arguments by name; those that are not there are 0."""
        plan = kernel.plan
        pool = threads_of(self._store) if values["threads"] > 1 else None
        by_name = {**values, **({} if pool is None else {"parallel": pool.parallel, "team_size": pool.team_size})}
        numbers = [by_name.get(field.name, 0) for field in plan.fields]
        place = plan.places["workspace"]
        workspace_bytes = kernel.workspace_bytes(plan.packer.pack(*numbers))
        pointers = []
        for position, number in enumerate(numbers):
            if isinstance(number, Address) and number.slot is not None:
                pointers.append((position, number.slot, number.offset_bytes))
            elif number and plan.fields[position].is_array:
                self.stop()
        operation = LaunchOperation(kernel, numbers, (), place, workspace_bytes)
        operation.run([], [])
        self.record(
            LaunchOperation(
                kernel, [int(n) if isinstance(n, Address) else n for n in numbers], tuple(pointers), place, workspace_bytes
            )
        )

    def finish(self, result: ResultT) -> CpuTrace[ResultT] | None:
        """Return the call, which is over, as one that can be replayed, or None where it cannot; `result` has its arrays."""
        if not self._is_replayable:
            return None
        count = self._next_slot - self._inputs
        return CpuTrace(count, tuple(self._allocations), tuple(self._operations), result.mapped(_slot_of))

    def _take_slot(self) -> int:
        self._next_slot += 1
        return self._next_slot - 1


def _slot_of(array: Array | None) -> int | None:
    return None if array is None else array.address.slot


def slots_from(arrays: Sequence[Array], first: int) -> list[Array]:
    """Return arrays with slots from `first` on."""
    return [array.with_slot(slot) for slot, array in enumerate(arrays, first)]
