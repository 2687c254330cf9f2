"""The search space of alternating_forward.cu.j2 and alternating_backward.cu.j2: the pointwise part of steps of dense cells."""

from __future__ import annotations

import math
from collections.abc import Mapping

from minrnn_gen.plan import scan
from minrnn_gen.plan.elementwise import elementwise_family
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate

# Besides the values of the cell: addresses, the place in time, loads under way, and double-precision exponentials; an upper
# bound of what compiled kernels of all built-in cells take.
REGISTERS_FIXED = 44
BACKWARD_REGISTERS_FIXED = 56

# Estimated, before any measurement: what a batched product of cuBLAS and a pointwise kernel take in a replayed graph, where
# they are bound by their start and by the latency of memory.
PRODUCT_US = 3.5
POINTWISE_US = 2.5
# Estimated: the multiply-adds of an SM and cycle that small products reach, about a third of the slowest architecture's peak.
PRODUCTS_PER_SM_CYCLE = {"fp64": 10.0, "fp32": 40.0, "fp16": 150.0, "bf16": 150.0}
# Estimated: L2, where a matrix stays that fits, gives about three times the bandwidth of memory (2.5 to 4 on the A100, H100 and
# RTX 4090, gpu-benches gpu-l2-cache).
L2_BANDWIDTH_FACTOR = 3.0


def _registers(problem: Problem) -> int:
    """Return an estimate per thread: everything that comes in, and as much again of what is computed."""
    cell = problem.cell
    words = problem.precision.arithmetic_bytes // 4
    values = len(cell.gates) + len(cell.recurrent_gates) + len(cell.states) + len(cell.parameters)
    if problem.kernel_pass == "backward":
        return BACKWARD_REGISTERS_FIXED + words * (2 * values + len(cell.states))
    return REGISTERS_FIXED + words * 2 * values


def product_us(problem: Problem) -> float:
    """Return the time of one batched product: at least its start, its multiply-adds, and the matrix read once."""
    gpu = problem.gpu
    matrix_elements = len(problem.cell.recurrent_gates) * problem.hidden_size * (problem.hidden_size // problem.heads)
    matrix_bytes = matrix_elements * problem.precision.storage_bytes
    bandwidth = gpu.bandwidth_bytes_per_s * (L2_BANDWIDTH_FACTOR if matrix_bytes <= gpu.l2_bytes else 1.0)
    per_second = gpu.sm_count * gpu.sm_clock_hz * PRODUCTS_PER_SM_CYCLE[problem.precision.name]
    return max(PRODUCT_US, problem.batch * matrix_elements / per_second * 1e6, matrix_bytes / bandwidth * 1e6)


def pointwise_us(problem: Problem, threads: int) -> float:
    """Return the time of one pointwise kernel: its start, and the instructions and the bytes of one step."""
    gpu, cell = problem.gpu, problem.cell
    elements = problem.batch * problem.hidden_size
    blocks_of_busiest_sm = math.ceil(math.ceil(elements / threads) / gpu.sm_count)
    warps = blocks_of_busiest_sm * threads / scan.WARP_LANES
    instructions = warps * (scan.operations_per_element(problem) + scan.INSTRUCTIONS_PER_THREAD)
    issue_us = instructions / gpu.partitions_per_sm / (gpu.sm_clock_hz / 1e6)
    states_and_products = (2 * len(cell.states) + len(cell.recurrent_gates)) * problem.precision.arithmetic_bytes
    step_bytes = problem.traffic_bytes / problem.time + elements * states_and_products
    return POINTWISE_US + max(issue_us, step_bytes / gpu.bandwidth_bytes_per_s * 1e6)


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, float]:
    """Return the cost model's terms in microseconds: one product and one pointwise kernel after the other, step after step."""
    return {
        "products": problem.time * product_us(problem),
        "pointwise": problem.time * pointwise_us(problem, candidate["threads"]),
        "launch": scan.LAUNCH_US,
    }


FORWARD = elementwise_family("alternating_forward", _registers, predicted_us)
BACKWARD = elementwise_family("alternating_backward", _registers, predicted_us)
