"""Choices that were measured as faster than the solver's first pick: the interface through which a builder gets them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import CellShape, Problem, Sizes
from minrnn_gen.plan.solver import Solution

SLOWER = "candidates of the preferred family were slower when they were measured"


@dataclass(frozen=True)
class Choice:
    """A candidate by its family and variables, and the reason for it in words; only its source reads `evidence`."""

    family: str
    variables: Mapping[str, int]
    why: str
    evidence: Any = None


@dataclass(frozen=True)
class Trial:
    """A compiled candidate with everything needed to run it: the recipe of its spec, its cell, its plan and its cubin."""

    recipe: str
    cell: CellShape
    plan: KernelPlan
    cubin: bytes

    @property
    def kernel(self) -> tuple[Any, ...]:
        """The properties that all candidates of one kernel share."""
        return (
            self.recipe,
            self.plan.problem.kernel_pass,
            self.plan.problem.specialization,
            self.plan.problem.batch,
            self.plan.problem.time,
        )


class Preferred(Protocol):
    """Source of candidates that are faster than the first pick; may be used from several threads."""

    def choice(self, problem: Problem, cell_digest: str) -> Choice | None:
        """Return the candidate to take for `problem`, of the cell with this digest, or None."""

    def measured(self, problem: Problem, cell_digest: str) -> Sequence[tuple[Sizes, Choice]]:
        """Return all sizes at which the problem was measured, with the candidate to take for each."""

    def accepts(self, choice: Choice, trial: Trial) -> bool:
        """Say whether a choice is right, compiled as `trial`, before it is used here for the first time."""


def find_choice(choice: Choice, solutions: Iterable[Solution]) -> tuple[Solution, int] | None:
    """Return the solution that contains `choice` and its rank there, or None where it is not feasible."""
    for solution in as_measured(solutions):
        if solution.family.name == choice.family:
            for rank, candidate in enumerate(solution.candidates):
                if dict(candidate) == dict(choice.variables):
                    return solution, rank
    return None


def as_measured(solutions: Iterable[Solution]) -> Iterator[Solution]:
    """Yield the solutions for measuring: a family is passed over for its time, not for broken promises."""
    for rank, solution in enumerate(solutions):
        yield replace(solution, passed_over=SLOWER) if rank and solution.passed_over else solution
