"""What builds kernels that run on the host: planned and rendered as for the GPU, and not compiled for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from minrnn_gen.build import Builder
from minrnn_gen.built import BuiltKernel
from minrnn_gen.plan.kernel_plan import Regime
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.store import digest


@dataclass(frozen=True)
class HostBuilder(Builder):
    """Builds the kernels of one spec without NVRTC.

    Of each pass and regime it takes the candidate at a `share` of the list, best first, 0 being what the cache has for the GPU,
    else the best predicted one.
    """

    share: float = 0.0

    def build_all(self, wanted: Sequence[tuple[KernelPass, Regime]]) -> tuple[BuiltKernel, ...]:
        """Build several kernels."""
        return tuple(self.build(*one) for one in wanted)

    def build(self, kernel_pass: KernelPass, regime: Regime) -> BuiltKernel:
        """Return the kernel for `kernel_pass` and `regime`; raises Infeasible where there is none, BadInput for the cell."""
        from minrnn_gen.source import render

        if not self.share and (found := self._find(kernel_pass, regime)):
            return found
        started = time.perf_counter()
        solution = self.solve(kernel_pass, regime)
        plan = solution.plan(round(self.share * (len(solution.candidates) - 1)))
        plan = replace(plan, waits_are_bounded=self.waits_are_bounded)
        text = render(plan, self._lowered_for(kernel_pass), ())
        return BuiltKernel(
            plan=plan,
            cell=solution.problem.cell,
            source=text,
            digest=digest(text),
            cubin=None,
            resources=None,
            dropped=(),
            cached=False,
            seconds=time.perf_counter() - started,
            folder=None,
        )
