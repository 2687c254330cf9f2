"""What builds kernels that run on the host: planned and rendered as for the GPU, and not compiled for it."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import digest
from minrnn_gen.plan.kernel_plan import StatesOut, KernelPlan, Specialization
from minrnn_gen.plan.problem import KernelPass, Sizes

if TYPE_CHECKING:
    from minrnn_gen.plan.solver import Candidate, Solution

# What blocks and warps do together, by the variables that say so.
TOGETHER = ("lookback", "cluster_blocks", "grid_blocks", "time_warps", "split_k_warps")


@dataclass(frozen=True)
class EmulatedBuilder(Builder):
    """Builds the kernels of one spec without NVRTC.

    Of each pass and specialization it takes what the cache has for the GPU, else the best predicted candidate; or, counted by `other`
    from 1 on, one of those whose blocks and warps work together in other ways. With `sizes` every call has the specialization of
    these sizes, whatever its own.
    """

    other: int = 0
    sizes: Sizes | None = None

    def specialization_of(
        self,
        sizes: Sizes,
        alignment_bytes: int,
        reverse: bool = False,
        resets: bool = False,
        states_out: StatesOut = "none",
        packed: bool = False,
    ) -> Specialization:
        """Return the specialization of a call."""
        return super().specialization_of(self.sizes or sizes, alignment_bytes, reverse, resets, states_out, packed)

    def build_all(self, wanted: Sequence[tuple[KernelPass, Specialization]]) -> tuple[BuiltKernel, ...]:
        """Build several kernels."""
        return tuple(self.build(*one) for one in wanted)

    def build(self, kernel_pass: KernelPass, specialization: Specialization) -> BuiltKernel:
        """Return the kernel for `kernel_pass` and `specialization`; raises Infeasible where there is none, BadInput for the cell."""
        with self._lock:
            if (kernel_pass, specialization) not in self._made:
                found = None if self.other else self._find(kernel_pass, specialization)
                self._made[kernel_pass, specialization] = found or self._rendered(kernel_pass, specialization)
            return self._made[kernel_pass, specialization]

    @cached_property
    def _made(self) -> dict[tuple[KernelPass, Specialization], BuiltKernel]:
        return {}

    @cached_property
    def _lock(self) -> threading.RLock:
        return threading.RLock()

    def _rendered(self, kernel_pass: KernelPass, specialization: Specialization) -> BuiltKernel:
        from minrnn_gen.codegen.render import render

        started = time.perf_counter()
        solution = self.solve(kernel_pass, specialization)
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
        return solution.plan(_various(solution, self.other)[-1] if self.other else 0)


def _various(solution: Solution, others: int) -> list[int]:
    """Return the ranks of the best candidate and of `others`, each as unlike those before as may be.

    Of its kind it is the one that is run soonest; where there are no more kinds, the rest are of the quicker half.
    """
    kinds: dict[tuple[bool, ...], list[int]] = {}
    for rank, candidate in enumerate(solution.candidates):
        kinds.setdefault(_kind(candidate), []).append(rank)
    work = functools.partial(_work, solution)
    ranks, met = [0], [_kind(solution.candidates[0])]
    while len(ranks) <= others and len(met) < len(kinds):
        apart = {kind: min(_differences(kind, one) for one in met) for kind in kinds}
        met.append(max(apart, key=lambda kind: apart[kind]))
        ranks.append(min(kinds[met[-1]], key=work))
    soonest = sorted(range(len(solution.candidates)), key=work) if len(ranks) <= others else []
    for number in range(1, others + 2 - len(ranks)):
        # A half, a quarter, three quarters, and so on: the same one whatever comes behind it.
        share = int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())
        ranks.append(soonest[int(share * len(soonest) / 2)])
    return ranks


def _kind(candidate: Candidate) -> tuple[bool, ...]:
    # Of blocks and warps 1 is nobody together.
    return tuple(candidate.get(name, 0) > (name != "lookback") for name in TOGETHER)


def _differences(kind: tuple[bool, ...], other: tuple[bool, ...]) -> int:
    return sum(mine != theirs for mine, theirs in zip(kind, other, strict=True))


def _work(solution: Solution, rank: int) -> int:
    """Threads that wait for each other, times the steps until each has had its turn."""
    candidate = solution.candidates[rank]
    its = solution.family.resources(solution.problem, candidate)
    blocks = candidate.get("cluster_blocks", 1) * candidate.get("grid_blocks", 1)
    return its.threads * blocks * max(its.tile_steps, 1) * max(its.group_tiles, 1)
