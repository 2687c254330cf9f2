"""Training loop of all examples, and the predictions of a trained model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn

# The target that torch's cross entropy ignores.
IGNORED = -100
# Spans of a run, in which its steps are timed, and which are the points of its loss curve.
SPANS = 50

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


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


def loss_of(model: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy, in nats, of all targets [B, T] but the ignored; inside autocast on a GPU in bfloat16."""
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)


def train(
    model: nn.Module,
    batches: Batches,
    progress: Progress,
    title: str,
    *,
    steps: int,
    learning_rate: float,
    in_bf16: bool = False,
) -> Training:
    """Train with AdamW, a one-cycle learning rate with a warm-up of a tenth of the steps, and gradients clipped at norm 1."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    shown = progress.add_task(title, total=steps, loss="")
    span = max(1, steps // SPANS)
    ends: list[int] = []
    losses: list[float] = []
    times_ms: list[float] = []
    for first in range(0, steps, span):
        count = min(span, steps - first)
        total = torch.zeros((), device=device)
        started = time.perf_counter()
        for _ in range(count):
            tokens, targets = next(batches)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=in_bf16):
                loss = loss_of(model, tokens, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.detach()
        losses.append(total.item() / count)  # waits for the device
        times_ms.append((time.perf_counter() - started) * 1e3 / count)
        ends.append(first + count)
        progress.update(shown, completed=first + count, loss=f"{losses[-1]:.3f}")
    # The first span compiles kernels, or fetches them from the cache.
    return Training(tuple(ends), tuple(losses), statistics.median(times_ms[1:] or times_ms))


@torch.no_grad()
def predictions(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the most likely classes of all steps, [B, T]."""
    return model(tokens).argmax(-1)
