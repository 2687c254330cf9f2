"""The backend of emulation: kernels' own text on host arrays, with room around each; products by NumPy, launches watched."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.call.address import plain_numbers
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, as_numpy, numpy_dtype, wrap_numpy
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import ResultT
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import memory
from minrnn_gen.gpu.cublas import Matrix, Product
from minrnn_gen.gpu.graph import ALIGNMENT_BYTES, Scratch, copy_heads_first
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.findings import KernelMisbehaved
from minrnn_gen.interpret.library import EmulatedKernel, Memory, emulated_kernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.run.backend import Queue
from minrnn_gen.run.describe import ALL_ONES
from minrnn_gen.run.kernels import BuiltKernels
from minrnn_gen.run.replay import Finished
from minrnn_gen.run.saved import owner_of
from minrnn_gen.run.scan_launch import Launch

MetadataT = TypeVar("MetadataT")

# Nothing of ours begins so near to the end of another array: a kernel that writes beyond one end meets no other memory.
GAP_BYTES = 256
# NaN in every dtype with a point, and no index.
POISON = 0xFF
# Groups of blocks that wait for each other across a grid, launched at once: more than one, and soon more launches.
GROUPS_AT_ONCE = 2
# Blocks of a scan that are all resident: several of a column where there are few, and others that begin a column anew.
COOPERATIVE_BLOCKS = 6
# The bits of a float32 that tf32 does not have, and half of the last that it has.
TF32_IGNORED, TF32_HALF_UNIT = 0x1FFF, 0x1000
# Seeds of launches from one seed of a kernel to the next.
LAUNCHES_PER_SEED = 1 << 20


class EmulatedBackend:
    """Runs of kernels' text on host arrays; every launch takes the next of a sequence of seeds."""

    def __init__(
        self, builder: EmulatedBuilder, built: tuple[BuiltKernel, ...], refuse: Callable[[Call], None] = lambda _: None
    ) -> None:
        """Begin with the kernels that are `built`; `refuse` raises for calls that are not run here."""
        self._kernels = BuiltKernels(builder, built)
        self._builder, self._refuse = builder, refuse
        self._emulated: dict[str, EmulatedKernel] = {}
        self._seed, self._launches = 0, 0
        self.substitute: Callable[[str, KernelPlan], str] = lambda text, _: text
        """What is run in place of a kernel's text."""

    @property
    def built(self) -> Mapping[KernelKey, BuiltKernel]:
        """Every kernel so far, in the order in which they were built."""
        return self._kernels.built

    @property
    def has_graphs(self) -> bool:
        """Whether many steps are launched as a graph: none are here."""
        return False

    @property
    def has_lanes(self) -> bool:
        """Whether steps of a run may be on lanes: they are, one after the other."""
        return True

    @cached_property
    def half(self) -> EmulatedBackend:
        """What executes runs of kernels for half of the GPU."""
        return EmulatedBackend(self._builder.half, (), self._refuse)

    def without_graphs(self) -> EmulatedBackend:
        """Return this backend: what it emulates is not recorded."""
        return self

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Interleave the threads of the launches within as `seed` has it; the same again for the same."""
        before = self._seed, self._launches
        self._seed, self._launches = seed, 0
        try:
            yield
        finally:
            self._seed, self._launches = before

    def next_seed(self) -> int:
        """Return the seed of one more launch."""
        self._launches += 1
        return self._seed * LAUNCHES_PER_SEED + self._launches

    def takes(self, call: Call) -> bool:
        """Say that every call is run here, unless it is refused."""
        self._refuse(call)
        return True

    def plan(self, kernel: KernelKey) -> KernelPlan:
        """Return the plan of a kernel, built when it is first met."""
        return self._kernels.plan(kernel)

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the kernel for a call of these sizes."""
        return self._kernels.choose(kernel_pass, specialization, sizes)

    def build_ahead(self, _kernel_pass: KernelPass, _specialization: Specialization, _sizes: Sizes) -> None:
        """Build nothing ahead, which saves no time where nothing is compiled for a GPU."""

    def load(self, kernel: KernelKey) -> EmulatedKernel:
        """Return a kernel, its text compiled for the host when it is first met."""
        built = self._kernels.build(kernel)
        text = self.substitute(built.source, built.plan)
        if text not in self._emulated:
            self._emulated[text] = emulated_kernel(text, built.plan, self._builder.store)
        return self._emulated[text]

    def begin(self, like: Array, _keyed: KeyedArrays | None, operands: Iterable[Array | None]) -> EmulatedRecorder:
        """Begin a run beside `like` that may touch `operands`; raises BadInput for one that a GPU could not load."""
        operands = tuple(operands)
        for array in operands:
            if array is not None and 0 not in array.shape and int(array.pointer) % array.itemsize:
                raise BadInput(
                    f"{array.name} starts at address {int(array.pointer)}, no multiple of the {array.itemsize} bytes of "
                    f"{array.dtype}, from which no GPU loads; copy it"
                )
        return EmulatedRecorder(self, like, operands)

    @staticmethod
    def graph(
        _like: Array, _key: Hashable, _sizes_bytes: Mapping[str, int], _enqueue: Callable[[Scratch, Queue], None]
    ) -> None:
        """Return None: there are no graphs."""
        return

    @staticmethod
    def striding_blocks(rows: int) -> int:
        """Return how many blocks a kernel takes that strides over all there is: few, and more than one."""
        return 2 * rows


