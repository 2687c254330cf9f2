"""Selective copying: of a long sequence that is mostly noise, say the few letters in it, in their order (arXiv 2312.00752).

The gates of min_gru and min_lstm see the input alone: one layer cannot know which letter it is that comes; several layers can
(arXiv 2410.01201, table 1).
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
from training.loop import IGNORED, predictions, train
from training.model import SequenceModel
from training.record import Line, finish, new_record, save

from minrnn_gen.errors import BadInput

NOISE = 0


@dataclass(frozen=True)
class Settings:
    """Settings of a run: `copied` letters of `letters` kinds lie among `time` steps; as many further steps ask for them."""

    cells: tuple[str, ...] = ("min_gru", "min_lstm")
    layers: tuple[int, ...] = (1, 2, 3)
    time: int = 128
    copied: int = 8
    letters: int = 14
    width: int = 128
    batch: int = 64
    steps: int = 10000
    learning_rate: float = 5e-3
    tests: int = 1024
    seed: int = 0


SMALL = Settings(time=24, copied=4, letters=4, width=64, batch=64, steps=400, learning_rate=1e-2, tests=512)


def copies(
    batch: int, settings: Settings, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequences and the targets of their steps, both [B, time + copied]; steps without a target are IGNORED."""
    places = torch.rand(batch, settings.time, generator=generator).argsort(1)[:, : settings.copied].sort(1).values
    letters = torch.randint(1, settings.letters + 1, (batch, settings.copied), generator=generator)
    sequences = torch.full((batch, settings.time), NOISE).scatter(1, places, letters)
    asking = torch.full((batch, settings.copied), settings.letters + 1)
    targets = torch.full((batch, settings.time), IGNORED)
    return torch.cat((sequences, asking), 1).to(device), torch.cat((targets, letters), 1).to(device)


def batches(settings: Settings, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches of training, the same for every model."""
    generator = torch.Generator().manual_seed(settings.seed)
    while True:
        yield copies(settings.batch, settings, generator, device)


def example(command: Command[Settings]) -> None:
    """Train a model for every cell and number of layers, and record its share of correct letters."""
    settings, device = command.settings, torch.device(command.device)
    if settings.copied > settings.time:
        raise BadInput(f"--copied is {settings.copied}; at most --time, which is {settings.time}, is expected")
    # Another seed than that of training.
    tokens, wanted = copies(settings.tests, settings, torch.Generator().manual_seed(settings.seed + 1), device)
    record = new_record(command, "training steps", "loss")
    with progress_bar() as progress:
        for cell in settings.cells:
            row: dict[str, str | int | float] = {"cell": cell}
            details: dict[str, str | int | float] = {"cell": cell}
            lines = []
            for layers in settings.layers:
                title = f"{cell}, {layers} layer{'s' * (layers > 1)}"
                torch.manual_seed(settings.seed)
                kinds = settings.letters + 2
                model = SequenceModel(cell, tokens=kinds, classes=kinds, width=settings.width, layers=layers).to(device)
                course = train(
                    model,
                    batches(settings, device),
                    progress,
                    title,
                    steps=settings.steps,
                    learning_rate=settings.learning_rate,
                )
                letters = predictions(model, tokens)[:, -settings.copied :]
                row[title.partition(", ")[2]] = (letters == wanted[:, -settings.copied :]).double().mean().item()
                details[f"step ms, {layers}"] = course.step_ms
                lines.append(Line(name=title, x=course.steps, y=course.losses))
            record = record.with_row(row, details, lines)
            save(record, command)
    finish(record, command)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("selective_copy", __doc__.splitlines()[0], Settings(), SMALL, example, arguments)


if __name__ == "__main__":
    sys.exit(main())
