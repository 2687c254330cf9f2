"""The search space of scan_step.cu.j2 and diagonal_step.cu.j2: one time step, a thread per channel of a sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping

from minrnn_gen.plan import scan
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.scan import Quantity
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

REGISTERS_FIXED = 24


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    del problem
    return {"threads": (64, 128, 256, 512)}


def _registers(problem: Problem) -> int:
    cell = problem.cell
    words = problem.precision.arithmetic_bytes // 4
    return REGISTERS_FIXED + words * (4 * len(cell.gates) + 4 * len(cell.states) + len(cell.parameters) + cell.carried_count)


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    return scan.hardware_constraints(
        problem.gpu,
        Quantity(("threads",), lambda threads: threads),
        Quantity(("threads",), lambda _: _registers(problem)),
        Quantity(("threads",), lambda _: 0),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    threads = candidate["threads"]
    return scan.resident(problem, threads, threads, _registers(problem), {})


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, float]:
    """A decoding step is bound by its launch; what is left is spreading few elements over many SMs."""
    elements = problem.batch * problem.hidden_size
    blocks = math.ceil(elements / candidate["threads"])
    blocks_of_busiest_sm = math.ceil(blocks / problem.gpu.sm_count)
    warps = blocks_of_busiest_sm * candidate["threads"] / scan.WARP_LANES
    instructions = warps * (scan.operations_per_element(problem) + scan.INSTRUCTIONS_PER_TILE)
    return {
        "issue": instructions / problem.gpu.partitions_per_sm / (problem.gpu.sm_clock_hz / 1e6),
        "launch": scan.LAUNCH_US,
    }


def family(name: str) -> Family:
    """Return the family of the template `name`, "scan_step" or "diagonal_step"."""
    return Family(
        name=name,
        template=f"{name}.cu.j2",
        entry=name,
        copies=False,
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )
