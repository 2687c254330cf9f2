"""The search space of scan_step.cu.j2 and diagonal_step.cu.j2: one time step, a thread per channel of a sequence."""

from __future__ import annotations

import math
from collections.abc import Mapping

from minrnn_gen.plan.elementwise import elementwise_family
from minrnn_gen.plan.gpu_rates import launch_us
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.scan import cost
from minrnn_gen.plan.solver import Candidate

REGISTERS_FIXED = 24


def _registers(problem: Problem) -> int:
    cell = problem.cell
    words = problem.precision.arithmetic_bytes // 4
    return REGISTERS_FIXED + words * (4 * len(cell.gates) + 4 * len(cell.states) + len(cell.parameters) + cell.carried_count)


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, float]:
    """A decoding step is bound by its launch; what is left is spreading few elements over many SMs."""
    elements = problem.batch * problem.hidden_size
    blocks = math.ceil(elements / candidate["threads"])
    blocks_of_busiest_sm = math.ceil(blocks / problem.gpu.sm_count)
    warps = blocks_of_busiest_sm * candidate["threads"] / cost.WARP_LANES
    instructions = warps * (cost.operations_per_element(problem) + cost.INSTRUCTIONS_PER_THREAD)
    return {
        "issue": instructions / problem.gpu.partitions_per_sm / (problem.gpu.sm_clock_hz / 1e6),
        "launch": launch_us(problem.gpu),
    }


SCAN = elementwise_family("scan_step", _registers, predicted_us)
DIAGONAL = elementwise_family("diagonal_step", _registers, predicted_us)
