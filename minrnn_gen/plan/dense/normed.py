"""The search space of normed_forward.cu.j2 and its variants: parts of steps of dense cells that need means over units."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.dense.stepwise import BACKWARD_REGISTERS_FIXED, POINTWISE_US, REGISTERS_FIXED, product_us
from minrnn_gen.plan.gpu_rates import launch_us
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount, ceil
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

# A level loads a step's inputs, reduces over a block by shuffles, and passes two barriers and a division: assumed, about two
# latencies of L2 and as much again, not measured.
LEVEL_US = 1.0
# In fp64 a backward keeps the addresses and intermediate values of units that its threads take in turn; fitted to what NVRTC 13
# takes for sm_90, which is up to 24 registers more than fit without this.
BACKWARD_REGISTERS_OF_FP64 = 48


def norm_heads(problem: Problem) -> int:
    """Return how many heads means over a head are taken in: those of R, or parts of them."""
    return problem.heads * problem.cell.norm_parts


def heads_per_block(problem: Problem) -> int:
    """Return how many of these a block has: one, or all where means are over all."""
    return norm_heads(problem) if problem.cell.means_over_all else 1


def _registers(problem: Problem) -> int:
    """Return an estimate per thread: all inputs, as many computed values, and the sums of a level."""
    cell, words = problem.cell, problem.registers_per_value
    values = len(cell.gates) + len(cell.recurrent_gates) + len(cell.states) + len(cell.parameters)
    _, means, summands = cell.means
    if problem.kernel_pass == "forward" or problem.kernel_pass == "step":
        return REGISTERS_FIXED + words * (2 * values + 2 * summands)
    fixed = BACKWARD_REGISTERS_FIXED + (BACKWARD_REGISTERS_OF_FP64 if words > 1 else 0)
    return fixed + words * (2 * values + len(cell.states) + 2 * summands + means // 2)


def _shared_map(problem: Problem, threads: int) -> Mapping[str, int]:
    _, means, summands = problem.cell.means
    value_bytes = problem.precision.arithmetic_bytes
    return {
        "means": heads_per_block(problem) * means * value_bytes,
        "sums_of_warps": threads // limits.WARP_LANES * summands * value_bytes,
    }


def _constraints(problem: Problem) -> tuple[Constraint, ...]:
    return limits.hardware_constraints(
        problem.gpu,
        Quantity(("threads",), lambda threads: threads),
        Quantity(("threads",), lambda _: _registers(problem)),
        Quantity(("threads",), lambda threads: sum(_shared_map(problem, threads).values())),
    )


def _resources(problem: Problem, candidate: Candidate) -> Resources:
    threads, heads = candidate["threads"], heads_per_block(problem)
    shared = _shared_map(problem, threads)
    partition = {"heads_per_block": heads, "blocks_of_step": norm_heads(problem) // heads}
    return limits.resident(
        problem, threads, problem.hidden_size // norm_heads(problem) * heads, _registers(problem), shared, partition=partition
    )


def _levels_us(problem: Problem, candidate: Candidate) -> Amount:
    """Return the latency of a block: its levels in sequence, each in as many turns as its threads take."""
    turns = heads_per_block(problem) * ceil(problem.hidden_size / norm_heads(problem) / candidate["threads"])
    return (problem.cell.means[0] + 1) * LEVEL_US * (1 + turns) / 2


def _block_us(problem: Problem, candidate: Candidate) -> Amount:
    """Return the time of one launch whose blocks all run at once."""
    gpu, heads, threads = problem.gpu, heads_per_block(problem), candidate["threads"]
    turns = heads * ceil(problem.hidden_size / norm_heads(problem) / threads)
    blocks_of_busiest_sm = ceil(problem.batch * (norm_heads(problem) // heads) / gpu.sm_count)
    levels = problem.cell.means[0] + 1
    instructions = gpu_rates.operations_per_element(problem) + gpu_rates.INSTRUCTIONS_PER_THREAD
    warps = blocks_of_busiest_sm * threads / limits.WARP_LANES * turns * levels
    issue_us = warps * instructions / gpu.partitions_per_sm / (gpu.sm_clock_hz / 1e6)
    start_us = POINTWISE_US["backward" if problem.kernel_pass == "backward" else "forward"]
    return start_us + _levels_us(problem, candidate) + issue_us


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Return the cost model's terms in microseconds: one product and one kernel after the other, step after step."""
    launches = 1 + len(problem.cell.rounds)
    return {
        "products": problem.time * product_us(problem, launches),
        "pointwise": problem.time * launches * _block_us(problem, candidate),
        "launch": launch_us(problem.gpu),
    }


def _arguments_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    """Return the terms of a round's products over all steps at once."""
    of_all = problem.at(problem.batch * problem.time, 1)
    # Blocks beyond those that are resident follow, each with the latency of its levels.
    resident = problem.gpu.sm_count * _resources(problem, candidate).blocks_per_sm
    waves = ceil(of_all.batch * (norm_heads(problem) // heads_per_block(problem)) / resident)
    return {
        "arguments": _block_us(of_all, candidate) + (waves - 1) * _levels_us(problem, candidate),
        "launch": launch_us(problem.gpu),
    }


def _family(name: str, is_stepwise: bool) -> Family:
    return Family(
        name=name,
        entry=name,
        strategy="stepwise" if is_stepwise else "elementwise",
        copies=False,
        variables=lambda _: {"threads": (64, 128, 256, 512)},
        constraints=_constraints,
        resources=_resources,
        predicted_us=predicted_us if is_stepwise else _arguments_us,
    )


FORWARD = _family("normed_forward", is_stepwise=True)
BACKWARD = _family("normed_backward", is_stepwise=True)
ARGUMENTS = _family("normed_arguments", is_stepwise=False)
