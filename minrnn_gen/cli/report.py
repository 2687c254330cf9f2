"""Compiled kernels as tables for people and as entries of a JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.explain import strategy_in_words, variables_in_words
from minrnn_gen.build.overview import memory_warning, overview
from minrnn_gen.cli.tables import Table, Title
from minrnn_gen.cli.terminal import new_table

if TYPE_CHECKING:
    from minrnn_gen.config.gpu_profile import GpuProfile


def kernel_entries(built: tuple[BuiltKernel, ...]) -> list[dict[str, Any]]:
    """Return the compiler's report on each kernel, and its plan's promises."""
    return [
        {
            "name": kernel.name,
            "pass": built_kernel.plan.problem.kernel_pass,
            "digest": built_kernel.digest,
            "registers": kernel.registers,
            "registers_expected": built_kernel.plan.budget.registers_per_thread,
            "registers_estimated": built_kernel.plan.budget.registers_estimated,
            "shared_bytes": kernel.shared_bytes,
            "shared_bytes_expected": built_kernel.plan.budget.shared_bytes,
            "spill_bytes": kernel.spill_bytes,
        }
        for built_kernel in built
        for kernel in built_kernel.resources or ()
    ]


def facts_of(built: BuiltKernel, profile: GpuProfile) -> dict[str, Any]:
    """Return the class of the cell with its proof, the limit on time, and arrays that do not fit the GPU."""
    return {
        "class": built.cell.kind,
        "proof": built.cell.proof,
        "limit": max(built.plan.prediction.predicted_us, key=lambda term: built.plan.prediction.predicted_us[term]),
        "warnings": [warning for warning in [memory_warning(built.plan, built.cell, profile.memory_bytes)] if warning],
    }


def title(built: BuiltKernel) -> Title:
    """Return the title: the cell with its size, precision and layout, and the GPU."""
    problem = built.plan.problem
    sizes = f", hidden_size {problem.hidden_size}, {problem.precision}, layout {problem.layout}, for "
    return Title(((problem.model, True), (sizes, False), (problem.gpu, True), (f" ({problem.arch})", False)))


def decision(built: BuiltKernel, profile: GpuProfile) -> list[tuple[str, str]]:
    """Return rows with the solver's choice, its number of candidates, the class of the cell, and its limits."""
    plan = built.plan
    rejected = sum(plan.prediction.rejected.values())
    rows = [
        ("decision", variables_in_words(plan.variables)),
        ("", f"best predicted of {plan.prediction.candidate_count:,} candidates that fit; {rejected:,} do not"),
    ]
    if built.dropped:
        rows.append(("", f"{len(built.dropped)} better predicted ones broke their promise when compiled"))
    if plan.waits_are_bounded:
        rows.append(("build", "debug (MINRNN_DEBUG=1): every wait is bounded"))
    if strategy := strategy_in_words(plan):
        rows.append(("strategy", strategy))
    return [*rows, *overview(plan, built.cell, profile.memory_bytes)]


def resources(built: tuple[BuiltKernel, ...]) -> Table:
    """Return the compiler's reported resources, each with the plan's promise."""
    numbers = ("registers per thread", "shared bytes per block", "spilled bytes")
    table = new_table("kernel", *numbers, right=numbers)
    for built_kernel in built:
        for kernel in built_kernel.resources or ():
            table.add_row(
                kernel.name,
                f"{kernel.registers} of {built_kernel.plan.budget.registers_per_thread}",
                f"{kernel.shared_bytes:,} of {built_kernel.plan.budget.shared_bytes:,}",
                f"{kernel.spill_bytes}",
            )
    return table


def origin(built: tuple[BuiltKernel, ...], seconds: float) -> str:
    """Say whether the kernels were compiled or found, how long that took, and how to read the table below."""
    made = "from the cache" if all(built_kernel.cached for built_kernel in built) else "compiled"
    return f"{made} in {seconds:.2f} s; used of allowed, as the compiler reports:"
