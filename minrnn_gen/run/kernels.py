"""The kernels of one builder, each built on first use."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from types import MappingProxyType
from typing import Self

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.gradients import GradientCubin
from minrnn_gen.build.nvrtc import why_no_nvrtc
from minrnn_gen.codegen.gradients import ADD_UP, ADD_UP_STORED, STORE, SUMMED_THREADS
from minrnn_gen.config.environment import specializes_by_sizes
from minrnn_gen.errors import MinrnnError, ToolchainMissing
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.precision import precision_of


class BuiltKernels:
    """The kernels of one builder by their keys; may be used from several threads."""

    def __init__(self, builder: Builder, built: tuple[BuiltKernel, ...]) -> None:
        """Begin with the kernels that are `built` already."""
        self._builder = builder
        self._built: dict[KernelKey, BuiltKernel] = {KernelKey.of(kernel.plan): kernel for kernel in built}
        self._keeps_first = not specializes_by_sizes()
        self._lock = threading.Lock()
        self._locks: dict[KernelKey, threading.Lock] = {}

    @property
    def built(self) -> Mapping[KernelKey, BuiltKernel]:
        """Every kernel so far, in the order in which they were built."""
        return MappingProxyType(self._built.copy())

    @cached_property
    def half(self) -> Self:
        """The kernels planned for half of the GPU, so that two runs fit concurrently."""
        return type(self)(self._builder.half, ())

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey:
        """Return the kernel for a call of these sizes; if only pass and specialization count, the first one built for them."""
        if self._keeps_first and (alike := self.built_like(kernel_pass, specialization)):
            return alike[0]
        return self._builder.choose(kernel_pass, specialization, sizes)

    def choose_built(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> KernelKey | None:
        """Return the built kernel nearest to these sizes, None where none is built."""
        alike = self.built_like(kernel_pass, specialization)
        return min(alike, key=lambda kernel: sizes.distance(kernel.sizes)) if alike else None

    def built_like(self, kernel_pass: KernelPass, specialization: Specialization) -> list[KernelKey]:
        """Return the built kernels of a pass and specialization, in build order."""
        return [key for key in self.built if (key.kernel_pass, key.specialization) == (kernel_pass, specialization)]

    def build(self, kernel: KernelKey) -> BuiltKernel:
        """Return a kernel, built if it was not yet."""
        if built := self._built.get(kernel):
            return built
        with self._lock:
            lock = self._locks.setdefault(kernel, threading.Lock())
        with lock:  # others may be built meanwhile
            if kernel not in self._built:
                self._built[kernel] = self._builder.build(kernel)
            return self._built[kernel]

    def plan(self, kernel: KernelKey) -> KernelPlan:
        """Return the plan of a kernel, built if it was not yet."""
        return self.build(kernel).plan


class CompiledKernels(BuiltKernels):
    """The kernels of one builder as cubins, each loaded when it is first launched."""

    def __init__(self, builder: Builder, built: tuple[BuiltKernel, ...]) -> None:
        super().__init__(builder, built)
        self._loaded: dict[tuple[KernelKey, str], tuple[LoadedKernel, KernelPlan]] = {}
        self._gradient_kernels: dict[str, LoadedKernel] = {}

    def load(self, kernel: KernelKey, part: str = "") -> tuple[LoadedKernel, KernelPlan]:
        """Return a kernel to launch and its plan; raises ToolchainMissing without NVRTC to compile it.

        `part` is the end of its name where the plan has several.
        """
        key = (kernel, part)
        if loaded := self._loaded.get(key):
            return loaded
        built = self.build(kernel)
        if built.cubin is None:
            raise ToolchainMissing(f"the kernel was not compiled, since {why_no_nvrtc() or 'NVRTC was not there then'}")
        return self._loaded.setdefault(key, (loaded_kernel(built.cubin, built.plan, part), built.plan))

    def gradient_kernels(self, waits: bool) -> Mapping[str, LoadedKernel] | None:
        """Return the kernels with which a run ends, by name; empty without a compiler.

        Returns None while they are being compiled, unless `waits`.
        """
        if waits:
            self._gradient_cubin.build()
        cubin = self._gradient_cubin.find()
        if cubin is None:
            return {} if self._gradient_cubin.is_made else None
        if not self._gradient_kernels:
            sums_bytes = SUMMED_THREADS * precision_of(self._builder.spec.precision).arithmetic_bytes
            arch, sizes_bytes = self._gradient_cubin.arch, {ADD_UP: sums_bytes, ADD_UP_STORED: sums_bytes, STORE: 0}
            self._gradient_kernels = {name: LoadedKernel(cubin, name, arch, size) for name, size in sizes_bytes.items()}
        return self._gradient_kernels

    def prepare_gradients(self) -> None:
        """Compile the kernels with which a run ends, if they are not compiled yet."""
        self._gradient_cubin.build()

    @cached_property
    def _gradient_cubin(self) -> GradientCubin:
        return GradientCubin(self._builder)

    def build_ahead(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> None:
        """Begin to plan and build the kernel for a call of these sizes in another thread, if it is not built yet."""
        request = (kernel_pass, specialization, sizes)
        if kernel_pass == "backward":
            self._gradient_cubin.build_ahead()
        if self._builder.is_planned(kernel_pass, specialization) and self.choose(*request) in self._built:
            return
        threading.Thread(target=self._try_to_build, args=request, name=f"minrnn_gen {kernel_pass}").start()

    def _try_to_build(self, kernel_pass: KernelPass, specialization: Specialization, sizes: Sizes) -> None:
        with suppress(MinrnnError):  # raised again where the kernel is needed
            self.build(self.choose(kernel_pass, specialization, sizes))


def loaded_kernel(cubin: bytes, plan: KernelPlan, part: str = "") -> LoadedKernel:
    """Return the kernel of `plan`, to be loaded on first use; `part` is the end of its name where the plan has several."""
    cluster_blocks = plan.variables.get("cluster_blocks", 1)
    return LoadedKernel(
        cubin,
        plan.symbol + part,
        plan.problem.arch,
        plan.budget.shared_bytes,
        cluster_blocks,
        is_cooperative=plan.is_cooperative,
    )
