"""What builds kernels that run on the host: planned and rendered as for the GPU, and not compiled for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from minrnn_gen.build import Builder
from minrnn_gen.built import BuiltKernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Regime
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.store import digest

if TYPE_CHECKING:
    from minrnn_gen.plan.solver import Solution

# Threads that wait for each other, of a candidate that is one of many to run: a second or two on the host.
GROUP_THREADS_MOST = 1024


@dataclass(frozen=True)
class HostBuilder(Builder):
    """Builds the kernels of one spec without NVRTC.

    Of each pass and regime it takes the candidate at a `share` of the list, best first, 0 being what the cache has for the GPU,
    else the best predicted one; further down, the next one whose groups of blocks that wait for each other are not too large.
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
        plan = self._chosen(solution)
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

    def _chosen(self, solution: Solution) -> KernelPlan:
        wanted = round(self.share * (len(solution.candidates) - 1))
        for rank in sorted(range(len(solution.candidates)), key=lambda rank: abs(rank - wanted)) if self.share else ():
            plan = solution.plan(rank)
            if plan.threads * plan.variables.get("cluster_blocks", 1) <= GROUP_THREADS_MOST:
                return plan
        return solution.plan(wanted)
