"""Whether a scan has its projection in the same kernel: what is faster, and compiles."""

from __future__ import annotations

from dataclasses import dataclass, field

from minrnn_gen.config.environment import scans_take_their_projection
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import Problem
from minrnn_gen.program.number import Number


@dataclass(frozen=True)
class ProjectionChoice:
    """The choice of one builder: one kernel where it is faster, or with `is_everywhere` wherever there is one.

    `broken` are the specializations whose kernels took more than was promised.
    """

    is_everywhere: bool = False
    broken: set[Specialization] = field(default_factory=set, kw_only=True)

    def serves(self, problem: Problem) -> Number:
        """Say whether one kernel is asked for, and faster for `problem`, whose sizes are those of a call or expressions."""
        from minrnn_gen.plan.scan.projected import is_feasible, serves

        return is_feasible(problem) if self.is_everywhere else scans_take_their_projection() and serves(problem)
