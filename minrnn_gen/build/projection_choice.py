"""Whether a scan has its projection in the same kernel: what is faster, and compiles."""

from __future__ import annotations

from dataclasses import dataclass, field

from minrnn_gen.config.environment import scans_take_their_projection
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import Problem


@dataclass(frozen=True)
class ProjectionChoice:
    """The choice of one builder: one kernel where it is faster, or with `is_everywhere` wherever there is one.

    `broken` are the specializations whose kernels took more than was promised.
    """

    is_everywhere: bool = False
    broken: set[Specialization] = field(default_factory=set, kw_only=True)

    def serves(self, problem: Problem) -> bool:
        """Say whether one kernel is asked for, and faster for `problem`, whose sizes are those of a call."""
        from minrnn_gen.plan.scan.projected import is_feasible, serves

        return is_feasible(problem) if self.is_everywhere else scans_take_their_projection() and serves(problem)
