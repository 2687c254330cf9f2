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
    """Lanes of a run. Steps are numbered from 0 in the order in which they begin; a lane takes its own one after the other."""

    def step(self, lane: int, waits: Sequence[int], /) -> AbstractContextManager[None]:
        """Have what is done within be the next step, on a lane, after the steps of other lanes that it `waits` for."""


class Recorder(Protocol):
    """One run being described, or performed step by step."""

    @property
    def ends_in_slots(self) -> bool:
        """Whether gradients become those of a call's arrays within the run, not by those who replay it."""

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
        """Return a kernel, built and loaded when it is first met; `part` is the end of its name where the plan has several."""

    def multiply(self, product: Product, workspace: int | None = None) -> None:
        """Multiply matrices, in a `workspace` of `cublas.WORKSPACE_BYTES`; None: in the recorder's or cuBLAS's own."""

    def copy_heads_first(self, R: Array, target: int) -> None:
        """Copy a contiguous R [gates, heads, D, D] to the address `target`, [heads, gates, D, D]."""

    def scratch(self, sizes_bytes: Mapping[str, int]) -> Scratch:
        """Allocate named pieces of memory for the launches of this run alone."""

    def zeroed_beyond(self, x: Array, axes: str, lengths: Array) -> Array:
        """Return an array, whose axes have the letters `axes`, with zeros where time is beyond each sequence's length."""

    def loop(self, start: Number, stop: Number, step: Number = 1) -> Iterable[Number]:
        """Return the numbers of a range; what is done with one of them is done with all."""

    def by_half(self) -> AbstractContextManager[None]:
        """Have the kernels that are chosen and loaded within be those for half of the GPU: of `Backend.half`."""

    def lanes(self, count: int) -> AbstractContextManager[Lanes]:
        """Return lanes, on which steps run concurrently; forks them from the run so far, and joins them on exit."""

    def enqueue(self, action: Callable[[Callable[[Any], Any]], None]) -> None:
        """Have `action` enqueue what only Python does; it gets a function that returns the address of a pointer of the run."""

    def can_store(self, *, waits: bool) -> bool:
        """Say whether `AddUp` and `Store` may be noted, with which a run ends; `waits`: for their kernels to be compiled."""

    def note(self, operation: Any) -> None:
        """Append an operation of a program."""

    def in_shape(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Allocate a whole contiguous array of the run in another shape of the same size; return it."""

    def stop(self) -> None:
        """Keep nothing of this run for other calls."""

    def finish(self, result: ResultT, metadata: MetadataT, /) -> Finished[ResultT, MetadataT]:
        """Return the run, which is over and performed now.

        `result` names arrays of the run; `metadata`, of frozen dataclasses and tuples, says what they look like.
        """


class GraphOnStream(NamedTuple):
    """A graph of the device of a call, and the stream that is current there; what goes to it is not recorded."""

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
        """Whether steps of a run may be on lanes: not where others replay the recording."""

    @property
    def half(self) -> Backend:
        """Executes runs of kernels for half of the GPU, two of which run concurrently."""

    def without_graphs(self) -> Backend:
        """Return a backend of the same kernels whose runs are recorded whole."""

    def takes(self, call: Call) -> bool:
        """Say whether a call is executed here, else by NumPy; raises BadInput where it is by neither."""

    def plan(self, kernel: KernelKey) -> KernelPlan:
        """Return the plan of a kernel, built when it is first met."""

    def build_ahead(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> None:
        """Begin to build the kernel that a call of these sizes will need, if that saves time."""

    def prepare_gradients(self) -> None:
        """Have the kernels with which a backward ends compiled."""

    def begin(self, like: Array, keyed: KeyedArrays | None, operands: Iterable[Array | None]) -> Recorder:
        """Begin a run on the device of `like` that reads `operands`; those of `keyed` have their slots."""

    def graph(
        self, like: Array, key: Hashable, sizes_bytes: Mapping[str, int], enqueue: Callable[[Scratch, Queue], None]
    ) -> GraphOnStream | None:
        """Return the graph of `key`, captured when it is first met, and the current stream; None where there can be none."""

    def striding_blocks(self, rows: int) -> int:
        """Return how many blocks a kernel takes that strides over all there is of so many rows."""


class WideGradients(NamedTuple):
    """Gradients in the arithmetic dtype that are not added up yet, as `BackwardResult` has them; None where there are none."""

    sums: Array | None
    R: Array | None = None
    vectors: tuple[Array, ...] = ()
    shared: tuple[Array, ...] = ()
