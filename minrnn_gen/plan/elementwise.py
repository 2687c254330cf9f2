"""The search space of kernels with a thread for each channel of a sequence: only how many threads a block has is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.scan import cost
from minrnn_gen.plan.scan.cost import Quantity
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources


def elementwise_family(
    name: str, registers: Callable[[Problem], int], predicted_us: Callable[[Problem, Candidate], Mapping[str, float]]
) -> Family:
    """Return the family of the template `name`, whose threads need an estimate of `registers` each."""

    def constraints(problem: Problem) -> tuple[Constraint, ...]:
        return cost.hardware_constraints(
            problem.gpu,
            Quantity(("threads",), lambda threads: threads),
            Quantity(("threads",), lambda _: registers(problem)),
            Quantity(("threads",), lambda _: 0),
        )

    def resources(problem: Problem, candidate: Candidate) -> Resources:
        threads = candidate["threads"]
        return cost.resident(problem, threads, threads, registers(problem), {})

    return Family(
        name=name,
        entry=name,
        copies=False,
        variables=lambda _: {"threads": (64, 128, 256, 512)},
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )
