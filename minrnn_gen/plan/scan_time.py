"""The search space of the scans with lanes along time, a warp per channel (layout BDT), forward and backward."""

from __future__ import annotations

from collections.abc import Mapping

from minrnn_gen.plan import scan
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.scan import Quantity
from minrnn_gen.plan.solver import Candidate, Constraint, Family, Resources

# Registers besides the steps of a lane, read off compiled kernels.
REGISTERS_FIXED = 38
# The backward keeps each gate's sum over time, and its strides and pointers to more arrays.
BACKWARD_REGISTERS_PER_GATE = 3
# A step of the backward as it was read, and partly widened; its coefficients are made anew for each walk.
BACKWARD_REGISTERS_PER_VALUE = 1.25
# Five doublings of the distance, a shift by one lane, and the last lane's state to all.
SHUFFLES = 7


def variables(problem: Problem) -> Mapping[str, tuple[int, ...]]:
    del problem
    return {"warps": (1, 2, 4, 8), "steps_per_lane": (1, 2, 4, 8, 16), "stages": (1, 2, 3, 4, 6, 8)}


def _registers(problem: Problem, steps_per_lane: int) -> int:
    cell = problem.cell
    words = problem.precision.arithmetic_bytes // 4
    per_lane = 3 * len(cell.gates) + len(cell.parameters) + 4 * len(cell.states)
    if problem.kernel_pass == "backward":
        per_lane += BACKWARD_REGISTERS_PER_GATE * len(cell.gates) + len(cell.parameters)
        steps = BACKWARD_REGISTERS_PER_VALUE * steps_per_lane * cell.read_count
        return REGISTERS_FIXED + int(words * (steps + per_lane))
    kept = 2 * len(cell.states) + cell.carried_count
    return REGISTERS_FIXED + words * (steps_per_lane * kept + per_lane)


def _ring_bytes(problem: Problem, warps: int, steps_per_lane: int, stages: int) -> int:
    tile = scan.WARP_LANES * steps_per_lane * problem.precision.storage_bytes
    return warps * stages * problem.cell.read_count * tile


def constraints(problem: Problem) -> tuple[Constraint, ...]:
    ring = ("warps", "steps_per_lane", "stages")
    storage_bytes = problem.precision.storage_bytes
    return (
        Constraint(
            "vector_width",
            "a lane reads its steps as one 16-byte vector; wider ones conflict in the banks of shared memory",
            ("steps_per_lane",),
            lambda steps_per_lane: steps_per_lane * storage_bytes,
            lambda _: 16,
            "bytes",
        ),
        *scan.hardware_constraints(
            problem.gpu,
            Quantity(("warps",), lambda warps: warps * scan.WARP_LANES),
            Quantity(("steps_per_lane",), lambda steps: _registers(problem, steps)),
            Quantity(ring, lambda warps, steps, stages: _ring_bytes(problem, warps, steps, stages)),
        ),
        *scan.copy_constraints(
            problem,
            Quantity(ring, lambda warps, steps, stages: _ring_bytes(problem, warps, steps, max(1, stages - 1))),
        ),
        scan.unrolled_constraint(problem, Quantity(("steps_per_lane",), lambda steps: steps)),
    )


def resources(problem: Problem, candidate: Candidate) -> Resources:
    warps, steps_per_lane = candidate["warps"], candidate["steps_per_lane"]
    return scan.resident(
        problem,
        threads=warps * scan.WARP_LANES,
        channels_per_block=warps,
        registers_estimated=_registers(problem, steps_per_lane),
        shared_map={"ring": _ring_bytes(problem, warps, steps_per_lane, candidate["stages"])},
    )


def predicted_us(problem: Problem, candidate: Candidate) -> Mapping[str, float]:
    taken = resources(problem, candidate)
    steps_per_lane = candidate["steps_per_lane"]
    stages, storage_bytes = candidate["stages"], problem.precision.storage_bytes
    streams = problem.cell.read_count + problem.cell.written_count
    pieces = steps_per_lane * storage_bytes / problem.regime.alignment_bytes
    instructions = (
        steps_per_lane * scan.operations_per_element(problem)
        + streams * max(1.0, pieces) * scan.INSTRUCTIONS_PER_COPY
        + SHUFFLES * len(problem.cell.states) * scan.INSTRUCTIONS_PER_SHUFFLE
        + scan.INSTRUCTIONS_PER_TILE
    )
    latency_cycles = (
        scan.CYCLES_PER_TILE
        + instructions * scan.CYCLES_PER_INSTRUCTION
        + SHUFFLES * len(problem.cell.states) * scan.CYCLES_PER_SHUFFLE
    )
    return scan.predicted_us(
        problem,
        taken,
        scan.Walk(
            blocks=-(-problem.batch * problem.hidden_size // taken.channels_per_block),
            warps=candidate["warps"],
            tile_steps=scan.WARP_LANES * steps_per_lane,
            in_flight_bytes=taken.shared_bytes * max(1, stages - 1) // stages,
            instructions=instructions,
            latency_cycles=latency_cycles,
            elements_per_lane=steps_per_lane,
        ),
    )


def family(name: str) -> Family:
    """Return the family of the template `name`, "scan_forward_time" or "scan_backward_time"."""
    return Family(
        name=name,
        template=f"{name}.cu.j2",
        entry=name.removesuffix("_time"),
        variables=variables,
        constraints=constraints,
        resources=resources,
        predicted_us=predicted_us,
    )
