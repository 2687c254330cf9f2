"""Calls on host arrays by the kernels' own text: arrays with room around each, products by NumPy, launches by the machine."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy

from minrnn_gen.call.address import Address, Gap
from minrnn_gen.call.arguments import Call, IncomingGradient
from minrnn_gen.call.array import Array, as_numpy, numpy_dtype, wrap_numpy
from minrnn_gen.call.interface import Contract
from minrnn_gen.call.key import Reading
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import BEGIN, STEP, STEP_SIGNATURE
from minrnn_gen.gpu import memory
from minrnn_gen.gpu.cublas import Matrix, Product
from minrnn_gen.gpu.graph import ALIGNMENT_BYTES, Scratch, copy_heads_first
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.findings import KernelMisbehaved
from minrnn_gen.interpret.library import EmulatedKernel, Memory, emulated_kernel
from minrnn_gen.plan.kernel_plan import KeptStates, KernelPlan, Regime
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.run.dense import DenseRun
from minrnn_gen.run.dense_launch import NamedArguments, scratch_sizes, step_product
from minrnn_gen.run.replay import ALL_ONES, Played, Steps
from minrnn_gen.run.saved import Forward
from minrnn_gen.run.scan import DeviceRun
from minrnn_gen.run.scan_launch import Launch
from minrnn_gen.run.stepwise import BEGIN_BLOCKS, Arguments, Prepare

# Nothing of ours begins so near to the end of another array: who writes beyond one end meets nobody's memory.
GAP_BYTES = 256
# NaN in every dtype with a point, and no index.
POISON = 0xFF
# Groups of blocks that wait for each other across a grid, launched at once: more than one, and soon more launches.
GROUPS_AT_ONCE = 2


@dataclass
class Seed:
    """The seed of the launches of a kernel; each takes the next of its own."""

    value: int = 0
    launches: int = 0
    slack: int = field(default=1 << 20, repr=False)

    def next(self) -> int:
        """Return the seed of one more launch."""
        self.launches += 1
        return self.value * self.slack + self.launches


class EmulatedSteps(Steps):
    """What one run does, on host arrays: none of it is noted down. Launches may touch the arrays that it was told of alone."""

    def __init__(self, like: Array, reading: Reading | None, given: Sequence[object], seed: Seed) -> None:
        super().__init__(like, reading)
        self._seed = seed
        self._memory: dict[tuple[int, int], Memory] = {}
        self.give(*given)
        self.forget()

    def give(self, *given: object) -> None:
        """Let launches touch every array of frozen dataclasses and tuples, all written before."""
        for array in _arrays(given):
            self._add(array)

    def new_array(self, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
        """Allocate a NumPy array, or one of torch beside its tensors; poisoned without `fill`."""
        if self._like.library == "numpy":
            values = _apart(shape, numpy_dtype(dtype))
            array = wrap_numpy(values, "result")
        else:
            array = memory.new_array(self._like, shape, dtype)
            values = as_numpy(array)
        values.reshape(-1).view(numpy.uint8)[...] = POISON if fill is None else fill
        self._arrays.append(values)  # which live as long as the run
        name = f"result {len(self._memory)} of {list(shape)}"
        self._note_memory(Memory(name, int(array.pointer), values.nbytes, is_given=fill is not None))
        return array

    def workspace(self, size_bytes: int) -> Array | None:
        """Allocate bytes, all bits ones; None for no bytes."""
        return self.new_array((size_bytes,), "uint8", fill=ALL_ONES) if size_bytes else None

    def launch(self, loaded: Any, launch: Launch, threads: int) -> None:
        """Launch a kernel; raises KernelMisbehaved where something is wrong with what it does."""
        del threads
        self.run(loaded, launch.blocks, launch.arguments)

    def run(self, kernel: EmulatedKernel, blocks: int, arguments: Sequence[Any], part: str = "") -> None:
        """Launch the kernel, or a `part` of several; raises KernelMisbehaved."""
        words = [int(one) if isinstance(one, (Address, Gap)) else one for one in arguments]
        findings = kernel.launch(blocks, words, self._seed.next(), self._memory.values(), part)
        if findings:
            raise KernelMisbehaved(findings)
        # What it was to write is there now, for the launches behind it.
        self._memory = {key: replace(one, is_given=True) for key, one in self._memory.items()}

    def multiply(self, product: Product) -> None:
        """Multiply by NumPy, in float64."""
        left = _matrix(product.left, product.m, product.k, product.batch)
        right = _matrix(product.right, product.k, product.n, product.batch)
        result = _matrix(product.result, product.m, product.n, product.batch)
        # What multiplies nothing may be anything, and overflows are results like others.
        with numpy.errstate(all="ignore"):
            total = left.astype(numpy.float64) @ right.astype(numpy.float64)
            result[...] = (total + result.astype(numpy.float64) if product.adds else total).astype(result.dtype)
        self.written(int(product.result.pointer))

    def copy_heads_first(self, R: Array, packed: Array) -> None:
        """Copy a contiguous R [gates, heads, D, D] to `packed`, [heads, gates, D, D]."""
        copy_heads_first(None, 0, R, R.pointer, packed.pointer)
        self.written(int(packed.pointer))

    def played(self, results: Sequence[Array | None], notes: Any) -> Played | None:
        """Return None: nothing is played again."""
        del results, notes
        return None

    def _add(self, array: Array) -> None:
        if 0 in array.shape:
            return
        reach = [stride * (size - 1) for stride, size in zip(array.strides, array.shape, strict=True)]
        first = int(array.pointer) + array.itemsize * sum(one for one in reach if one < 0)
        size_bytes = array.itemsize * (1 + sum(map(abs, reach)))
        self._note_memory(Memory(array.name, first, size_bytes, is_given=True))

    def _note_memory(self, one: Memory) -> None:
        if one.size_bytes:
            self._memory[one.address, one.size_bytes] = one

    def written(self, pointer: int) -> None:
        """Note that something is in the array at `pointer`."""
        for key, one in self._memory.items():
            if one.address <= pointer < one.address + one.size_bytes:
                self._memory[key] = replace(one, is_given=True)


class EmulatedScratch(Scratch):
    """Named pieces of host memory."""

    def clear(self, device: int | None, stream: int, name: str) -> None:
        """Put zeros into a piece."""
        del device, stream
        ctypes.memset(self[name], 0, self.sizes_bytes[name])


class EmulatedWalk:
    """The steps of a dense cell one by one, as a product and a launch of the kernels that `load` gives."""

    def __init__(self, contract: Contract, load: Callable[[str, KernelPlan], EmulatedKernel]) -> None:
        self._contract, self._load = contract, load

    def run(
        self,
        kernel_pass: KernelPass,
        kernel: tuple[bytes, KernelPlan],
        steps: EmulatedSteps,
        part: Call,
        arguments: Arguments,
        prepare: Prepare,
    ) -> None:
        """Run all steps of a call of one direction, and one more; see `AlternatingWalk.run`. A kernel comes as its text."""
        text, plan = kernel
        loaded = self._load(text.decode(), plan)
        backward = kernel_pass == "backward"
        sizes = scratch_sizes(self._contract, part.batch, backward)
        # Each apart from the others, as one array would hide who writes beyond its piece.
        pieces = {name: int(steps.new_array((size,), "uint8").pointer) for name, size in sizes.items() if name != "cublas"}
        scratch = EmulatedScratch(sizes, {"cublas": 0, **pieces})
        prepare(scratch, 0)
        if backward:
            for name in ("packed", "dproduct"):
                steps.written(scratch[name])
        begin_blocks = min(BEGIN_BLOCKS, 2 * part.batch)  # it strides over what there is, by as many as there are
        packed = arguments(scratch).packed(plan, BEGIN, call=scratch["call"], first_step=0)
        steps.run(loaded, begin_blocks, packed, BEGIN)
        product = step_product(self._contract, scratch, part.batch, backward)
        blocks = -(-part.batch * plan.hidden_size // plan.threads)
        for step in range(part.time + 1):
            steps.multiply(product)
            steps.run(loaded, blocks, pack(STEP_SIGNATURE, {"call": scratch["call"], "step_in_chunk": step}), STEP)


def _apart(shape: tuple[int, ...], dtype: Any) -> Any:
    """Allocate as a GPU's driver aligns it, with nothing of ours around it."""
    size = int(numpy.prod(shape, dtype=numpy.int64)) * dtype.itemsize
    room = numpy.empty(size + 2 * GAP_BYTES + ALIGNMENT_BYTES, numpy.uint8)
    start = GAP_BYTES + -(room.ctypes.data + GAP_BYTES) % ALIGNMENT_BYTES
    return room[start : start + size].view(dtype).reshape(shape)


