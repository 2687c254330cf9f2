"""A recorder that performs nothing: a run becomes a program, of integers or of expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from minrnn_gen.call.address import Address, Place, PointerDifference, address_of, place_in
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.results import ResultT
from minrnn_gen.gpu import cublas
from minrnn_gen.gpu.cublas import Product
from minrnn_gen.gpu.graph import Scratch, scratch_bytes_of
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.program import data
from minrnn_gen.program.data import At, Buffer, Gap, KernelRef, Program
from minrnn_gen.program.number import Expr, Number, symbol
from minrnn_gen.run.launch import Launch

# A byte with all bits ones.
ALL_ONES = 255
# Fewer repetitions are described one by one.
LOOP_LEAST = 4


class PlannedKernels(Protocol):
    """Kernels by their purpose, and their plans."""

    @property
    def half(self) -> PlannedKernels: ...

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes, /) -> KernelKey: ...

    def plan(self, kernel: KernelKey, /) -> KernelPlan: ...


class Describer:
    """A described run: buffers get slots after those of the call's arrays, and operations are noted in order.

    Kernels are planned and not loaded. `resident_blocks` gives how many blocks of a kernel a device holds at once.
    """

    def __init__(
        self,
        like: Array,
        inputs: int,
        kernels: PlannedKernels | None = None,
        resident_blocks: Callable[[KernelPlan], Number] = lambda plan: plan.launch.resident_blocks,
        gives_workspace: bool = False,
    ) -> None:
        """Begin a run on arrays of the library and the device of `like`, in slots up to `inputs`.

        Without `kernels` none is chosen or loaded. `gives_workspace`: products use a workspace of the run, as they do on lanes,
        where they run concurrently.
        """
        self._like, self._inputs, self._kernels = like, inputs, cast(PlannedKernels, kernels)
        self._resident_blocks, self._gives_workspace = resident_blocks, gives_workspace
        self._next_slot, self._loops, self._half = inputs, 0, False
        self._buffers: list[Buffer] = []
        self._casts: list[data.Cast] = []
        self._operations: list[Any] = []
        self._steps: list[data.Step] = []
        self._lane: int | None = None
        self._workspaces: dict[int | None, Address] = {}

    def new_array(self, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
        """Return a new buffer as an array without an address yet; uninitialised without `fill`."""
        slot, strides = self._next_slot, contiguous_strides(shape)
        self._next_slot += 1
        self._buffers.append(Buffer(slot, tuple(shape), strides, dtype, fill))
        return Array("result", self._like.library, None, place_in(slot), tuple(shape), strides, dtype, self._like.device)

    @property
    def ends_in_slots(self) -> bool:
        """False: the readers of a described run add up the gradients that they need."""
        return False

    def can_store(self, *, waits: bool) -> bool:  # noqa: ARG002
        """Return False: without `AddUp` and `Store` the end of a run is left to the arrays' library."""
        return False

    def in_shape(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Change the shape of a whole contiguous buffer to one of the same size; return the array."""
        slot = array.address.slot
        assert slot is not None and slot >= self._inputs, "arrays of a call have the shape that they have"
        strides = contiguous_strides(shape)
        self._buffers[slot - self._inputs] = replace(self._buffers[slot - self._inputs], shape=shape, strides=strides)
        return replace(array, shape=shape, strides=strides)

    def workspace(self, size_bytes: int) -> Array | None:
        """Return a buffer of bytes, all bits ones, for the launches of this run alone; None for no bytes."""
        return self.new_array((size_bytes,), "uint8", fill=ALL_ONES) if size_bytes else None

    def cast(self, array: Array, dtype: str) -> Array:
        """Return a whole array of the call in a dtype, itself where it has that already."""
        if array.dtype == dtype:
            return array
        source = array.address.slot
        assert source is not None and source < self._inputs, "what a run allocates has its dtype from the start"
        self._casts.append(data.Cast(self._next_slot, source, dtype))
        return self.new_array(array.shape, dtype)

    def zeroed_beyond(self, x: Array, axes: str, lengths: Array) -> Array:
        """Return a buffer with the values of x, and zeros beyond lengths."""
        target = self.new_array(x.shape, x.dtype)
        source, to, ends = (self._at(array.pointer) for array in (x, target, lengths))
        self.note(data.ZeroBeyond(source, to, ends, axes, x.shape))
        return target

    def contiguous(self, array: Array) -> Array:
        """Return a whole array, which must be contiguous."""
        assert array.is_contiguous, "only the library of an array copies it"
        return array

    def loop(self, start: Number, stop: Number, step: Number = 1) -> Iterator[Number]:
        """Yield the numbers of a range; of a long one, and where its ends are expressions, a symbol that stands for all."""
        if not any(isinstance(end, Expr) for end in (start, stop, step)):
            numbers = range(start, stop, step)
            if len(numbers) < LOOP_LEAST:
                yield from numbers
                return
        index, before = f"i{self._loops}", self._operations
        self._loops += 1
        self._operations = []
        yield symbol(index)
        before.append(data.Loop(index, start, stop, step, tuple(self._operations)))
        self._operations = before

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the kernel for a call of these sizes."""
        return self._kernels.choose(kernel_pass, specialization, sizes)

    def load(self, kernel: KernelKey, part: str = "") -> DescribedKernel:
        """Return a kernel whose launches are noted; `part` is the end of its name where the plan has several."""
        plan = self._kernels.plan(kernel)
        return DescribedKernel(self, KernelRef(kernel, part, self._half), plan, lambda: self._resident_blocks(plan))

    def launch(self, kernel: KernelRef, plan: KernelPlan, launch: Launch) -> None:
        """Note a launch."""
        arguments = tuple(self._source(argument) for argument in launch.arguments)
        self.note(data.Launch(kernel, launch.blocks, plan.launch.threads, arguments))

    def multiply(self, product: Product, workspace: int | None = None) -> None:
        """Note a product; all products of the run, or of a lane, share a workspace where it gives them one."""
        if workspace is None and (self._gives_workspace or self._lane is not None):
            if self._lane not in self._workspaces:
                self._workspaces[self._lane] = self.new_array((cublas.WORKSPACE_BYTES,), "uint8").address
            workspace = self._workspaces[self._lane]
        at = None if workspace is None else self._at(workspace)
        left, right, result = (
            data.Matrix(self._at(matrix.pointer), matrix.dtype, matrix.row, matrix.stride, matrix.transposed)
            for matrix in (product.left, product.right, product.result)
        )
        sizes = (product.m, product.n, product.k)
        self.note(data.Multiply(*sizes, left, right, result, product.batch, product.adds, product.in_tf32, at))

    def copy_heads_first(self, R: Array, target: int) -> None:
        """Note a copy of a contiguous R [gates, heads, D, D] to `target`, [heads, gates, D, D]."""
        self.note(data.CopyHeadsFirst(R.shape, R.dtype, self._at(R.pointer), self._at(target)))

    def scratch(self, sizes_bytes: Mapping[str, int]) -> Scratch:
        """Return named consecutive pieces of one buffer, for the launches of this run alone."""
        return Scratch.laid_out(sizes_bytes, self.new_array((scratch_bytes_of(sizes_bytes),), "uint8").address)

    def computed(self, compute: Callable[..., Any], sources: Sequence[Array], shape: tuple[int, ...], dtype: str) -> Array:
        """Return a contiguous array of a shape and dtype that the arrays' library computes from whole arrays."""
        array = self.new_array(shape, dtype)
        self.note(data.Computed(array.address.slot, tuple(map(self._whole, sources)), compute))
        return array

    def compute_into(self, target: Array, compute: Callable[..., Any], sources: Sequence[Array]) -> None:
        """Note a computation of the arrays' library on whole arrays, which writes into another array."""
        self.note(data.Computed(None, tuple(map(self._whole, (*sources, target))), compute))

    def enqueue(self, action: Callable[[Callable[[Any], Any]], None]) -> None:
        """Note an action that runs in Python only; it gets a function from pointers of the run to their addresses."""
        self.note(data.Action(action))

    @contextmanager
    def by_half(self) -> Iterator[None]:
        """In this context, choose and load the kernels for half of the GPU."""
        whole, self._kernels, self._half = self._kernels, self._kernels.half, True
        try:
            yield
        finally:
            self._kernels, self._half = whole, False

    @contextmanager
    def lanes(self, _count: int) -> Iterator[Describer]:
        """Return this recorder as lanes, on which steps run concurrently."""
        before, self._steps = self._operations, []
        yield self
        before.append(data.OnLanes(tuple(self._steps)))
        self._operations = before

    @contextmanager
    def step(self, lane: int, waits: Sequence[int]) -> Iterator[None]:
        """Note the operations in this context as a lane's next step, after the steps of other lanes that it `waits` for."""
        self._lane, self._operations = lane, []
        yield
        self._steps.append(data.Step(lane, tuple(waits), tuple(self._operations)))
        self._lane = None

    def stop(self) -> None:
        """Do nothing: a run for one call alone has the same operations."""

    def note(self, operation: Any) -> None:
        """Append an operation."""
        self._operations.append(operation)

    def program(self, result: ResultT, metadata: Any) -> Program:
        """End the run and return its program; `result` names its arrays, `metadata` describes them."""
        slots = result.mapped(lambda array: array.address.slot)
        return Program(self._inputs, tuple(self._buffers), tuple(self._casts), tuple(self._operations), slots, metadata)

    def _source(self, argument: Any) -> data.Source:
        if type(argument) is int:
            return argument
        if isinstance(argument, Address):
            return self._at(argument)
        if isinstance(argument, Place):
            return At(argument.slot, argument.offset_bytes)
        if isinstance(argument, PointerDifference):
            return Gap(self._at(argument.first), self._at(argument.second), argument.itemsize)
        return argument

    def _whole(self, array: Array) -> Any:
        """Return the slot of an operand of a library's computation."""
        return array.address.slot

    def _at(self, pointer: int) -> At:
        address = address_of(pointer)
        is_known = address.slot is not None or isinstance(address, Place)
        return At(address.slot, address.offset_bytes if is_known else int(address))


@dataclass(frozen=True, slots=True)
class DescribedKernel:
    """A kernel whose launches are noted."""

    recorder: Describer
    kernel: KernelRef
    plan: KernelPlan
    resident_blocks: Callable[[], Number]

    def launch(self, launch: Launch) -> None:
        """Note a launch."""
        self.recorder.launch(self.kernel, self.plan, launch)
