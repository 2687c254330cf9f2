"""A decision at a glance: the cell's class and its proof, the limit on time, and a warning for arrays that do not fit."""

from __future__ import annotations

from minrnn_gen.plan.classes import FAMILIES_IN_WORDS
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import CellShape

_GIB = 2**30


def overview(plan: KernelPlan, cell: CellShape, memory_bytes: int | None = None) -> list[tuple[str, str]]:
    """Return the rows class, proof and limit, and a warning where arrays exceed `memory_bytes`, those of the GPU."""
    composed = "coupled: maps of a few states are composed in parallel"
    rows = [("class", composed if plan.strategy == "coupled" else FAMILIES_IN_WORDS[plan.family])]
    if cell.proof:
        rows.append(("proof", cell.proof.rstrip(".")))
    rows.append(("limit", plan.limit))
    if warning := memory_warning(plan, cell, memory_bytes):
        rows.append(("warning", warning))
    return rows


def memory_warning(plan: KernelPlan, cell: CellShape, memory_bytes: int | None) -> str:
    """Return a sentence where the arrays of a call of the typical sizes exceed the GPU's memory, else nothing."""
    matrix, total = matrix_bytes(plan, cell), call_bytes(plan, cell)
    if memory_bytes is None or total <= memory_bytes:
        return ""
    has = f"{plan.problem.gpu} has {memory_bytes / _GIB:,.1f} GiB"
    if matrix > memory_bytes:
        return f"R alone takes {matrix / _GIB:,.1f} GiB, and {has}; give fewer units, more heads or a smaller precision"
    sizes = f"batch {plan.problem.batch}, time {plan.problem.time}"
    return f"the arrays of a call of {sizes} take {total / _GIB:,.1f} GiB, and {has}; calls of these sizes fail"


def matrix_bytes(plan: KernelPlan, cell: CellShape) -> int:
    """Return the bytes of R, 0 without R."""
    return len(cell.recurrent_gates) * plan.problem.hidden_size * plan.head_dim * plan.problem.storage_bytes


def call_bytes(plan: KernelPlan, cell: CellShape) -> int:
    """Return the bytes of the arrays of a call of the typical sizes: x, R, y and states, plus gradients in a backward."""
    elements = plan.problem.batch * plan.problem.time * plan.problem.hidden_size * (len(cell.gates) + 1)
    n, groups = plan.launch.partition.get("state_size", 1), plan.launch.partition.get("groups", 1)
    elements += plan.problem.batch * plan.problem.time * groups * n * len(cell.shared)
    values = len(cell.states) + (n - 1) * len(cell.vector_states)
    states = plan.problem.batch * plan.problem.hidden_size * values * plan.problem.arithmetic_bytes
    once = elements * plan.problem.storage_bytes + 2 * states + matrix_bytes(plan, cell)
    return 2 * once if plan.problem.kernel_pass == "backward" else once
