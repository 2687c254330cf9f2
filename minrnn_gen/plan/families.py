"""Which family of kernels a problem belongs to."""

from __future__ import annotations

from minrnn_gen.errors import NotGenerated
from minrnn_gen.plan import (
    diagonal_backward,
    diagonal_forward,
    diagonal_step,
    scan_backward_channels,
    scan_backward_time,
    scan_forward_channels,
    scan_forward_time,
    scan_step,
)
from minrnn_gen.plan.problem import CellKind, Problem
from minrnn_gen.plan.solver import Family

FAMILIES: tuple[Family, ...] = (
    scan_forward_channels.FAMILY,
    scan_backward_channels.FAMILY,
    scan_forward_time.FAMILY,
    scan_backward_time.FAMILY,
    scan_step.FAMILY,
    diagonal_forward.FAMILY,
    diagonal_backward.FAMILY,
    diagonal_step.FAMILY,
)

# The classes of cells that kernels exist for.
GENERATED_KINDS: tuple[CellKind, ...] = ("affine-diagonal", "diagonal")


def family_of(problem: Problem) -> Family:
    """Return the family that serves `problem`; raises NotGenerated where there is none."""
    if problem.cell.kind == "affine-diagonal":
        return _family_of_scan(problem)
    if problem.cell.kind == "diagonal":
        return _family_of_diagonal(problem)
    raise NotGenerated(f"{problem.cell.name} is a {problem.cell.kind} cell, for which no kernel is generated yet")


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
