"""The search space of stepwise_forward.cu.j2 and stepwise_backward.cu.j2: the pointwise part of steps of dense cells."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.dense.turns import SHARE_OF_BANDWIDTH
from minrnn_gen.plan.gpu_rates import launch_us
from minrnn_gen.plan.many_sizes import Amount, ceil, maximum
from minrnn_gen.plan.pointwise import elementwise_family
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate

# Besides the values of the cell: addresses, the place in time, loads under way, and double-precision exponentials; an upper
# bound of what compiled kernels of all built-in cells take.
REGISTERS_FIXED = 44
BACKWARD_REGISTERS_FIXED = 56

# What a batched product of cuBLAS and a pointwise kernel take in a replayed graph, bound by their start and by the latency of
# memory; these and the rates below fitted to 15 problems on an H200 (docs/lab-notes.md).
PRODUCT_US = {"fp64": 10.0, "fp32": 10.0, "tf32": 4.5, "fp16": 4.5, "bf16": 4.5}
POINTWISE_US = {"forward": 2.7, "backward": 7.2}
# Multiply-adds of an SM and cycle in products of so few rows; in fp64 assumed. Those in tf32 are not measured: they start as
# those in 16 bits do, at half of their rate, as the peaks of the datasheet are (NVIDIA H200: 494 and 989 TFLOP/s, dense).
PRODUCTS_PER_SM_CYCLE = {"fp64": 32.0, "fp32": 64.0, "tf32": 275.0, "fp16": 550.0, "bf16": 550.0}
# A backward makes all products once more before its steps, and those of the gradient of R after them.
BACKWARD_PRODUCTS = 2


def _registers(problem: Problem) -> int:
    """Return an estimate per thread: all inputs, and as many computed values."""
    cell = problem.cell
    words = problem.registers_per_value
    values = cell.step_values + len(cell.recurrent_gates) + len(cell.states) + len(cell.parameters)
    if problem.kernel_pass == "backward":
        return BACKWARD_REGISTERS_FIXED + words * (2 * values + len(cell.states))
    return REGISTERS_FIXED + words * 2 * values


def product_us(problem: Problem, launches: int = 1) -> Amount:
    """Return the time of a step's products: their starts, and the longer of multiply-adds and reading the matrix once."""
    gpu, precision = problem.gpu, "tf32" if problem.matrix_product == "tf32" else problem.precision.name
    matrix_elements = len(problem.cell.recurrent_gates) * problem.hidden_size * problem.head_dim
    matrix_bytes = matrix_elements * problem.precision.storage_bytes
    bandwidth = gpu_rates.bytes_per_s(gpu, matrix_bytes)
    per_second = gpu.sm_count * gpu.sm_clock_hz * PRODUCTS_PER_SM_CYCLE[precision]
    times = BACKWARD_PRODUCTS if problem.kernel_pass == "backward" else 1
    products_us = maximum(times * problem.batch * matrix_elements / per_second, matrix_bytes / bandwidth) * 1e6
    return launches * PRODUCT_US[precision] + products_us


def pointwise_us(problem: Problem, threads: int) -> Amount:
    """Return the time of one pointwise kernel: its start, and the instructions and the bytes of one step."""
    gpu, cell, precision = problem.gpu, problem.cell, problem.precision
    elements = problem.batch * problem.hidden_size
    blocks_of_busiest_sm = ceil(ceil(elements / threads) / gpu.sm_count)
    warps = blocks_of_busiest_sm * threads / limits.WARP_LANES
    instructions = warps * (gpu_rates.operations_per_element(problem) + gpu_rates.INSTRUCTIONS_PER_THREAD)
    issue_us = instructions / gpu.partitions_per_sm / (gpu.sm_clock_hz / 1e6)
    # A backward reads products of all steps, which are stored like gates, a forward those of the step.
    product_bytes = precision.storage_bytes if problem.kernel_pass == "backward" else precision.arithmetic_bytes
    states_and_products = 2 * len(cell.states) * precision.arithmetic_bytes + len(cell.recurrent_gates) * product_bytes
    step_bytes = problem.traffic_bytes / problem.time + elements * states_and_products
    start_us = POINTWISE_US["backward" if problem.kernel_pass == "backward" else "forward"]
    return start_us + maximum(issue_us, step_bytes / (SHARE_OF_BANDWIDTH * gpu.bandwidth_bytes_per_s) * 1e6)


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Return the cost model's terms in microseconds: one product and one pointwise kernel after the other, step after step."""
    # A round multiplies its own rows of R alone.
    launches = 1 + len(problem.cell.rounds)
    return {
        "products": problem.time * product_us(problem, launches),
        "pointwise": problem.time * launches * pointwise_us(problem, candidate["threads"]),
        "launch": launch_us(problem.gpu),
    }


def arguments_us(problem: Problem, _candidate: Candidate) -> Mapping[str, Amount]:
    """Return the terms of a round's products over all steps at once: bound by memory, or by its instructions."""
    cell, precision = problem.cell, problem.precision
    read_bytes = (cell.read_count + 1 + len(cell.recurrent_gates)) * precision.storage_bytes
    instructions = gpu_rates.operations_per_element(problem) + gpu_rates.INSTRUCTIONS_PER_THREAD
    warps_per_sm = problem.element_count / limits.WARP_LANES / problem.gpu.sm_count
    issue_us = warps_per_sm * instructions / problem.gpu.partitions_per_sm / (problem.gpu.sm_clock_hz / 1e6)
    memory_us = problem.element_count * read_bytes / problem.gpu.bandwidth_bytes_per_s * 1e6
    return {"arguments": maximum(issue_us, memory_us), "launch": launch_us(problem.gpu)}


FORWARD = elementwise_family("stepwise_forward", "stepwise", _registers, predicted_us)
BACKWARD = elementwise_family("stepwise_backward", "stepwise", _registers, predicted_us)
ARGUMENTS = elementwise_family("backward_arguments", "elementwise", _registers, arguments_us)
