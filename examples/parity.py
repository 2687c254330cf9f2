"""Parity: is the number of ones so far odd? Trained on short sequences, asked on sequences eight times as long.

A cell whose next state depends on the product of its state and R can count modulo 2 for ever. A scan, whose coefficients come
from the input alone and are never negative, cannot (arXiv 2411.12537): it stays at chance, 0.5, where sequences are long.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import training  # noqa: F401

# isort: split
import torch
from training.command import Command, run_command
from training.course import progress_bar
from training.loop import predictions, train
from training.model import SequenceModel
from training.record import Line, finish, new_record, save


@dataclass(frozen=True)
class Settings:
    """Settings of a run: `time` is the longest in training, `longer` the lengths of the test in multiples of it."""

    cells: tuple[str, ...] = ("lstm", "gru", "elman", "slstm", "min_gru", "min_lstm")
    time: int = 40
    longer: tuple[int, ...] = (1, 2, 4, 8)
    width: int = 64
    layers: int = 2
    batch: int = 256
    steps: int = 3000
    learning_rate: float = 3e-3
    tests: int = 4096
    seed: int = 0


SMALL = Settings(width=32, layers=1, batch=64, steps=400, learning_rate=1e-2, tests=512)


def parities(batch: int, time: int, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random bits and the parities of all their prefixes, both [B, T]."""
    bits = torch.randint(2, (batch, time), generator=generator).to(device)
    return bits, bits.cumsum(1) % 2


def batches(settings: Settings, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of random lengths up to `time`, the same for every cell; all steps have a target."""
    generator = torch.Generator().manual_seed(settings.seed)
    while True:
        time = int(torch.randint(1, settings.time + 1, (), generator=generator))
        yield parities(settings.batch, time, generator, device)


def example(command: Command[Settings]) -> None:
    """Train a model for every cell and record its accuracies at the last steps of all lengths."""
    settings, device = command.settings, torch.device(command.device)
    lengths = [settings.time * times for times in settings.longer]
    # Another seed than that of training.
    bits, wanted = parities(settings.tests, max(lengths), torch.Generator().manual_seed(settings.seed + 1), device)
    record = new_record(command, "length", "accuracy at the last step")
    with progress_bar() as progress:
        for cell in settings.cells:
            torch.manual_seed(settings.seed)
            model = SequenceModel(cell, tokens=2, classes=2, width=settings.width, layers=settings.layers).to(device)
            course = train(
                model,
                batches(settings, device),
                progress,
                cell,
                steps=settings.steps,
                learning_rate=settings.learning_rate,
            )
            is_right = (predictions(model, bits) == wanted).double().mean(0)
            accuracies = [is_right[length - 1].item() for length in lengths]
            row = {"cell": cell, **{f"length {length}": value for length, value in zip(lengths, accuracies, strict=True)}}
            details = {"cell": cell, "last loss": course.losses[-1], "step ms": course.step_ms}
            record = record.with_row(row, details, [Line(name=cell, x=tuple(lengths), y=tuple(accuracies))])
            save(record, command)
    finish(record, command)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("parity", __doc__.splitlines()[0], Settings(), SMALL, example, arguments)


if __name__ == "__main__":
    sys.exit(main())
