"""The choice between one kernel and two for a scan with its projection: the faster one that compiles."""

from __future__ import annotations

from dataclasses import dataclass, field

from minrnn_gen.config.environment import scans_take_their_projection
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import Problem
from minrnn_gen.program.number import Number


@dataclass(frozen=True)
class ProjectionChoice:
    """The choice of one builder: one kernel where it is faster or, with `is_everywhere`, wherever it exists.

    `broken`: specializations whose kernels broke their promise.
    """

    is_everywhere: bool = False
    broken: set[Specialization] = field(default_factory=set, kw_only=True)

    def serves(self, problem: Problem) -> Number:
        """Say whether one kernel is enabled and faster for `problem`, whose sizes are a call's or expressions."""
        from minrnn_gen.plan.scan.projected import is_feasible, serves

        return is_feasible(problem) if self.is_everywhere else scans_take_their_projection() and serves(problem)
