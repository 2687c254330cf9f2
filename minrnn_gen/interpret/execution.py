"""A described run performed on host memory: launches of kernels' own text, watched; products and copies by NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy

from minrnn_gen.call.array import Array, as_numpy, contiguous_strides, numpy_dtype, wrap_numpy
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.gpu import memory
from minrnn_gen.gpu.graph import ALIGNMENT_BYTES, copy_heads_first
from minrnn_gen.interpret.findings import KernelMisbehaved
from minrnn_gen.interpret.library import EmulatedKernel, Memory
from minrnn_gen.program import data
from minrnn_gen.program.data import At, Buffer, Gap, KernelRef, Program
from minrnn_gen.run.recording.replay import arrays_in

# Guard zone around each allocation, so that an out-of-bounds write hits no other array.
GAP_BYTES = 256
# NaN in every dtype with a point, and no index.
POISON = 0xFF
# The bits of a float32 that tf32 lacks, and half of the last bit that tf32 keeps.
TF32_IGNORED, TF32_HALF_UNIT = 0x1FFF, 0x1000


class Execution:
    """Memory of one run, by slot, and the run's operations on it. Launches may touch only operands and buffers.

    A buffer is allocated by the first operation on it, poisoned where it has no fill. A launch may write all buffers that it,
    or a launch before it, has as arguments; from then on they may be read.
    """

    def __init__(
        self,
        like: Array,
        keyed: KeyedArrays,
        operands: Sequence[Array],
        buffers: Sequence[Buffer],
        next_seed: Callable[[], int],
    ) -> None:
        """Begin with the arrays of `keyed`; launches may touch `operands`, which include these. Each launch takes a seed."""
        self._like, self._next_seed = like, next_seed
        self.arrays: list[Any] = [*keyed.arrays, *[None] * len(buffers)]
        self.addresses = [*keyed.addresses, *[0] * len(buffers)]
        self._memory: dict[tuple[int, int], Memory] = {}
        self._names = {operand.address.slot: operand.name for operand in operands}
        for operand in operands:
            self._watch_array(operand)
        counts = itertools.accumulate((0 not in buffer.shape for buffer in buffers), initial=len(self._memory))
        self._waiting = {buffer.slot: (buffer, number) for buffer, number in zip(buffers, counts, strict=False)}
        self._watched: dict[int, tuple[int, int]] = {}

    def run(self, program: Program, kernels: Mapping[KernelRef, EmulatedKernel]) -> None:
        """Perform a program; raises KernelMisbehaved where a kernel makes an error."""
        for cast in program.casts:
            del self._waiting[cast.slot]
            converted = memory.inspect(memory.cast(self.arrays[cast.source], cast.dtype), self._names.get(cast.source, "array"))
            self.arrays[cast.slot], self.addresses[cast.slot] = converted.owner, int(converted.pointer)
            self._watch_array(converted)
        for operation in data.unrolled(program.operations):
            self._perform(operation, kernels)
        program.results.mapped(self._allocate)
        for array in arrays_in(program.metadata):
            self._allocate(array.address.slot)

    def _perform(self, operation: Any, kernels: Mapping[KernelRef, EmulatedKernel]) -> None:
        match operation:
            case data.Launch(kernel, blocks, _, sources):
                places = [place for source in sources for place in _places_in(source)]
                self._allocate_all(places)
                numbers = [self._number(source) for source in sources]
                findings = kernels[kernel].launch(blocks, numbers, self._next_seed(), self._memory.values(), kernel.part)
                if findings:
                    raise KernelMisbehaved(findings)
                self._give(places)
            case data.Multiply(left=left, right=right, result=result):
                self._allocate_all([left.at, right.at, result.at])
                self._multiply(operation)
                self._give([result.at])
            case data.CopyHeadsFirst(shape, dtype, source, target):
                self._allocate_all([source, target])
                R = Array("R", "numpy", None, 0, shape, contiguous_strides(shape), dtype, None)
                copy_heads_first(None, 0, R, self._address(source), self._address(target))
                self._give([target])
            case data.AddUp(source, target, parts, rows, batch, width, first, count):
                sums, total = self._ends(source, target)
                by_row = sums.reshape(-1, parts, rows, batch, width)[:, :, first : first + count]
                total[...] = by_row.sum((1, 3)).astype(total.dtype).reshape(total.shape)
                self._give([target])
            case data.Store(source, target, _, heads, gates, square):
                wide, stored = self._ends(source, target)
                stored[...] = wide.reshape(-1, heads, gates, square).swapaxes(1, 2).astype(stored.dtype).reshape(stored.shape)
                self._give([target])
            case data.OnLanes(steps):
                for step in steps:
                    for inner in step.body:
                        self._perform(inner, kernels)
            case _:
                raise TypeError(f"no host does {operation!r}")

    def _ends(self, *places: At) -> list[Any]:
        """Return whole buffers as NumPy's arrays."""
        self._allocate_all(places)
        return [as_numpy(memory.inspect(self.arrays[place.slot or 0], "a gradient")) for place in places]

    def _multiply(self, product: data.Multiply) -> None:
        """Multiply by NumPy, in float64, factors rounded as the product says."""
        left = self._matrix(product.left, product.m, product.k, product.batch)
        right = self._matrix(product.right, product.k, product.n, product.batch)
        if product.in_tf32:
            left, right = _rounded_to_tf32(left), _rounded_to_tf32(right)
        result = self._matrix(product.result, product.m, product.n, product.batch)
        # Unused values may be anything, and overflows are valid results.
        with numpy.errstate(all="ignore"):
            total = left.astype(numpy.float64) @ right.astype(numpy.float64)
            result[...] = (total + result.astype(numpy.float64) if product.adds else total).astype(result.dtype)

    def _matrix(self, matrix: data.Matrix, rows: int, columns: int, batch: int) -> Any:
        at, dtype, row, stride, transposed = matrix
        strides = (stride, 1, row) if transposed else (stride, row, 1)
        return as_numpy(Array("matrix", "numpy", None, self._address(at), (batch, rows, columns), strides, dtype, None))

    def _number(self, source: Any) -> Any:
        if isinstance(source, At):
            return self._address(source)
        if isinstance(source, Gap):
            return (self._address(source.second) - self._address(source.first)) // source.itemsize
        return source

    def _address(self, at: At) -> int:
        return at.offset_bytes if at.slot is None else self.addresses[at.slot] + at.offset_bytes

    def _allocate_all(self, places: Sequence[At]) -> None:
        for slot in sorted({place.slot for place in places if place.slot is not None}):
            self._allocate(slot)

    def _allocate(self, slot: int | None) -> None:
        """Allocate a buffer unless it exists: a NumPy array, or a torch tensor if the arrays are torch's."""
        if slot is None or slot not in self._waiting:
            return
        buffer, number = self._waiting.pop(slot)
        if self._like.library == "numpy":
            values = _apart(buffer.shape, numpy_dtype(buffer.dtype))
            array = wrap_numpy(values, "result")
        else:
            array = memory.new_array(self._like, buffer.shape, buffer.dtype)
            values = as_numpy(array)
        values.reshape(-1).view(numpy.uint8)[...] = POISON if buffer.fill is None else buffer.fill
        self.arrays[slot], self.addresses[slot] = array.owner, int(array.pointer)
        if values.nbytes:
            self._watched[slot] = (self.addresses[slot], values.nbytes)
            name = f"result {number} of {[*buffer.shape]}"
            self._memory[self._watched[slot]] = Memory(name, *self._watched[slot], is_given=buffer.fill is not None)

    def _give(self, places: Sequence[At]) -> None:
        """Note that the buffers of places have values."""
        for place in places:
            if place.slot in self._watched:
                key = self._watched[place.slot]
                self._memory[key] = replace(self._memory[key], is_given=True)

    def _watch_array(self, array: Array) -> None:
        """Let launches access an array, unless it is empty."""
        if 0 in array.shape:
            return
        reach = [stride * (size - 1) for stride, size in zip(array.strides, array.shape, strict=True)]
        first = int(array.pointer) + array.itemsize * sum(steps for steps in reach if steps < 0)
        size_bytes = array.itemsize * (1 + sum(map(abs, reach)))
        self._memory[first, size_bytes] = Memory(array.name, first, size_bytes, is_given=True)


def _places_in(source: Any) -> tuple[At, ...]:
    if isinstance(source, At):
        return (source,)
    return (source.first, source.second) if isinstance(source, Gap) else ()


def _apart(shape: tuple[int, ...], dtype: Any) -> Any:
    """Allocate with the alignment of a GPU's driver, between guard zones."""
    size = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
    room = numpy.empty(size + 2 * GAP_BYTES + ALIGNMENT_BYTES, numpy.uint8)
    start = GAP_BYTES + -(room.ctypes.data + GAP_BYTES) % ALIGNMENT_BYTES
    return room[start : start + size].view(dtype).reshape(shape)


def _rounded_to_tf32(values: Any) -> Any:
    """Return float32 values rounded to 11 significant bits, ties away from zero; NaN stays NaN."""
    bits = (numpy.ascontiguousarray(values).view(numpy.uint32) + numpy.uint32(TF32_HALF_UNIT)) & ~numpy.uint32(TF32_IGNORED)
    return numpy.where(numpy.isnan(values), values, bits.view(numpy.float32))
