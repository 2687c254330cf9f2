"""The kernel families, and which of them serve a problem."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minrnn_gen.errors import Infeasible
from minrnn_gen.plan import coupled, diagonal, diagonal_scan, pointwise
from minrnn_gen.plan.dense import decode, large_batch, normed, persistent, stepwise
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.scan import channels, cooperative, filter, projected, time
from minrnn_gen.plan.solver import Family, Solution, can_copy_asynchronously, solve
from minrnn_gen.plan.vectors import family as vectors

FAMILIES: tuple[Family, ...] = (
    channels.FORWARD,
    channels.BACKWARD,
    time.FORWARD,
    time.BACKWARD,
    cooperative.FORWARD,
    cooperative.BACKWARD,
    projected.FORWARD,
    pointwise.SCAN,
    large_batch.FORWARD,
    large_batch.BACKWARD,
    persistent.FORWARD,
    persistent.BACKWARD,
    decode.STEP,
    decode.ROUNDS,
    stepwise.FORWARD,
    stepwise.BACKWARD,
    stepwise.ARGUMENTS,
    normed.FORWARD,
    normed.BACKWARD,
    normed.ARGUMENTS,
    diagonal.FORWARD,
    diagonal.BACKWARD,
    coupled.FORWARD,
    diagonal_scan.BACKWARD,
    pointwise.DIAGONAL,
    pointwise.DROPOUT,
    filter.FORWARD,
    filter.BACKWARD,
    vectors.FORWARD,
    vectors.BACKWARD,
    vectors.STEP,
)

# Kernels that move rows around calls, and serve no pass of a cell themselves.
MOVING: tuple[Family, ...] = (pointwise.SLOTS, pointwise.DRAFTS, pointwise.JOINED)


def solutions(problem: Problem) -> Iterator[Solution]:
    """Yield the solution of each family that serves `problem`, the best first; raises Infeasible where none does.

    The solution for any size says why the others were passed over.
    """
    # Of the backward of a diagonal cell the sequential kernel says why time is not divided.
    if problem.family == "scan" or (problem.family == "diagonal" and problem.kernel_pass != "backward"):
        yield from _ranked(problem, families_of(problem))
        return
    *preferred, last = families_of(problem)
    passed_over = _refusal(problem)
    at_last = solve(problem, last)
    fused: list[Solution] = []
    for family in preferred:
        try:
            fused.append(solve(problem, family))
        except Infeasible as why:
            passed_over = str(why)
    if not fused:
        yield replace(at_last, passed_over=passed_over)
        return
    fused.sort(key=lambda solution: solution.plan().predicted_total_us)
    fused_us, last_us = fused[0].plan().predicted_total_us, at_last.plan().predicted_total_us
    if last_us < fused_us:
        slower = f"all steps in one launch would take {fused_us / 1e3:.3g} ms, one after the other {last_us / 1e3:.3g} ms"
        if problem.kernel_pass == "step":
            slower = f"a kernel of its own would take {fused_us:.3g} us, a product and a pointwise kernel {last_us:.3g} us"
        elif problem.family == "diagonal":
            slower = f"time divided among blocks would take {fused_us:.3g} us, each channel by one thread {last_us:.3g} us"
        yield replace(at_last, passed_over=slower)
        yield from fused
        return
    yield from fused
    yield replace(at_last, passed_over="no candidate kept its promise when it was compiled")


def _ranked(problem: Problem, families: tuple[Family, ...]) -> list[Solution]:
    """Return the solutions of families that may each be the fastest, the best first; raises Infeasible if there is none."""
    solved: list[Solution] = []
    refusals: list[Infeasible] = []
    for family in families:
        try:
            solved.append(solve(problem, family))
        except Infeasible as why:
            refusals.append(why)
    if not solved:
        raise refusals[0]
    return sorted(solved, key=lambda solution: solution.plan().predicted_total_us)


def families_of(problem: Problem) -> tuple[Family, ...]:
    """Return the families that may serve `problem`, whatever its sizes, the preferred one first."""
    if problem.kernel_pass == "dropout":
        return (pointwise.DROPOUT,)
    if problem.kernel_pass == "joined":
        return (pointwise.JOINED,)
    if problem.kernel_pass in ("slots", "drafts"):
        return (pointwise.SLOTS if problem.kernel_pass == "slots" else pointwise.DRAFTS,)
    if problem.kernel_pass == "arguments":
        return (normed.ARGUMENTS if problem.cell.has_means else stepwise.ARGUMENTS,)
    if problem.kernel_pass in ("filter", "filter_backward"):
        return (filter.FORWARD if problem.kernel_pass == "filter" else filter.BACKWARD,)
    if problem.state_size:
        return ({"forward": vectors.FORWARD, "backward": vectors.BACKWARD, "step": vectors.STEP}[problem.kernel_pass],)
    match problem.cell.kind:
        case "affine-diagonal":
            return _scan_families(problem)
        case "diagonal" | "block-affine":
            return _diagonal_families(problem)
        case "dense" if problem.cell.has_means:
            backward = problem.kernel_pass == "backward"
            at_last = normed.BACKWARD if backward else normed.FORWARD
            if problem.kernel_pass == "step":
                return (at_last,) if persistent.means_refusal(problem) else (decode.ROUNDS, at_last)
            if _refusal(problem):
                return (at_last,)
            many = () if large_batch.refusal(problem) else (large_batch.FORWARD,)
            return *many, persistent.BACKWARD if backward else persistent.FORWARD, at_last
        case "dense":
            if problem.kernel_pass == "step":
                # What does not fit is a forward of one step.
                return decode.ROUNDS if problem.cell.rounds else decode.STEP, stepwise.FORWARD
            backward = problem.kernel_pass == "backward"
            any_size = stepwise.BACKWARD if backward else stepwise.FORWARD
            if _refusal(problem):
                return (any_size,)
            in_warps, in_warpgroups = persistent.FORWARD, large_batch.FORWARD
            if backward:
                in_warps, in_warpgroups = persistent.BACKWARD, large_batch.BACKWARD
            return *(() if large_batch.refusal(problem) else (in_warpgroups,)), in_warps, any_size


def _refusal(problem: Problem) -> str:
    """Return why the preferred kernels are not for a `problem`; empty where they are, or where none is asked for.

    They have R on the chip, or divide the time of a diagonal cell.
    """
    if problem.family == "diagonal" and problem.kernel_pass == "backward":
        return diagonal_scan.refusal(problem)
    is_over_time = problem.cell.has_matrix and problem.kernel_pass in ("forward", "backward")
    return persistent.refusal(problem) if is_over_time else ""


def _scan_families(problem: Problem) -> tuple[Family, ...]:
    if problem.kernel_pass == "step":
        return (pointwise.SCAN,)
    if problem.specialization.input_size:
        return (projected.FORWARD,)
    backward = problem.kernel_pass == "backward"
    if problem.layout == "BDT":
        return (time.BACKWARD if backward else time.FORWARD,)
    by_columns, by_time = (channels.BACKWARD, cooperative.BACKWARD) if backward else (channels.FORWARD, cooperative.FORWARD)
    # Tiles are copied while others are reduced and scanned.
    return (by_columns, by_time) if can_copy_asynchronously(problem) else (by_columns,)


def _diagonal_families(problem: Problem) -> tuple[Family, ...]:
    if problem.kernel_pass == "step":
        return (pointwise.DIAGONAL,)
    by_time = problem.layout == "BDT"
    if problem.kernel_pass == "backward":
        scans = (time.BACKWARD if by_time else channels.BACKWARD,) if problem.cell.is_dual else ()
        return (*scans, *(() if diagonal_scan.refusal(problem) else (diagonal_scan.BACKWARD,)), diagonal.BACKWARD)
    # Blocks of complex numbers are not proved to have an order of composition that keeps their bits.
    is_coupled = problem.cell.phases and not problem.precision.name.startswith("complex")
    scans = (time.FORWARD if by_time else channels.FORWARD,) if problem.cell.is_dual else ()
    return (*scans, diagonal.FORWARD, coupled.FORWARD) if is_coupled else (*scans, diagonal.FORWARD)
