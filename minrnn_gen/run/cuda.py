"""The backend of compiled kernels: runs on a GPU, on the stream that is current in the library of x."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.call.address import plain_numbers
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.codegen.gradients import GRADIENTS
from minrnn_gen.gpu import cublas, graph
from minrnn_gen.gpu import stream as gpu_stream
from minrnn_gen.gpu.cublas import Product
from minrnn_gen.gpu.device import Place
from minrnn_gen.gpu.graph import CapturedGraph, Scratch
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.program.data import KernelRef, Program
from minrnn_gen.run.backend import GraphOnStream, Queue
from minrnn_gen.run.launch import Launch
from minrnn_gen.run.recording.described_run import TracedRun
from minrnn_gen.run.recording.describer import DescribedKernel
from minrnn_gen.run.recording.replay import Trace
from minrnn_gen.run.recording.trace import trace_of

# Graphs that a backend keeps; each holds a workspace of cuBLAS in addition to its own memory.
GRAPHS_HELD = 8
# The blocks of a kernel that strides over all elements.
STRIDING_BLOCKS = 264


class KernelLoader(Protocol):
    """Kernels to be launched on a GPU, such as `CompiledKernels`."""

    @property
    def built(self) -> Mapping[KernelKey, BuiltKernel]: ...

    @property
    def half(self) -> KernelLoader: ...

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey: ...

    def choose_built(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey | None: ...

    def plan(self, kernel: KernelKey) -> KernelPlan: ...

    def load(self, kernel: KernelKey, part: str = "") -> tuple[LoadedKernel, KernelPlan]: ...

    def build_ahead(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> None: ...

    def gradient_kernels(self, waits: bool) -> Mapping[str, LoadedKernel] | None: ...

    def prepare_gradients(self) -> None: ...


class CudaBackend:
    """Runs of compiled kernels on GPUs; may be used from several threads.

    Everything runs asynchronously on the stream that is current in the library of x.
    """

    def __init__(self, kernels: KernelLoader, has_graphs: bool = True) -> None:
        self._kernels, self.has_graphs = kernels, has_graphs
        self._graphs: dict[Hashable, CapturedGraph] = {}
        self._graphs_lock = threading.Lock()

    @property
    def built(self) -> Mapping[KernelKey, BuiltKernel]:
        """Every kernel so far, in the order in which they were built."""
        return self._kernels.built

    @property
    def joins_products(self) -> bool:
        return True

    @property
    def has_lanes(self) -> bool:
        """Whether steps of a run may be on lanes; they may not where runs are recorded whole, for replay by other programs."""
        return self.has_graphs

    @property
    def half(self) -> CudaBackend:
        """Backend for half of the GPU, so that two runs fit concurrently."""
        return CudaBackend(self._kernels.half, self.has_graphs)

    def without_graphs(self) -> CudaBackend:
        """Return a backend of the same kernels whose runs are recorded whole, however many steps they have."""
        return CudaBackend(self._kernels, has_graphs=False)

    def takes(self, call: Call) -> bool:
        """Say whether a call is executed here: where its arrays are on a GPU."""
        return call.x.device is not None

    def plan(self, kernel: KernelKey) -> KernelPlan:
        """Return the plan of a kernel, built on first use."""
        return self._kernels.plan(kernel)

    def build_ahead(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> None:
        """Begin to build the kernel for a call of these sizes in another thread."""
        self._kernels.build_ahead(kernel_pass, specialization, sizes)

    def prepare_gradients(self) -> None:
        """Compile the kernels with which a backward ends, if they are not compiled yet."""
        self._kernels.prepare_gradients()

    def begin(self, like: Array, keyed: KeyedArrays | None, _operands: Iterable[Array | None]) -> CudaRecorder:
        """Begin a run on the device of `like`; the arrays of `keyed` have their slots."""
        return CudaRecorder(like, keyed, self._kernels, gives_workspace=not self.has_graphs)

    def graph(
        self, like: Array, key: Hashable, sizes_bytes: Mapping[str, int], enqueue: Callable[[Scratch, Queue], None]
    ) -> GraphOnStream | None:
        """Return the graph of `key` on the device of `like`, captured on first use, and the current stream.

        None where that stream is itself being captured.
        """
        device = like.device
        assert device is not None
        if gpu_stream.is_capturing(like):
            return None
        with self._graphs_lock:
            if (key, device) not in self._graphs:
                if len(self._graphs) >= GRAPHS_HELD:
                    self._graphs.pop(next(iter(self._graphs))).finish()

                def enqueue_on(scratch: Scratch, handle: int) -> None:
                    enqueue(scratch, CudaStream(device, handle, self._kernels))

                self._graphs[key, device] = CapturedGraph(device, sizes_bytes, enqueue_on)
            graph = self._graphs[key, device]
        return GraphOnStream(graph, CudaStream(device, gpu_stream.current_stream(like), self._kernels))

    @staticmethod
    def striding_blocks(_rows: int) -> int:
        """Return the number of blocks of a kernel that strides over all elements."""
        return STRIDING_BLOCKS


class CudaRecorder(TracedRun):
    """A run of the kernels of a backend on a GPU: described, then performed as a trace, which is kept for calls of its key.

    `gives_workspace`: products use a workspace of the run, as they do on lanes, where they run concurrently. Without it, cuBLAS
    allocates memory where the stream is captured, and a graph with allocations cannot become a part of another graph.
    """

    _kernels: KernelLoader

    def __init__(self, like: Array, keyed: KeyedArrays | None, kernels: KernelLoader, gives_workspace: bool = False) -> None:
        """Begin a run on the device of `like`."""
        self._modules: dict[KernelRef, LoadedKernel] = {}
        super().__init__(like, keyed, kernels, gives_workspace=gives_workspace)

    @property
    def ends_in_slots(self) -> bool:
        """Whether the run converts gradients to the shapes and dtypes of the arrays; not where other programs replay it."""
        return not self._gives_workspace

    def can_store(self, *, waits: bool) -> bool:
        """Say whether the run may end with `AddUp` and `Store`.

        It ends without them, and is not kept, while their kernels are being compiled, unless it `waits`, and while the stream
        is captured and they are not loaded.
        """
        kernels = self._kernels.gradient_kernels(waits)
        device = self._like.device
        are_loaded = kernels is not None and all(kernel.is_loaded(device) for kernel in kernels.values())
        if kernels is None or (not are_loaded and gpu_stream.is_capturing(self._like)):
            self.stop()
            return False
        self._modules |= {KernelRef(GRADIENTS, part): loaded for part, loaded in kernels.items()}
        return bool(kernels)

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the kernel for a call of these sizes.

        While the stream is being captured nothing is compiled: the nearest built kernel serves, and the run is not kept, since
        the next call of these sizes gets its own kernel.
        """
        chosen = super().choose(kernel_pass, specialization, sizes)
        if chosen not in self._kernels.built and gpu_stream.is_capturing(self._like):
            nearest = self._kernels.choose_built(kernel_pass, specialization, sizes)
            if nearest is not None:
                self.stop()
                return nearest
        return chosen

    def load(self, kernel: KernelKey, part: str = "") -> DescribedKernel:
        """Return a kernel, built and loaded on first use; `part` is the end of its name where the plan has several."""
        loaded, plan = self._kernels.load(kernel, part)
        ref = KernelRef(kernel, part, self._half)
        self._modules[ref] = loaded
        return DescribedKernel(self, ref, plan, lambda: loaded.resident_blocks(self._like.device, plan.launch.threads))

    def _trace(self, program: Program) -> Trace[Any, Any]:
        """Return the program as a trace of this device."""
        return trace_of(program, self.keyed.key, Place(self._like.library, self._like.device), self._modules)


