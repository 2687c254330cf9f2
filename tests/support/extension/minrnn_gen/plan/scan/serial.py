"""The search space of scan_forward_serial.cu.j2: a thread takes the steps of one channel, one after the other."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import gpu_rates, limits
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

# Wider layers are worth a scan.
CHANNELS_MAX = 64
# Addresses, strides and the loop.
REGISTERS_FIXED = 40


def serves(problem: Problem) -> bool:
    """Return whether the strategy is preferred for `problem`, whatever its sizes: a narrow layer, channels contiguous."""
    is_scan = (problem.cell.kind, problem.kernel_pass) == ("affine-diagonal", "forward")
    return is_scan and problem.layout != "BDT" and problem.hidden_size <= CHANNELS_MAX


def variables(_: Problem) -> Mapping[str, tuple[int, ...]]:
    return {"threads": (32, 64, 128, 256)}


def _registers(problem: Problem) -> int:
    cell, words = problem.cell, problem.registers_per_value
    return REGISTERS_FIXED + words * (4 * len(cell.gates) + 4 * len(cell.states) + len(cell.parameters) + cell.carried_count)


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    return (
        Constraint(
            "channels_per_block",
            "a block much wider than the hidden size is dominated: its threads idle",
            ("threads",),
            lambda threads: threads,
            lambda _: max(2 * problem.hidden_size - 1, limits.WARP_LANES),
            "channels",
            drops_dominated=True,
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("threads",), lambda threads: threads),
            Quantity(("threads",), lambda _: _registers(problem)),
            Quantity(("threads",), lambda _: 0),
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    threads = candidate["threads"]
    return limits.resident(problem, threads, threads, _registers(problem), {}, tile_steps=1)


def predicted_us(problem: Problem, _: Candidate) -> Mapping[str, float]:
    """Each step waits for memory: nothing is read ahead."""
    return {"step": problem.time * problem.gpu.memory_latency_ns / 1e3, "launch": gpu_rates.launch_us(problem.gpu)}


FORWARD = Family(
    name="scan_forward_serial",
    entry="scan_forward",
    strategy="serial",
    copies=False,
    variables=variables,
    constraints=constraints,
    resources=resources,
    predicted_us=predicted_us,
)
