"""A described run of integers as a trace, by which the first call of a key runs, and all later ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minrnn_gen.call.address import Address, PointerDifference
from minrnn_gen.call.array import DTYPE_BYTES, Array, contiguous_strides
from minrnn_gen.call.key import CallKey
from minrnn_gen.codegen.gradients import (
    ADD_UP,
    ADD_UP_STORED,
    GRADIENTS,
    STORE,
    STRIDING_BLOCKS,
    STRIDING_THREADS,
    SUMMED_LANES,
    SUMMED_THREADS,
)
from minrnn_gen.gpu.cublas import Matrix, Product
from minrnn_gen.gpu.device import Place
from minrnn_gen.gpu.memory import Allocation, own_dtype
from minrnn_gen.program import data
from minrnn_gen.program.data import At, Gap, KernelRef, Program
from minrnn_gen.program.number import Expr, divided_up, value
from minrnn_gen.run.recording import operations
from minrnn_gen.run.recording.layout import Allocated, laid_out
from minrnn_gen.run.recording.operations import (
    ActionOperation,
    CopyOperation,
    LaunchOperation,
    Module,
    Operation,
    ProductOperation,
    StepsOnLanes,
)
from minrnn_gen.run.recording.replay import Cast, Trace, arrays_in

Buffers = Mapping[int | None, data.Buffer]


def trace_of(program: Program, key: CallKey, place: Place, modules: Mapping[KernelRef, Module]) -> Trace[Any, Any]:
    """Return a trace that executes a program in `place`; `modules` has its kernels, loaded or loaded on first use."""
    allocated = [
        Allocated(
            buffer.slot,
            Allocation(buffer.shape, buffer.strides, own_dtype(place, buffer.dtype), buffer.fill),
            math.prod(buffer.shape) * DTYPE_BYTES[buffer.dtype],
        )
        for buffer in program.buffers
    ]
    held = {slot for array in arrays_in(program.metadata) if (slot := array.address.slot) is not None}
    program.results.mapped(held.add)
    converted = {cast.slot for cast in program.casts}
    laid = laid_out([array for array in allocated if array.slot not in converted], held, own_dtype(place, "uint8"))
    enqueued = _operations(program.operations, place, modules, {buffer.slot: buffer for buffer in program.buffers})
    return Trace(
        key=key,
        place=place,
        allocations=tuple(array.allocation for array in allocated),
        layout=laid,
        casts=tuple(Cast(cast.slot, cast.source, cast.dtype) for cast in program.casts),
        program=operations.Program(place, (*laid.fills, *enqueued)),
        slots=program.results,
        metadata=program.metadata,
    )


def _operations(
    described: Sequence[Any], place: Place, modules: Mapping[KernelRef, Module], buffers: Buffers
) -> Iterator[Operation]:
    for operation in described:
        if not isinstance(operation, data.Loop):
            yield from _enqueued(operation, place, modules, buffers, {})
            continue
        # An operation that does not depend on the index is the same each time.
        same = [() if _has_symbols(inner) else _enqueued(inner, place, modules, buffers, {}) for inner in operation.body]
        for index in range(operation.start, operation.stop, operation.step):
            for inner, known in zip(operation.body, same, strict=True):
                yield from known or _enqueued(inner, place, modules, buffers, {operation.index: index})


def _enqueued(
    operation: Any, place: Place, modules: Mapping[KernelRef, Module], buffers: Buffers, sizes: Mapping[str, int]
) -> tuple[Operation, ...]:
    """Return the launches of an operation: several for a product that cuBLAS computes in parts."""
    match operation:
        case data.Launch(kernel, blocks, threads, arguments):
            numbers: list[Any] = [*arguments]
            pointers = []
            for position, source in enumerate(arguments):
                if isinstance(source, At | Gap):
                    pointers.append((position, _pointer(source, sizes)))
                    numbers[position] = 0
                elif isinstance(source, Expr):
                    numbers[position] = value(source, sizes)
            return (LaunchOperation(modules[kernel], value(blocks, sizes), threads, numbers, pointers),)
        case data.Multiply():
            m, n, k, batch = (value(size, sizes) for size in (operation.m, operation.n, operation.k, operation.batch))
            left, right, result = (_matrix(matrix, sizes) for matrix in (operation.left, operation.right, operation.result))
            product = Product(m, n, k, left, right, result, batch, operation.adds, operation.in_tf32)
            at = None if operation.workspace is None else _address(operation.workspace, sizes)
            return tuple(ProductOperation(part, at) for part in product.parts)
        case data.AddUp():
            return (_added_up(operation, modules, buffers),)
        case data.Store(source, target, count, heads, gates, square):
            blocks = min(divided_up(count, STRIDING_THREADS), STRIDING_BLOCKS)
            ends = [(0, _address(source, sizes)), (1, _address(target, sizes))]
            module = modules[KernelRef(GRADIENTS, STORE)]
            return (LaunchOperation(module, blocks, STRIDING_THREADS, [0, 0, count, heads, gates, square], ends),)
        case data.CopyHeadsFirst(shape, dtype, source, target):
            R = Array("R", place.library, None, 0, shape, contiguous_strides(shape), dtype, place.device)
            return (CopyOperation(R, (_address(source, sizes), _address(target, sizes))),)
        case data.OnLanes(steps):
            of_steps = [(step.lane, step.waits, tuple(_operations(step.body, place, modules, buffers))) for step in steps]
            return (StepsOnLanes(place, of_steps),)
        case data.Action(run):
            return (ActionOperation(run),)
    raise TypeError(f"no GPU does {operation!r}")


def _added_up(operation: data.AddUp, modules: Mapping[KernelRef, Module], buffers: Buffers) -> LaunchOperation:
    """Return a launch with a warp of channels for each block; it adds up in the dtype of its source."""
    _, _, parts, rows, batch, width, first, count = data.members_of(operation)
    source, target = (buffers[at.slot] for at in (operation.source, operation.target))
    part = ADD_UP if target.dtype == source.dtype else ADD_UP_STORED
    vectors = math.prod(target.shape) // width
    pointers = [(0, Address(0, source.slot)), (1, Address(0, target.slot))]
    module, blocks = modules[KernelRef(GRADIENTS, part)], vectors * divided_up(width, SUMMED_LANES)
    arguments = [0, 0, parts, rows, batch, width, first, count]
    return LaunchOperation(module, blocks, SUMMED_THREADS, arguments, pointers)


def _matrix(matrix: data.Matrix, sizes: Mapping[str, int]) -> Matrix:
    at, dtype, row, stride, transposed = matrix
    return Matrix(_address(at, sizes), dtype, value(row, sizes), value(stride, sizes), transposed)


def _pointer(source: At | Gap, sizes: Mapping[str, int]) -> Address | PointerDifference:
    if isinstance(source, At):
        return _address(source, sizes)
    return PointerDifference(_address(source.first, sizes), _address(source.second, sizes), source.itemsize)


def _address(at: At, sizes: Mapping[str, int]) -> Address:
    offset_bytes = value(at.offset_bytes, sizes)
    return Address(offset_bytes) if at.slot is None else Address(0, at.slot, offset_bytes)


def _has_symbols(part: Any) -> bool:
    """Say whether an operation depends on a symbol."""
    match part:
        case Expr():
            return True
        case data.Launch():
            return any(map(_has_symbols, (part.blocks, *part.arguments)))
        case data.Multiply():
            sizes = (part.m, part.n, part.k, part.batch)
            return any(map(_has_symbols, (*sizes, part.left, part.right, part.result, part.workspace)))
        case tuple():
            return any(map(_has_symbols, part))
        case data.CopyHeadsFirst():
            return any(map(_has_symbols, (part.source, part.target)))
    return isinstance(part, data.Loop | data.OnLanes | data.Action)
