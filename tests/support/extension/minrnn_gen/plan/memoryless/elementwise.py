"""The search space of memoryless_forward.cu.j2: a thread for each channel of each step."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan.gpu_rates import launch_us
from minrnn_gen.plan.many_sizes import Amount
from minrnn_gen.plan.pointwise import elementwise_family
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate

# Addresses, strides, and where the sequence begins and ends.
REGISTERS_FIXED = 40


def _registers(problem: Problem) -> int:
    cell, words = problem.cell, problem.registers_per_value
    return REGISTERS_FIXED + words * (2 * len(cell.gates) + 4 * len(cell.states) + len(cell.parameters))


def predicted_us(problem: Problem, _: Candidate) -> Mapping[str, Amount]:
    """Bound by memory: no step waits for another."""
    return {"memory": problem.traffic_bytes / problem.gpu.bandwidth_bytes_per_s * 1e6, "launch": launch_us(problem.gpu)}


FORWARD = elementwise_family("memoryless_forward", "elementwise", _registers, predicted_us)
