"""A plan with the values that a test gives it, in the parts where a plan has them, and no others."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from minrnn_gen.plan.kernel_plan import Budget, LaunchShape, PlannedProblem

PARTS = {"problem": PlannedProblem, "launch": LaunchShape, "budget": Budget}


def plan_with(**values: Any) -> Any:
    """Return a plan of `values` by name."""
    parts = {
        part: SimpleNamespace(**{field.name: values.pop(field.name) for field in fields(kind) if field.name in values})
        for part, kind in PARTS.items()
    }
    return SimpleNamespace(**{"is_cooperative": False, **parts, **values})
