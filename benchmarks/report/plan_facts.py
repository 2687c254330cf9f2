"""Plans as facts of a row, written by contenders and read back: the variables of each pass and its predicted time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from benchmarks.report.record import PEAK_MIB, Row
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelPass

PREDICTED = "predicted_ms"


def facts_of(plan: KernelPlan, kernel_pass: str = "") -> dict[str, int | float | str]:
    """Return a plan as facts; `kernel_pass` begins their names where a row has the plans of several passes."""
    facts = {**plan.variables, PREDICTED: plan.predicted_total_us / 1e3}
    return {f"{kernel_pass} {name}".strip(): value for name, value in facts.items()}


def plans_of(row: Row) -> Iterator[tuple[KernelPass, dict[str, int]]]:
    """Yield each pass whose plan a row has, with the plan's variables."""
    for kernel_pass in get_args(KernelPass):
        prefix = "" if row.problem.task == kernel_pass and PREDICTED in row.facts else f"{kernel_pass} "
        if prefix + PREDICTED in row.facts:
            named = {name.removeprefix(prefix): value for name, value in row.facts.items() if name.startswith(prefix)}
            yield (
                kernel_pass,
                {name: int(value) for name, value in named.items() if name not in (PREDICTED, PEAK_MIB)},
            )
