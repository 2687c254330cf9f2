"""Course of a training: its steps in spans, their losses and times, and the bar that shows them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Spans of a run, in which its steps are timed, and which are the points of its loss curve.
SPANS = 50


@dataclass(frozen=True)
class Training:
    """Course of a training: the mean losses of its spans, by their last steps, and the median time of a step."""

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    step_ms: float


def progress_bar() -> Progress:
    """Return a progress bar on stderr; stdout is for the table."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]}"))
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))


def run_spans(step: Callable[[], Any], steps: int, progress: Progress, title: str) -> Training:
    """Call `step` so many times; it returns its loss, a scalar that may still be on its way from a device."""
    shown = progress.add_task(title, total=steps, loss="")
    span = max(1, steps // SPANS)
    ends: list[int] = []
    losses: list[float] = []
    times_ms: list[float] = []
    for first in range(0, steps, span):
        count = min(span, steps - first)
        started = time.perf_counter()
        total = sum(step() for _ in range(count))
        losses.append(float(total) / count)  # waits for the device
        times_ms.append((time.perf_counter() - started) * 1e3 / count)
        ends.append(first + count)
        progress.update(shown, completed=first + count, loss=f"{losses[-1]:.3f}")
    # The first span compiles kernels, or fetches them from the cache.
    return Training(tuple(ends), tuple(losses), statistics.median(times_ms[1:] or times_ms))
