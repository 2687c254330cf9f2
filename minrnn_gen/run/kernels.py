"""The kernels of one builder, each built when it is first met."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import cast

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.errors import MinrnnError, ToolchainMissing
from minrnn_gen.gpu import module
from minrnn_gen.gpu.module import LoadedKernel
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.run.backend import KernelKey


class BuiltKernels:
    """The kernels of one builder by pass and specialization; may be used from several threads."""

    def __init__(self, builder: Builder, built: tuple[BuiltKernel, ...]) -> None:
        """Begin with those that are `built` already."""
        self._builder = builder
        self._built: dict[KernelKey, BuiltKernel] = {
            (cast(KernelPass, kernel.plan.kernel_pass), kernel.plan.specialization): kernel for kernel in built
        }
        self._lock = threading.Lock()
        self._locks: dict[KernelKey, threading.Lock] = {}

    @property
    def built(self) -> Mapping[KernelKey, BuiltKernel]:
        """Every kernel so far, in the order in which they were built."""
        return MappingProxyType(self._built.copy())

    def build(self, kernel: KernelKey) -> BuiltKernel:
        """Return a kernel, built if it was not yet."""
        if built := self._built.get(kernel):
            return built
        with self._lock:
            lock = self._locks.setdefault(kernel, threading.Lock())
        with lock:  # others may be built meanwhile
            if kernel not in self._built:
                self._built[kernel] = self._builder.build(*kernel)
            return self._built[kernel]

    def plan(self, kernel: KernelKey) -> KernelPlan:
        """Return the plan of a kernel, built if it was not yet."""
        return self.build(kernel).plan


class CompiledKernels(BuiltKernels):
    """The kernels of one builder as cubins, each loaded when it is first launched."""

    def __init__(self, builder: Builder, built: tuple[BuiltKernel, ...]) -> None:
        super().__init__(builder, built)
        self._loaded: dict[tuple[KernelKey, str], tuple[LoadedKernel, KernelPlan]] = {}

    def load(self, kernel: KernelKey, part: str = "") -> tuple[LoadedKernel, KernelPlan]:
        """Return a kernel to launch and its plan; raises ToolchainMissing where there is no NVRTC to compile it.

        `part` is the end of its name where the plan has several.
        """
        key = (kernel, part)
        if loaded := self._loaded.get(key):
            return loaded
        built = self.build(kernel)
        if built.cubin is None:
            raise ToolchainMissing(
                "the kernel was not compiled because NVRTC is not installed: pip install 'minrnn-gen[cuda13]'"
            )
        return self._loaded.setdefault(key, (module.loaded_kernel(built.cubin, built.plan, part), built.plan))

    def build_ahead(self, kernel: KernelKey) -> None:
        """Begin to build a kernel by another thread, if it is not built yet."""
        if kernel not in self._built:
            threading.Thread(target=self._try_to_build, args=(kernel,), name=f"minrnn_gen {kernel[0]}").start()

    def _try_to_build(self, kernel: KernelKey) -> None:
        with suppress(MinrnnError):  # raised again where the kernel is needed
            self.build(kernel)
