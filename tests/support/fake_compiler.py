"""In place of NVRTC: a compiler that keeps every promise it is not told to break; and how tests get builders."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import CompiledSource, KernelResources
from minrnn_gen.plan.kernel_plan import KernelPlan

BuilderOf = Callable[..., Builder]


class Compiler:
    """In place of NVRTC; counts, and breaks the promises of the candidates for which `breaks` is true."""

    def __init__(self) -> None:
        self.calls = 0
        self.spill_bytes = 400  # more than a kernel may spill and still be taken
        self.breaks: Callable[[Mapping[str, int]], bool] = lambda _: False

    def __call__(self, text: str, plan: KernelPlan) -> CompiledSource:
        self.calls += 1
        spill_bytes = self.spill_bytes if self.breaks(plan.variables) else 0
        kernel = KernelResources(plan.entry, plan.budget.registers_per_thread, plan.budget.shared_bytes, spill_bytes, 0)
        return CompiledSource(f"cubin of {len(text)} characters".encode(), (kernel,))