class CudaStream(NamedTuple):
    """A stream of a device."""

    device: int
    handle: int
    kernels: KernelLoader

    def load(self, kernel: KernelKey, part: str) -> StreamKernel:
        """Return one of the kernels of a plan that has several."""
        return StreamKernel(self, *self.kernels.load(kernel, part))

    def multiply(self, product: Product, workspace: int) -> None:
        """Enqueue a product of cuBLAS."""
        for part in product.parts:
            cublas.multiply(self.device, self.handle, part, workspace=workspace)

    def copy_heads_first(self, R: Array, target: int) -> None:
        """Enqueue a copy of a contiguous R [gates, heads, D, D] to `target`, [heads, gates, D, D]."""
        graph.copy_heads_first(self.device, self.handle, R, int(R.pointer), target)

    def clear(self, pointer: int, size_bytes: int) -> None:
        """Enqueue zeros."""
        graph.clear(self.device, self.handle, pointer, size_bytes)


class StreamKernel(NamedTuple):
    """A kernel whose launches go to one stream and are not recorded."""

    stream: CudaStream
    loaded: LoadedKernel
    plan: KernelPlan

    def launch(self, launch: Launch) -> None:
        """Enqueue a launch."""
        stream, arguments = self.stream, plain_numbers(launch.arguments)
        self.loaded.launch_on(stream.device, stream.handle, launch.blocks, self.plan.launch.threads, arguments)

    def resident_blocks(self) -> int:
        """Return how many blocks the device holds at once."""
        return self.loaded.resident_blocks(self.stream.device, self.plan.launch.threads)