def _matrix(matrix: Matrix, rows: int, columns: int, batch: int) -> Any:
    strides = (matrix.stride, 1, matrix.row) if matrix.transposed else (matrix.stride, matrix.row, 1)
    shape = (batch, rows, columns)
    return as_numpy(Array("matrix", "numpy", None, int(matrix.pointer), shape, strides, matrix.dtype, None))


def _arrays(given: object) -> Iterator[Array]:
    if isinstance(given, Array):
        yield given
    elif isinstance(given, tuple) and not isinstance(given, Reading):
        for one in given:
            yield from _arrays(one)
    elif is_dataclass(given) and not isinstance(given, type):
        for each in fields(given):
            yield from _arrays(getattr(given, each.name))


class EmulatedScan(DeviceRun):
    """The calls of a scan or a diagonal cell; kernels come as their text, and steps are done by the machine."""

    @property
    def builder(self) -> EmulatedBuilder:
        """What builds its kernels."""
        assert isinstance(self._builder, EmulatedBuilder)
        return self._builder

    @cached_property
    def seed(self) -> Seed:
        """The seed of its launches."""
        return Seed()

    @cached_property
    def _local(self) -> threading.local:
        return threading.local()

    @cached_property
    def _texts(self) -> dict[str, EmulatedKernel]:
        return {}

    def load_text(self, text: str, plan: KernelPlan) -> EmulatedKernel:
        """Return the kernels of a text, compiled when it is first met."""
        if text not in self._texts:
            self._texts[text] = emulated_kernel(text, plan, self._builder.store)
        return self._texts[text]

    def _begin(self, like: Array, reading: Reading | None, *given: Call | Forward | IncomingGradient) -> Steps:
        steps = EmulatedSteps(like, reading, given, self.seed)
        self._local.steps = steps
        return steps

    def _in_storage(self, array: Array) -> Array:
        # Where that is a copy it is of this run's own, of which nobody else tells it.
        found = super()._in_storage(array)
        self._local.steps.give(found)
        return found

    def _load(self, kernel_pass: KernelPass, regime: Regime) -> tuple[Any, KernelPlan]:
        text, plan = self._compiled(kernel_pass, regime)
        return _Launched(self.load_text(text.decode(), plan)), plan

    def _compiled(self, kernel_pass: KernelPass, regime: Regime) -> tuple[bytes, KernelPlan]:
        """Return the text of a kernel in place of its cubin."""
        key = (kernel_pass, regime)
        if key not in self._built:
            self._built[key] = self._builder.build(kernel_pass, regime)
        return self._built[key].source.encode(), self._built[key].plan


class _Launched:
    """A kernel as runs ask for it."""

    def __init__(self, kernel: EmulatedKernel) -> None:
        self.launch = kernel.launch
        self.plan = kernel.plan

    def resident_blocks(self, _device: int | None, _threads: int) -> int:
        """Return how many blocks are launched at once where they wait for each other."""
        return GROUPS_AT_ONCE * self.plan.variables["grid_blocks"]


class EmulatedDense(EmulatedScan, DenseRun):
    """The calls of a dense cell."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._alternating: Any = EmulatedWalk(self._contract, self.load_text)

    def _expect_backward(self) -> None:
        """Build nothing ahead."""

    def _walk(
        self,
        kernel_pass: KernelPass,
        kept: KeptStates,
        rows: tuple[Array, ...],
        steps: Steps,
        part: Call,
        arguments: Callable[[Scratch | None], NamedArguments],
        prepare: Callable[..., None] = lambda _scratch, _stream: None,
    ) -> None:
        if isinstance(steps, EmulatedSteps):
            steps.give(part)
        super()._walk(kernel_pass, kept, rows, steps, part, arguments, prepare)
