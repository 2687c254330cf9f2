"""Operations of a trace on arrays at any addresses, in one trip through C where available."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from minrnn_gen.call.address import Address, PointerDifference, address_of, has_slots
from minrnn_gen.call.array import Array, torch_empty
from minrnn_gen.config.environment import makes_graphs
from minrnn_gen.gpu import cublas, driver, graph, memory, retired
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.gpu import stream as gpu_stream
from minrnn_gen.gpu.cublas import Product
from minrnn_gen.gpu.device import Place, Placed
from minrnn_gen.gpu.lanes import lanes_of
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.native import trip


class Module(Protocol):
    """A kernel that a GPU has loaded, or loads when it is launched."""

    def launch(self, like: Placed, blocks: int, threads: int, arguments: Sequence[Any], /) -> None: ...


class Operation(Protocol):
    """One operation of a trace."""

    def replay(self, place: Place, addresses: list[int]) -> None:
        """Perform the operation on arrays that start at `addresses`, by slot."""

    def in_c(self, device: int) -> tuple[Any, ...] | None:
        """Return the operation in the form of `trip.c`; None for an operation that only Python performs."""


class LaunchOperation:
    """A launch; `pointers`: the arguments that depend on addresses of arrays, with their positions."""

    __slots__ = ("_addresses", "_arguments", "_blocks", "_differences", "_module", "_threads")

    def __init__(
        self,
        module: Module,
        blocks: int,
        threads: int,
        arguments: Sequence[Any],
        pointers: Sequence[tuple[int, Address | PointerDifference]],
    ) -> None:
        self._module, self._blocks, self._threads, self._arguments = module, blocks, threads, [*arguments]
        self._addresses: list[tuple[int, int, int]] = []
        self._differences: list[tuple[int, PointerDifference]] = []
        for position, pointer in pointers:
            if isinstance(pointer, PointerDifference):
                self._differences.append((position, pointer))
            elif pointer.slot is None:
                self._arguments[position] = int(pointer)
            else:
                self._addresses.append((position, pointer.slot, pointer.offset_bytes))

    def replay(self, place: Place, addresses: list[int]) -> None:
        """Launch on the current stream."""
        arguments = self._arguments.copy()
        for position, slot, offset_bytes in self._addresses:
            arguments[position] = addresses[slot] + offset_bytes
        for position, difference in self._differences:
            arguments[position] = difference.rebound(addresses)
        self._module.launch(place, self._blocks, self._threads, arguments)

    def in_c(self, device: int) -> tuple[Any, ...] | None:
        """Return the launch with its arguments packed; None where a module is not of the driver, or an array in no slot."""
        module = self._module
        if not isinstance(module, LoadedKernel) or not all(has_slots(difference) for _, difference in self._differences):
            return None
        configuration = (self._blocks, self._threads, module.dynamic_shared_bytes, module.is_cooperative)
        patches: list[tuple[Any, ...]] = [(position, 0, 0, slot, offset, 0) for position, slot, offset in self._addresses]
        for position, difference in self._differences:
            first, second = difference.first, difference.second
            patches.append((position, first.slot, first.offset_bytes, second.slot, second.offset_bytes, difference.itemsize))
        packed = driver.packed(self._arguments)
        return (trip.LAUNCH, int(module.function(device).ptr), *configuration, packed, tuple(patches))


class ProductOperation:
    """A product of matrices, in a `workspace` of the call, or in cuBLAS's own."""

    __slots__ = ("_pointers", "_product", "_workspace")

    def __init__(self, product: Product, workspace: Address | None = None) -> None:
        self._product, self._workspace = product, workspace
        self._pointers = [address_of(matrix.pointer) for matrix in (product.left, product.right, product.result)]

    def replay(self, place: Place, addresses: list[int]) -> None:
        """Multiply by cuBLAS."""
        left, right, result = [pointer.rebound(addresses) for pointer in self._pointers]
        workspace = 0 if self._workspace is None else self._workspace.rebound(addresses)
        stream = gpu_stream.current_stream(place)
        cublas.multiply(place.device, stream, self._product, (left, right, result), workspace)

    def in_c(self, _device: int) -> tuple[Any, ...] | None:
        """Return the product as numbers; None where an array is in no slot."""
        product = self._product
        if not all(map(has_slots, self._pointers)):
            return None
        left, right, result = product.left, product.right, product.result
        matrices = (
            (cublas.CUDA_TYPES[matrix.dtype], matrix.row, matrix.stride, pointer.slot, pointer.offset_bytes)
            for matrix, pointer in zip((left, right, result), self._pointers, strict=True)
        )
        sizes = (product.m, product.n, product.k, int(left.transposed), int(right.transposed))
        numbers = product.batch, product.compute_type, result.dtype == "float64", product.adds
        at = (-1, 0) if self._workspace is None else (self._workspace.slot, self._workspace.offset_bytes)
        return (trip.PRODUCT, sizes, *matrices, *numbers, (*at, cublas.WORKSPACE_BYTES))


