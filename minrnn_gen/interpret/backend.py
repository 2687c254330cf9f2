"""The backend of emulation: kernels' own text on host arrays with guard zones; products by NumPy, launches watched."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.results import ResultT
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu.cublas import Product
from minrnn_gen.gpu.graph import Scratch
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.execution import Execution
from minrnn_gen.interpret.library import EmulatedKernel, emulated_kernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.program.data import KernelRef
from minrnn_gen.run.backend import Queue
from minrnn_gen.run.kernels import BuiltKernels
from minrnn_gen.run.recording.described_run import DescribedRun
from minrnn_gen.run.recording.describer import DescribedKernel
from minrnn_gen.run.recording.replay import Finished, owners_of, rebound

MetadataT = TypeVar("MetadataT")

# Groups of blocks that wait for each other across a grid, launched at once: more than one, and soon more launches.
GROUPS_AT_ONCE = 2
# Blocks of a scan that are all resident: several share a column where there are few columns, and others begin a new column.
COOPERATIVE_BLOCKS = 6
# Seeds of launches from one seed of a kernel to the next.
LAUNCHES_PER_SEED = 1 << 20
# Added to a seed, so many times as the number of a warp, counted from 1: that warp of each block falls behind all others.
WARP_FALLS_BEHIND = 1 << 32


class EmulatedBackend:
    """Runs of kernels' text on host arrays; every launch takes the next of a sequence of seeds."""

    def __init__(
        self, builder: EmulatedBuilder, built: tuple[BuiltKernel, ...], refuse: Callable[[Call], None] = lambda _: None
    ) -> None:
        """Begin with the kernels that are `built`; `refuse` raises for calls that this backend does not run."""
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
        """False: many steps are not launched as a graph."""
        return False

    @property
    def joins_products(self) -> bool:
        return True

    @property
    def has_lanes(self) -> bool:
        """True: steps on lanes run in sequence."""
        return True

    @cached_property
    def half(self) -> EmulatedBackend:
        """Backend for half of the GPU."""
        return EmulatedBackend(self._builder.half, (), self._refuse)

    def without_graphs(self) -> EmulatedBackend:
        """Return this backend: emulated runs are not recorded."""
        return self

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """Interleave the threads of launches in this context by `seed`, reproducibly."""
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
        """Return True for every call; raises for a refused one."""
        self._refuse(call)
        return True

    def plan(self, kernel: KernelKey) -> KernelPlan:
        """Return the plan of a kernel, built on first use."""
        return self._kernels.plan(kernel)

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the kernel for a call of these sizes."""
        return self._kernels.choose(kernel_pass, specialization, sizes)

    def build_ahead(self, _kernel_pass: KernelPass, _specialization: Specialization, _sizes: Sizes) -> None:
        """Build nothing ahead, which would save no time without compiling for a GPU."""

    def load(self, kernel: KernelKey) -> EmulatedKernel:
        """Return a kernel, its text compiled for the host on first use."""
        built = self._kernels.build(kernel)
        text = self.substitute(built.source, built.plan)
        if text not in self._emulated:
            self._emulated[text] = emulated_kernel(text, built.plan, self._builder.store)
        return self._emulated[text]

    def prepare_gradients(self) -> None:
        """Prepare nothing: NumPy ends backwards."""

    def begin(self, like: Array, keyed: KeyedArrays | None, operands: Iterable[Array | None]) -> EmulatedRecorder:
        """Begin a run on the device of `like` that may touch `operands`; raises BadInput for operands that no GPU loads."""
        operands = tuple(operands)
        for array in operands:
            if array is not None and 0 not in array.shape and int(array.pointer) % array.itemsize:
                raise BadInput(
                    f"{array.name} starts at address {int(array.pointer)}, no multiple of the {array.itemsize} bytes of "
                    f"{array.dtype}, from which no GPU loads; copy it"
                )
        return EmulatedRecorder(self, like, keyed, operands)

    @staticmethod
    def graph(
        _like: Array, _key: Hashable, _sizes_bytes: Mapping[str, int], _enqueue: Callable[[Scratch, Queue], None]
    ) -> None:
        """Return None: there are no graphs."""
        return

    @staticmethod
    def striding_blocks(rows: int) -> int:
        """Return the number of blocks of a kernel that strides over all elements: few, but more than one."""
        return 2 * rows


class EmulatedRecorder(DescribedRun):
    """A run on host arrays: described, performed once it is over, and never again."""

    def __init__(
        self, backend: EmulatedBackend, like: Array, keyed: KeyedArrays | None, operands: Iterable[Array | None]
    ) -> None:
        """Begin a run on the device of `like` whose launches may touch `operands`."""
        self._backend, self._operands = backend, [array for array in operands if array is not None]
        self._emulated: dict[KernelRef, EmulatedKernel] = {}
        super().__init__(like, keyed, backend, resident_blocks)

    @property
    def ends_in_slots(self) -> bool:
        """True, as on a GPU."""
        return True

    def can_store(self, *, waits: bool) -> bool:  # noqa: ARG002
        """Return True: NumPy does `AddUp` and `Store`."""
        return True

    def load(self, kernel: KernelKey, part: str = "") -> DescribedKernel:
        """Return a kernel, compiled for the host on first use."""
        described = super().load(kernel, part)
        backend = self._backend.half if described.kernel.half else self._backend
        self._emulated[described.kernel] = backend.load(kernel)
        return described

    def multiply(self, product: Product, _workspace: int | None = None) -> None:
        """Note a product, for which NumPy needs no workspace."""
        super().multiply(product, 0)

    def scratch(self, sizes_bytes: Mapping[str, int]) -> Scratch:
        """Return each piece of memory as a separate array: one array would hide writes beyond a piece."""
        pieces = {name: self.new_array((size,), "uint8").address for name, size in sizes_bytes.items() if name != "cublas"}
        return Scratch(sizes_bytes, {"cublas": 0, **pieces})

    def finish(self, result: ResultT, metadata: MetadataT) -> Finished[ResultT, MetadataT]:
        """Perform the run; raises KernelMisbehaved where a kernel makes an error."""
        program = self.program(result, metadata)
        execution = Execution(self._like, self.keyed, [*self._operands, *self.made], program.buffers, self._backend.next_seed)
        execution.run(program, self._emulated)
        arrays, addresses = execution.arrays, execution.addresses
        bound: MetadataT = rebound(metadata, arrays, addresses)
        return Finished(owners_of(result, arrays), bound, None)


def resident_blocks(plan: KernelPlan) -> int:
    """Return how many blocks of a kernel are launched at once where blocks wait for each other."""
    return COOPERATIVE_BLOCKS if plan.strategy in ("cooperative", "coupled", "projected") else GROUPS_AT_ONCE * plan.grid_blocks
