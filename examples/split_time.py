"""Selective copying with time split over processes: `torchrun --nproc-per-node 2 examples/split_time.py`.

Each process has a piece of every sequence, and the same weights. The losses are those of one process, `python
examples/split_time.py`, but for the last digits. `--tune` first measures in which way states pass fastest from piece to piece.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import training  # noqa: F401

# isort: split
import torch
import torch.distributed as dist
from selective_copy import SMALL, batches
from training.loop import IGNORED

import minrnn_gen.torch


class Copier(torch.nn.Module):
    """Tokens [B, T] to logits: an embedding, two layers of min_lstm over pieces of time, a readout."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(tokens, width)
        self.recurrence = minrnn_gen.torch.MinLSTM(width, width, num_layers=2)
        self.readout = torch.nn.Linear(width, tokens)

    def forward(self, tokens: torch.Tensor, group: Any) -> torch.Tensor:
        output, _ = self.recurrence(self.embedding(tokens), sequence_group=group)
        return self.readout(output)


def piece_of(sequences: torch.Tensor, group: Any) -> torch.Tensor:
    """Return this rank's piece of sequences [B, T]; the last rank's is the longest where T does not divide."""
    if group is None:
        return sequences
    rank, size, time = dist.get_rank(group), dist.get_world_size(group), sequences.shape[1]
    return sequences[:, time * rank // size : time * (rank + 1) // size]


def loss_of(model: Copier, batch: tuple[torch.Tensor, torch.Tensor], group: Any, way: Any) -> torch.Tensor:
    """Return this rank's share of the loss; `way` is the group as the layers take it."""
    tokens, targets = batch
    logits = model(piece_of(tokens, group), way)
    # The mean over the whole: each rank has the share of its own targets.
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), piece_of(targets, group).flatten(), ignore_index=IGNORED, reduction="sum"
    ) / int((targets != IGNORED).sum())


def tuned(model: Copier, batch: tuple[torch.Tensor, torch.Tensor], group: Any) -> minrnn_gen.torch.SequenceGroup:
    """Return the group with the way in which a step is fastest; the weights stay as they are."""

    def step(way: minrnn_gen.torch.SequenceGroup) -> None:
        torch.autograd.grad(loss_of(model, batch, group, way), [*model.parameters()])

    found = minrnn_gen.torch.tune_sequence_group(group, step)
    if dist.get_rank(group) == 0:
        for way, ms in found.times_ms.items():
            print(f"{way or 'as the formula chooses':22}  {ms:8.3f} ms{'  taken' * (way == found.way)}")
    return found


def losses(group: Any, steps: int, device: torch.device, tune: bool = False) -> list[float]:
    """Train and return the loss of every step, the same on all ranks."""
    torch.manual_seed(SMALL.seed)
    model = Copier(SMALL.letters + 2, SMALL.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=SMALL.learning_rate)
    way = tuned(model, next(batches(SMALL, device)), group) if tune else group
    course = []
    for _, batch in zip(range(steps), batches(SMALL, device), strict=False):
        loss = loss_of(model, batch, group, way)
        optimizer.zero_grad()
        loss.backward()
        whole = loss.detach()
        if group is not None:
            minrnn_gen.torch.sum_gradients(model.parameters(), group)
            dist.all_reduce(whole, group=group)
        optimizer.step()
        course.append(whole.item())
    return course


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tune", action="store_true", help="measure how states pass fastest between processes")
    asked = parser.parse_args(arguments)
    steps = asked.steps
    on_gpu, over_ranks = torch.cuda.is_available(), "RANK" in os.environ
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if over_ranks:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    group = dist.group.WORLD if over_ranks else None
    course = losses(group, steps, device, asked.tune and over_ranks)
    if group is None or dist.get_rank(group) == 0:
        for step in range(0, steps, max(1, steps // 10)):
            print(f"step {step:5}  loss {course[step]:.5f}")
        print(f"step {steps - 1:5}  loss {course[-1]:.5f}")
    if over_ranks:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
