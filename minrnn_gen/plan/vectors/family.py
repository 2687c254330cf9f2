"""The search space of vector_forward, vector_backward and vector_step: lanes share the n values of a channel."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import limits
from minrnn_gen.plan.limits import Quantity
from minrnn_gen.plan.many_sizes import Amount
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources
from minrnn_gen.plan.vectors import cost
from minrnn_gen.plan.vectors.block import Block, block_of

# Beyond this many operations in the loop over a lane's values, which is unrolled, compiling takes too long.
UNROLLED_OPERATIONS_MAX = 2400
# The numbers of parts of a sequence's time, each for blocks of its own, where channels are few.
TIME_PARTS = (1, 2, 4, 8, 16, 32)


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    lanes = tuple(1 << power for power in range(6) if 1 << power < 2 * problem.state_size)
    threads = {"threads": (32, 64, 128, 256), "lanes": lanes}
    if problem.kernel_pass == "step":
        return threads
    # Each packed sequence has few steps, or one has many.
    is_divided = problem.cell.divides_time and not problem.specialization.packed
    return {**threads, "tile_steps": (4, 8, 16, 32), "time_parts": TIME_PARTS if is_divided else (1,)}


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    of_lanes = ("threads", "lanes")
    of_block = of_lanes if problem.kernel_pass == "step" else (*of_lanes, "tile_steps")
    of_registers = tuple(variables(problem))

    def block(*point: int) -> Block:
        return Block(problem, **dict(zip(of_registers, point, strict=False)))

    def unrolled(lanes: int) -> int:
        values = Block(problem, limits.WARP_LANES, lanes).values
        narrow = problem.cell.operation_count - problem.cell.wide_operation_count
        return narrow + values * problem.cell.wide_operation_count

    return (
        Constraint(
            "channels_per_block",
            "a block much wider than a group of channels is dominated: its lanes idle",
            of_lanes,
            lambda threads, lanes: 0 if problem.kernel_pass == "step" else threads // lanes,
            lambda _, lanes: max(2 * problem.hidden_size // problem.groups - 1, limits.WARP_LANES // lanes),
            "channels",
            drops_dominated=True,
        ),
        *limits.hardware_constraints(
            problem.gpu,
            Quantity(("threads",), lambda threads: threads),
            Quantity(of_registers, lambda *point: block(*point).registers()),
            Quantity(of_block, lambda *point: sum(block(*point).shared_map().values())),
        ),
        Constraint(
            "unrolled_operations",
            "the loop over a lane's values is unrolled, so that they stay in registers; beyond this compiling takes too long",
            ("lanes",),
            unrolled,
            lambda _: UNROLLED_OPERATIONS_MAX,
            "operations",
            "split the cell's equations into fewer operations, or give a smaller state_size",
        ),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    block = block_of(problem, candidate)
    return limits.resident(
        problem,
        threads=block.threads,
        channels_per_block=block.channels,
        registers_estimated=block.registers(),
        shared_map=block.shared_map(),
        tile_steps=block.tile_steps,
        partition=block.partition(),
    )


def _predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, Amount]:
    return cost.predicted_us(problem, block_of(problem, candidate), resources(problem, candidate))


def _family(name: str) -> Family:
    return Family(
        name=name,
        entry=name,
        strategy="elementwise" if name == "vector_step" else "serial",
        copies=name != "vector_step",
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=_predicted_us,
    )


FORWARD = _family("vector_forward")
BACKWARD = _family("vector_backward")
STEP = _family("vector_step")
