"""Which family of kernels a problem belongs to."""

from __future__ import annotations

from minrnn_gen.plan import (
    alternating,
    diagonal_backward,
    diagonal_forward,
    diagonal_step,
    scan_backward_channels,
    scan_backward_time,
    scan_forward_channels,
    scan_forward_time,
    scan_step,
)
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import Family

FAMILIES: tuple[Family, ...] = (
    scan_forward_channels.FAMILY,
    scan_backward_channels.FAMILY,
    scan_forward_time.FAMILY,
    scan_backward_time.FAMILY,
    scan_step.FAMILY,
    alternating.FORWARD,
    alternating.BACKWARD,
    diagonal_forward.FAMILY,
    diagonal_backward.FAMILY,
    diagonal_step.FAMILY,
)


def family_of(problem: Problem) -> Family:
    """Return the family that serves `problem`."""
    match problem.cell.kind:
        case "affine-diagonal":
            return _family_of_scan(problem)
        case "diagonal":
            return _family_of_diagonal(problem)
        case "dense":
            # A single step is a forward of one.
            return alternating.BACKWARD if problem.kernel_pass == "backward" else alternating.FORWARD


def _family_of_scan(problem: Problem) -> Family:
    if problem.kernel_pass == "step":
        return scan_step.FAMILY
    if problem.kernel_pass == "backward":
        return scan_backward_time.FAMILY if problem.layout == "BDT" else scan_backward_channels.FAMILY
    return scan_forward_time.FAMILY if problem.layout == "BDT" else scan_forward_channels.FAMILY


def _family_of_diagonal(problem: Problem) -> Family:
    if problem.kernel_pass == "step":
        return diagonal_step.FAMILY
    return diagonal_backward.FAMILY if problem.kernel_pass == "backward" else diagonal_forward.FAMILY
