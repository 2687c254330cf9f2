"""Training loop of the examples in torch, and the predictions of a trained model."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from rich.progress import Progress
from torch import nn

from training.course import Training, run_spans

# The target that torch's cross entropy ignores.
IGNORED = -100
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


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

    def step() -> torch.Tensor:
        tokens, targets = next(batches)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=in_bf16):
            loss = loss_of(model, tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.detach()

    return run_spans(step, steps, progress, title)


@torch.no_grad()
def predictions(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the most likely classes of all steps, [B, T]."""
    return model(tokens).argmax(-1)