class CopyOperation:
    """A copy of an array of the shape and dtype of `R` from one of `pointers` to the other."""

    __slots__ = ("_R", "_pointers")

    def __init__(self, R: Array, pointers: Sequence[Address]) -> None:
        self._R, self._pointers = replace(R, owner=None), pointers

    def replay(self, place: Place, addresses: list[int]) -> None:
        """Copy with the heads first."""
        source, target = [pointer.rebound(addresses) for pointer in self._pointers]
        graph.copy_heads_first(place.device, gpu_stream.current_stream(place), self._R, source, target)

    def in_c(self, _device: int) -> tuple[Any, ...] | None:
        """Return the copy as numbers; None where rows are further apart than the driver copies, or an array is in no slot."""
        R, (source, target) = self._R, self._pointers
        gates, heads, rows, columns = R.shape
        square_bytes = rows * columns * R.itemsize
        if gates * square_bytes > driver.PITCH_BYTES_MAX or not all(map(has_slots, self._pointers)):
            return None
        return trip.COPY, source.slot, source.offset_bytes, target.slot, target.offset_bytes, gates, heads, square_bytes


class FillOperation:
    """Bytes of one value from `start` on."""

    __slots__ = ("_size_bytes", "_start", "_value")

    def __init__(self, start: Address, size_bytes: int, value: int) -> None:
        self._start, self._size_bytes, self._value = start, size_bytes, value

    def replay(self, place: Place, addresses: list[int]) -> None:
        """Set the bytes."""
        memory.set_bytes(place, self._start.rebound(addresses), self._size_bytes, self._value)

    def in_c(self, _device: int) -> tuple[Any, ...]:
        """Return the fill as numbers."""
        return trip.SET_BYTES, self._start.slot, self._start.offset_bytes, self._value, self._size_bytes


class ActionOperation:
    """Runs in Python only, with a function that returns the address of a pointer of the run."""

    __slots__ = ("_run",)

    def __init__(self, run: Callable[[Callable[[Any], Any]], None]) -> None:
        self._run = run

    def replay(self, _place: Place, addresses: list[int]) -> None:
        """Do it."""

        def address(value: Any) -> Any:
            return value.rebound(addresses) if hasattr(value, "rebound") else value

        self._run(address)

    def in_c(self, _device: int) -> None:
        """Return None: only Python runs it."""
        return


class StepsOnLanes:
    """Steps of a run on lanes: each step's lane, the steps that it waits for, and its operations, in one trip."""

    __slots__ = ("_awaited", "_lanes", "_multiplies", "_steps")

    def __init__(self, place: Place, steps: Sequence[tuple[int, Sequence[int], Sequence[Operation]]]) -> None:
        self._steps = [(lane, waits, Program(place, tuple(operations))) for lane, waits, operations in steps]
        self._lanes = 1 + max((lane for lane, _, _ in steps), default=0)
        self._multiplies = any(program.multiplies for _, _, program in self._steps)
        self._awaited = {wait for _, waits, _ in steps for wait in waits}

    def replay(self, place: Place, addresses: list[int]) -> None:
        """Enqueue all steps on lanes that begin and end on the current stream."""
        assert place.device is not None
        stream, lanes = gpu_stream.current_stream(place), lanes_of(place.device)
        with gpu_device.on_device(place.device):
            handle = cublas.handle() if self._multiplies else 0
            lanes.fork(stream, self._lanes)
            for number, (lane, waits, program) in enumerate(self._steps):
                program.run_on(lanes.begin(lane, waits), handle, addresses)
                if number in self._awaited:
                    lanes.end(lane, number)
            lanes.join(stream, self._lanes)

    def in_c(self, _device: int) -> tuple[Any, ...] | None:
        """Return None: a trip goes to one stream."""
        return None


def _addresses_of(functions: Sequence[Any]) -> tuple[int, ...]:
    return tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions)