class EmulatedRecorder:
    """A run on host arrays, which is never replayed. Launches may touch its operands and what it allocates, and no others."""

    def __init__(self, backend: EmulatedBackend, like: Array, operands: Iterable[Array | None]) -> None:
        self._backend, self._kernels, self._like = backend, backend, like
        self._allocated: list[Any] = []  # which live as long as the run
        self._memory: dict[tuple[int, int], Memory] = {}
        for array in operands:
            if array is not None:
                self._watch_array(array)

    def new_array(self, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
        """Allocate a NumPy array, or one of torch beside its tensors; poisoned without `fill`."""
        if self._like.library == "numpy":
            values = _apart(shape, numpy_dtype(dtype))
            array = wrap_numpy(values, "result")
        else:
            array = memory.new_array(self._like, shape, dtype)
            values = as_numpy(array)
        values.reshape(-1).view(numpy.uint8)[...] = POISON if fill is None else fill
        self._allocated.append(values)
        name = f"result {len(self._memory)} of {list(shape)}"
        self._watch(Memory(name, int(array.pointer), values.nbytes, is_given=fill is not None))
        return array

    def workspace(self, size_bytes: int) -> Array | None:
        """Allocate bytes, all bits ones; None for no bytes."""
        return self.new_array((size_bytes,), "uint8", fill=ALL_ONES) if size_bytes else None

    def cast(self, array: Array, dtype: str) -> Array:
        """Return a whole array in a dtype, itself where it has that already."""
        return self._watched(array if array.dtype == dtype else memory.inspect(memory.cast(array.owner, dtype), array.name))

    def contiguous(self, array: Array) -> Array:
        """Return a whole array as a contiguous one, a copy where it is not."""
        return self._watched(memory.without_gaps(array))

    def zeroed_beyond(self, x: Array, axes: str, lengths: Array) -> Array:
        """Return an array with zeros beyond lengths."""
        return self._watched(memory.zeroed_beyond(x, axes, lengths))

    @staticmethod
    def loop(start: int, stop: int, step: int = 1) -> range:
        """Return the numbers of a range."""
        return range(start, stop, step)

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the kernel for a call of these sizes."""
        return self._kernels.choose(kernel_pass, specialization, sizes)

    def load(self, kernel: KernelKey, part: str = "") -> WatchedKernel:
        """Return a kernel whose launches are watched."""
        return WatchedKernel(self, self._kernels.load(kernel), part)

    def run(self, kernel: EmulatedKernel, blocks: int, arguments: Sequence[Any], part: str) -> None:
        """Launch a kernel; raises KernelMisbehaved where something is wrong with what it does."""
        findings = kernel.launch(blocks, plain_numbers(arguments), self._backend.next_seed(), self._memory.values(), part)
        if findings:
            raise KernelMisbehaved(findings)
        # What it was to write is there now, for the launches behind it.
        self._memory = {place: replace(watched, is_given=True) for place, watched in self._memory.items()}

    def multiply(self, product: Product, _workspace: int | None = None) -> None:
        """Multiply by NumPy, in float64, factors rounded as the product says."""
        left = _matrix(product.left, product.m, product.k, product.batch)
        right = _matrix(product.right, product.k, product.n, product.batch)
        if product.in_tf32:
            left, right = _rounded_to_tf32(left), _rounded_to_tf32(right)
        result = _matrix(product.result, product.m, product.n, product.batch)
        # What multiplies nothing may be anything, and overflows are results like others.
        with numpy.errstate(all="ignore"):
            total = left.astype(numpy.float64) @ right.astype(numpy.float64)
            result[...] = (total + result.astype(numpy.float64) if product.adds else total).astype(result.dtype)
        self.written(int(product.result.pointer))

    def copy_heads_first(self, R: Array, target: int) -> None:
        """Copy a contiguous R [gates, heads, D, D] to the address `target`, [heads, gates, D, D]."""
        copy_heads_first(None, 0, R, int(R.pointer), int(target))
        self.written(int(target))

    def scratch(self, sizes_bytes: Mapping[str, int]) -> Scratch:
        """Allocate pieces of memory, apart from each other: one array would hide what is written beyond a piece."""
        pieces = {
            name: int(self.new_array((size_bytes,), "uint8").pointer)
            for name, size_bytes in sizes_bytes.items()
            if name != "cublas"
        }
        return Scratch(sizes_bytes, {"cublas": 0, **pieces})

    @contextmanager
    def by_half(self) -> Iterator[None]:
        """Have the kernels that are chosen and loaded within be those for half of the GPU."""
        self._kernels = self._backend.half
        try:
            yield
        finally:
            self._kernels = self._backend

    @contextmanager
    def lanes(self, _count: int) -> Iterator[EmulatedRecorder]:
        """Return this recorder as lanes."""
        yield self

    @contextmanager
    def step(self, _lane: int, _waits: Sequence[int]) -> Iterator[None]:
        """Do what is done within behind all before it, whatever its lane."""
        yield

    def stop(self) -> None:
        """Record nothing, as ever."""

    def written(self, pointer: int) -> None:
        """Note that something is in the array at `pointer`."""
        for place, watched in self._memory.items():
            if watched.address <= pointer < watched.address + watched.size_bytes:
                self._memory[place] = replace(watched, is_given=True)

    @staticmethod
    def enqueue(action: Callable[[Callable[[Any], Any]], None]) -> None:
        """Do what only Python does; pointers are addresses."""
        action(lambda pointer: pointer)

    @staticmethod
    def finish(result: ResultT, metadata: MetadataT) -> Finished[ResultT, MetadataT]:
        """Return the run, which is not replayed."""
        return Finished(result.mapped(owner_of), metadata, None)

    def _watched(self, array: Array) -> Array:
        self._watch_array(array)
        return array

    def _watch_array(self, array: Array) -> None:
        """Let launches touch an array that was written before."""
        if 0 in array.shape:
            return
        reach = [stride * (size - 1) for stride, size in zip(array.strides, array.shape, strict=True)]
        first = int(array.pointer) + array.itemsize * sum(steps for steps in reach if steps < 0)
        size_bytes = array.itemsize * (1 + sum(map(abs, reach)))
        self._watch(Memory(array.name, first, size_bytes, is_given=True))

    def _watch(self, watched: Memory) -> None:
        if watched.size_bytes:
            self._memory[watched.address, watched.size_bytes] = watched


@dataclass(frozen=True, slots=True)
class WatchedKernel:
    """A kernel, or a `part` of several, whose launches are watched."""

    recorder: EmulatedRecorder
    kernel: EmulatedKernel
    part: str

    @property
    def plan(self) -> KernelPlan:
        """The plan of the kernel."""
        return self.kernel.plan

    def launch(self, launch: Launch) -> None:
        """Launch; raises KernelMisbehaved where something is wrong with what the kernel does."""
        self.recorder.run(self.kernel, launch.blocks, launch.arguments, self.part)

    def resident_blocks(self) -> int:
        """Return how many blocks are launched at once where they wait for each other."""
        return (
            COOPERATIVE_BLOCKS if self.plan.strategy in ("cooperative", "projected") else GROUPS_AT_ONCE * self.plan.grid_blocks
        )


def _apart(shape: tuple[int, ...], dtype: Any) -> Any:
    """Allocate as a GPU's driver aligns it, with nothing of ours around it."""
    size = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
    room = numpy.empty(size + 2 * GAP_BYTES + ALIGNMENT_BYTES, numpy.uint8)
    start = GAP_BYTES + -(room.ctypes.data + GAP_BYTES) % ALIGNMENT_BYTES
    return room[start : start + size].view(dtype).reshape(shape)


def _rounded_to_tf32(values: Any) -> Any:
    """Return float32 values rounded to 11 significant bits, ties away from zero; NaN stays NaN."""
    bits = (numpy.ascontiguousarray(values).view(numpy.uint32) + numpy.uint32(TF32_HALF_UNIT)) & ~numpy.uint32(TF32_IGNORED)
    return numpy.where(numpy.isnan(values), values, bits.view(numpy.float32))


def _matrix(matrix: Matrix, rows: int, columns: int, batch: int) -> Any:
    strides = (matrix.stride, 1, matrix.row) if matrix.transposed else (matrix.stride, matrix.row, 1)
    shape = (batch, rows, columns)
    return as_numpy(Array("matrix", "numpy", None, int(matrix.pointer), shape, strides, matrix.dtype, None))
