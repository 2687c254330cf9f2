"""The seam between a run and what executes it: compiled kernels on a GPU, or the kernels' text emulated on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import ResultT
from minrnn_gen.gpu.cublas import Product
from minrnn_gen.gpu.graph import CapturedGraph, Scratch
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.program.number import Number
from minrnn_gen.run.launch import Launch
from minrnn_gen.run.recording.replay import Finished

MetadataT = TypeVar("MetadataT")


class Launchable(Protocol):
    """A kernel, loaded where it is launched."""

    @property
    def plan(self) -> KernelPlan: ...

    def launch(self, launch: Launch, /) -> None: ...

    def resident_blocks(self) -> int:
        """Return how many blocks the device holds at once."""


class Queue(Protocol):
    """Launches and products enqueued in order: a run, or a stream."""

    def load(self, kernel: KernelKey, part: str, /) -> Launchable:
        """Return one of the kernels of a plan that has several; `part` is the end of its name."""

    def multiply(self, product: Product, workspace: int, /) -> None:
        """Multiply; `workspace` as `cublas.multiply` takes it."""


class Stream(Queue, Protocol):
    """Work enqueued in order on memory given by its address; none of it is recorded."""

    @property
    def handle(self) -> int: ...

    def copy_heads_first(self, R: Array, target: int, /) -> None:
        """Copy a contiguous R [gates, heads, D, D] to the address `target`, [heads, gates, D, D]."""

    def clear(self, pointer: int, size_bytes: int, /) -> None:
        """Fill memory with zeros."""


class Lanes(Protocol):
    """Lanes of a run. Steps are numbered from 0 in the order in which they begin; a lane runs its steps in sequence."""

    def step(self, lane: int, waits: Sequence[int], /) -> AbstractContextManager[None]:
        """Make the work in this context the next step of a lane, after the steps of other lanes that it `waits` for."""


class Recorder(Protocol):
    """One run being described, or performed step by step."""

    @property
    def ends_in_slots(self) -> bool:
        """Whether the run converts gradients to the shapes and dtypes of a call's arrays; otherwise its caller does."""

    def new_array(self, shape: tuple[int, ...], dtype: str, *, fill: int | None = None) -> Array:
        """Allocate an array; uninitialised without `fill`, see `memory.Allocation`."""

    def workspace(self, size_bytes: int) -> Array | None:
        """Allocate bytes, all bits ones, for the launches of this run alone; None for no bytes."""

    def cast(self, array: Array, dtype: str) -> Array:
        """Return a whole array in a dtype, itself where it has that already."""

    def contiguous(self, array: Array) -> Array:
        """Return a whole array as a contiguous one, a copy where it is not."""

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the kernel for a call of these sizes."""

    def load(self, kernel: KernelKey, part: str = "") -> Launchable:
        """Return a kernel, built and loaded on first use; `part` is the end of its name where the plan has several."""

    def multiply(self, product: Product, workspace: int | None = None) -> None:
        """Multiply matrices, in a `workspace` of `cublas.WORKSPACE_BYTES`; None: in the recorder's or cuBLAS's own."""

    def copy_heads_first(self, R: Array, target: int) -> None:
        """Copy a contiguous R [gates, heads, D, D] to the address `target`, [heads, gates, D, D]."""

    def scratch(self, sizes_bytes: Mapping[str, int]) -> Scratch:
        """Allocate named pieces of memory for the launches of this run alone."""

    def zeroed_beyond(self, x: Array, axes: str, lengths: Array) -> Array:
        """Return an array, whose axes have the letters `axes`, with zeros where time is beyond each sequence's length."""

    def loop(self, start: Number, stop: Number, step: Number = 1) -> Iterable[Number]:
        """Return the numbers of a range; the run does the same for every number."""

    def by_half(self) -> AbstractContextManager[None]:
        """In this context, choose and load kernels for half of the GPU, from `Backend.half`."""

    def lanes(self, count: int) -> AbstractContextManager[Lanes]:
        """Return lanes, on which steps run concurrently; forks them from the run so far, and joins them on exit."""

    def enqueue(self, action: Callable[[Callable[[Any], Any]], None]) -> None:
        """Enqueue `action`, which runs in Python only; it gets a function from pointers of the run to their addresses."""

    def can_store(self, *, waits: bool) -> bool:
        """Say whether the run may end with `AddUp` and `Store`; `waits`: wait until their kernels are compiled."""

    def note(self, operation: Any) -> None:
        """Append an operation of a program."""

    def in_shape(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Change the shape of a whole contiguous array of the run to one of the same size; return the array."""

    def stop(self) -> None:
        """Keep nothing of this run for other calls."""

    def finish(self, result: ResultT, metadata: MetadataT, /) -> Finished[ResultT, MetadataT]:
        """End the run, perform it, and return it.

        `result` names arrays of the run; `metadata`, of frozen dataclasses and tuples, describes them.
        """


class GraphOnStream(NamedTuple):
    """A graph on the device of a call, and the current stream there; work on that stream is not recorded."""

    graph: CapturedGraph
    stream: Stream


class Backend(Protocol):
    """Executes the runs of one builder's kernels."""

    @property
    def built(self) -> Mapping[KernelKey, BuiltKernel]:
        """Every kernel so far, in the order in which they were built."""

    @property
    def has_graphs(self) -> bool:
        """Whether the backend launches many steps as a graph of its own; no trace has such graphs."""

    @property
    def has_lanes(self) -> bool:
        """Whether steps of a run may be on lanes; they may not where other programs replay the recording."""

    @property
    def joins_products(self) -> bool:
        """Whether a backward may join the operands of its products, by `run.dense.joined`."""

    @property
    def half(self) -> Backend:
        """Backend for half of the GPU, so that two runs fit concurrently."""

    def without_graphs(self) -> Backend:
        """Return a backend of the same kernels whose runs are recorded whole."""

    def takes(self, call: Call) -> bool:
        """Say whether this backend executes a call; if not, NumPy does. Raises BadInput where neither can."""

    def plan(self, kernel: KernelKey) -> KernelPlan:
        """Return the plan of a kernel, built on first use."""

    def build_ahead(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> None:
        """Begin to build the kernel that a call of these sizes will need, if that saves time."""

    def prepare_gradients(self) -> None:
        """Compile the kernels with which a backward ends."""

    def begin(self, like: Array, keyed: KeyedArrays | None, operands: Iterable[Array | None]) -> Recorder:
        """Begin a run on the device of `like` that reads `operands`; those of `keyed` have their slots."""

    def graph(
        self, like: Array, key: Hashable, sizes_bytes: Mapping[str, int], enqueue: Callable[[Scratch, Queue], None]
    ) -> GraphOnStream | None:
        """Return the graph of `key`, captured on first use, and the current stream; None where no graph is possible."""

    def striding_blocks(self, rows: int) -> int:
        """Return the number of blocks of a kernel that strides over all elements of a number of rows."""


class WideGradients(NamedTuple):
    """Gradients in the arithmetic dtype, not yet summed, with the fields of `BackwardResult`; None where absent.

    `weight`: where the run has it with that of R.
    """

    sums: Array | None
    R: Array | None = None
    vectors: tuple[Array, ...] = ()
    shared: tuple[Array, ...] = ()
    weight: Array | None = None
