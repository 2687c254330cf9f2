"""Kernels run by the package's machine for the host, as tests use it: whatever it finds wrong fails the test."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.codegen.render import render
from minrnn_gen.interpret.backend import resident_blocks
from minrnn_gen.interpret.library import EmulatedKernel, Memory, emulated_kernel
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelKey

HAS_COMPILER = has_compiler()
# NumPy 2 moved it.
byte_bounds = getattr(numpy, "byte_bounds", None) or numpy.lib.array_utils.byte_bounds


def compiled(source: str, plan: KernelPlan, folder: Path) -> HostCode:
    return HostCode(emulated_kernel(source, plan, Store(folder)))


@dataclass(frozen=True)
class HostCode:
    """A kernel as `module.LoadedKernel` is used, and by itself."""

    kernel: EmulatedKernel

    @property
    def plan(self) -> KernelPlan:
        return self.kernel.plan

    def resident_blocks(self, _device: int, _threads: int) -> int:
        return resident_blocks(self.plan)

    def launch(self, _like: Any, blocks: int, threads: int, arguments: Sequence[Any]) -> None:
        assert threads == self.plan.launch.threads
        self.run(blocks, arguments)

    def run(self, blocks: int, arguments: Sequence[Any], arrays: Iterable[Any] = (), seed: int = 0, part: str = "") -> None:
        """Run a grid on arguments as numbers or of ctypes; with `arrays`, it may touch no others."""
        memory = [
            Memory(f"array {number}", begin, end - begin, is_given=True)
            for number, (begin, end) in enumerate(map(byte_bounds, arrays))
            if end > begin
        ]
        words = [getattr(one, "value", one) or 0 for one in arguments]
        findings = self.kernel.launch(blocks, words, seed, memory, part)
        assert not findings, "; ".join(map(str, findings))


def loading(builder: Builder, folder: Path, **wanted: int) -> Callable[..., tuple[HostCode, KernelPlan]]:
    """Return what gives the kernels of `as_if_on_a_device`: the best with most of what is wanted, of the likest family."""

    @functools.cache
    def load(key: KernelKey) -> tuple[HostCode, KernelPlan]:
        solutions = tuple(builder.solutions(key))
        alike = [len(wanted.keys() & one.candidates[0]) / len(wanted.keys() | one.candidates[0]) for one in solutions]
        solution = solutions[alike.index(max(alike))]

        def having(rank: int) -> int:
            return len(wanted.items() & solution.candidates[rank].items())

        plan = solution.plan(max(range(len(solution.candidates)), key=having))
        lowered = builder.lowered_for(key.kernel_pass)
        return compiled(render(plan, lowered, ()), plan, folder), plan

    return load