class Program:
    """Operations in order on arrays of one place: in one C call if C can run them all, else one by one."""

    __slots__ = ("__weakref__", "_in_c", "_multiplies", "_operations", "_place")

    def __init__(self, place: Place, operations: tuple[Operation, ...]) -> None:
        self._place, self._operations = place, operations
        self._multiplies = any(isinstance(operation, ProductOperation) for operation in operations)
        self._in_c = self._compiled()
        if self._in_c is not None:
            retired.outlive(self, self._in_c)  # which has graphs

    def _compiled(self) -> object | None:
        device = self._place.device
        if trip.LIBRARY is None or device is None or not self._operations:
            return None
        operations = [operation.in_c(device) for operation in self._operations]
        known = tuple(operation for operation in operations if operation is not None)
        if len(known) < len(operations):
            return None
        functions = (*driver.functions(), *(cublas.functions() if self._multiplies else (None,) * 4))
        if makes_graphs():
            trip.LIBRARY.graphs(_addresses_of(driver.graph_functions()))
        return trip.LIBRARY.program(_addresses_of(functions), known)  # type: ignore[no-any-return]

    @property
    def in_c(self) -> object | None:
        """The program of `trip.c`, None where there is none."""
        return self._in_c

    @property
    def multiplies(self) -> bool:
        """Whether the program needs a handle of cuBLAS."""
        return self._multiplies

    def run(self, addresses: list[int], _arrays: list[Any] | None = None) -> None:
        """Enqueue all operations on the current stream, with arrays that start at `addresses`, by slot."""
        if self._in_c is None:
            for operation in self._operations:
                operation.replay(self._place, addresses)
            return
        stream = gpu_stream.current_stream(self._place)
        with gpu_device.on_device(self._place.device):
            self.run_on(stream, cublas.handle() if self._multiplies else 0, addresses)

    def in_one_trip(self, memory: tuple[Any, ...], arrays: list[Any], addresses: list[int]) -> bool:
        """Allocate tensors of torch and enqueue all operations in one trip through C; return whether that was possible.

        `memory` is `Layout.in_c`; `arrays` and `addresses`, by slot, receive the allocations. Repeated runs on arrays at the
        same addresses are launched as one graph.
        """
        allocate = self._in_c and self._place.library == "torch" and torch_empty(self._place.device)
        exchange = allocate and trip.exchange_of(sys.modules["torch"].Tensor)
        if exchange is None or not allocate:
            return False
        stream, handle_of = gpu_stream.current_stream(self._place), cublas.handle if self._multiplies else None
        answer = trip.LIBRARY.replay(self._in_c, exchange, allocate, memory, arrays, addresses, stream, handle_of)  # type: ignore[union-attr]
        if answer is True:
            self._capture(addresses, stream)
        elif answer:
            self._go_on(answer, stream, cublas.handle() if self._multiplies else 0, addresses)
        return answer is not False

    def _capture(self, addresses: list[int], stream: int) -> None:
        device = self._place.device
        assert device is not None
        retired.destroy_retired()
        handle, workspace = (cublas.handle(), cublas.workspace_on(device, stream)) if self._multiplies else (0, 0)
        if workspace or not self._multiplies:
            trip.LIBRARY.capture(self._in_c, addresses, stream, handle, workspace)  # type: ignore[union-attr]

    def run_on(self, stream: int, handle: int, addresses: list[int]) -> None:
        """Enqueue all operations on a stream of the current device; `handle`: a handle of cuBLAS, for products."""
        if self._in_c is None:
            with gpu_stream.redirected(stream):
                for operation in self._operations:
                    operation.replay(self._place, addresses)
            return
        refused = trip.LIBRARY.run(self._in_c, addresses, stream, handle, 0)  # type: ignore[union-attr]
        if refused is not None:
            self._go_on(refused, stream, handle, addresses)

    def _go_on(self, refused: tuple[int, int, int], stream: int, handle: int, addresses: list[int]) -> None:
        """Repeat the operation that failed in a thread without a context, and all after it; raise any other error."""
        index, kind, status = refused
        if kind == trip.PRODUCT:
            cublas.check(status)
        if status == driver.NO_CONTEXT:
            gpu_device.make_context()
            again = trip.LIBRARY.run(self._in_c, addresses, stream, handle, index)  # type: ignore[union-attr]
            if again is None:
                return
            _, kind, status = again
            if kind == trip.PRODUCT:
                cublas.check(status)
        gpu_device.refuse(status)
