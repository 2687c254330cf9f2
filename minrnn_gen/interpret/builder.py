"""Builder of emulated kernels: planned and rendered as for the GPU, but not compiled for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.at_once import Watch, unwatched
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.projection_choice import ProjectionChoice
from minrnn_gen.build.store import digest
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelKey, KernelPass, Sizes
from minrnn_gen.program.number import Number

if TYPE_CHECKING:
    from minrnn_gen.plan.solver import Candidate, Solution

# A family, and for each variable of `TOGETHER` whether its blocks and warps cooperate by it.
_Kind = tuple[str, tuple[bool, ...]]
# Variables of a plan that say which blocks and warps cooperate.
TOGETHER = ("lookback", "cluster_blocks", "grid_blocks", "time_parts", "time_warps", "split_k_warps")


@dataclass(frozen=True)
class EmulatedBuilder(Builder):
    """Builds the kernels of one spec without NVRTC.

    It takes the GPU's kernel from the cache, else the best predicted candidate; with `other`, counted from 1, a kernel of
    another family, then one whose blocks and warps cooperate differently. Every call, whatever its sizes, gets the kernel for
    `sizes`, by default the spec's. A builder that `projects` puts a scan and its projection in one kernel wherever possible.
    """

    other: int = 0
    sizes: Sizes | None = None
    projects: bool = False

    @cached_property
    def projection(self) -> ProjectionChoice:
        """The choice of scans that have their projection in the same kernel."""
        return ProjectionChoice(is_everywhere=self.projects)

    def choose(self, kernel_pass: KernelPass, specialization: Specialization, _sizes: Sizes) -> KernelKey:
        """Return the kernel that a call of the typical sizes runs on a GPU."""
        return super().choose(kernel_pass, specialization, self.sizes or self.hinted_sizes)

    def joins_products(self, _batch: Number) -> bool:
        """Say whether a backward of the typical sizes joins the operands of its products on a GPU."""
        return super().joins_products((self.sizes or self.hinted_sizes).batch)

    def build_all(self, wanted: Iterable[KernelKey], _watch: Watch = unwatched) -> tuple[BuiltKernel, ...]:
        """Build several kernels."""
        return tuple(map(self.build, wanted))

    def build(self, key: KernelKey) -> BuiltKernel:
        """Return a kernel; raises Infeasible where none fits, BadInput for an invalid cell."""
        with self._lock:
            if key not in self._built:
                cached = None if self.other else self.find(key)
                self._built[key] = cached or self._rendered(key)
            return self._built[key]

    @cached_property
    def _built(self) -> dict[KernelKey, BuiltKernel]:
        return {}

    @cached_property
    def _lock(self) -> threading.RLock:
        return threading.RLock()

    def _rendered(self, key: KernelKey) -> BuiltKernel:
        from minrnn_gen.codegen.render import render

        started = time.perf_counter()
        solution, rank = self.chosen(key)
        plan = replace(solution.plan(rank), waits_are_bounded=self.waits_are_bounded)
        text = render(plan, self.lowered_for(key.kernel_pass), ())
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

    def chosen(self, key: KernelKey) -> tuple[Solution, int]:
        """Return the candidate to render: its solution, and its rank there."""
        return _various(tuple(self.solutions(key)), self.other)[-1] if self.other else (self.solve(key), 0)


def _various(solutions: Sequence[Solution], others: int) -> list[tuple[Solution, int]]:
    """Return the best candidate, then `others` as different from it and each other as possible: (solution, rank in it) each.

    Candidates of different families differ most. Each is the one with the least work of its kind. After the last kind, the rest
    come from the half of the first family that has less work.
    """
    kinds: dict[_Kind, list[tuple[Solution, int]]] = {}
    for solution in solutions:
        for rank, candidate in enumerate(solution.candidates):
            kinds.setdefault(_kind(solution, candidate), []).append((solution, rank))
    first = solutions[0]
    various, chosen = [(first, 0)], [_kind(first, first.candidates[0])]
    while len(various) <= others and len(chosen) < len(kinds):
        distances = {kind: min(_distance(kind, other) for other in chosen) for kind in kinds}
        chosen.append(max(distances, key=lambda kind: distances[kind]))
        various.append(min(kinds[chosen[-1]], key=_work))
    ranked = [(first, rank) for rank in range(len(first.candidates))]
    quickest = sorted(ranked, key=_work) if len(various) <= others else []
    for number in range(1, others + 2 - len(various)):
        # A half, a quarter, three quarters, and so on: ranks do not depend on how many follow.
        share = int(f"{number:b}"[::-1], 2) / (1 << number.bit_length())
        various.append(quickest[int(share * len(quickest) / 2)])
    return various


def _kind(solution: Solution, candidate: Candidate) -> _Kind:
    # One block or one warp does not cooperate.
    return solution.family.name, tuple(candidate.get(name, 0) > (name != "lookback") for name in TOGETHER)


def _distance(kind: _Kind, other: _Kind) -> int:
    in_ways = sum(left != right for left, right in zip(kind[1], other[1], strict=True))
    return in_ways + len(TOGETHER) * (kind[0] != other[0])


def _work(ranked: tuple[Solution, int]) -> int:
    """Return the work of a candidate: threads that wait for each other, times the steps until every tile of a group has run."""
    solution, rank = ranked
    candidate = solution.candidates[rank]
    resources = solution.family.resources(solution.problem, candidate)
    blocks = candidate.get("cluster_blocks", 1) * candidate.get("grid_blocks", 1)
    return resources.threads * blocks * max(resources.tile_steps, 1) * max(resources.group_tiles, 1)
