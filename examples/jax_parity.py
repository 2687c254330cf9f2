"""Parity in JAX: is the number of ones so far odd? By functions and dictionaries alone, without a library of layers.

A cell whose next state depends on the product of its state and R can count modulo 2 for ever; a scan cannot (arXiv 2411.12537).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import training  # noqa: F401

# isort: split
import jax
import jax.numpy as jnp
import numpy
from training.command import Command, run_command
from training.course import Training, progress_bar
from training.jax_model import SequenceModel
from training.jax_training import cross_entropy, train
from training.library import JAX
from training.record import Line, Record, finish, new_record, save


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


def parities(batch: int, time: int, random: numpy.random.Generator) -> tuple[Any, Any]:
    """Return random bits and the parities of all their prefixes, both int32 [B, T]."""
    bits = random.integers(2, size=(batch, time), dtype=numpy.int32)
    return bits, bits.cumsum(1, dtype=numpy.int32) % 2


def batches(settings: Settings) -> Iterator[tuple[Any, Any, Any]]:
    """Yield bits, parities, and the steps that count: those of a random length up to `time`, of one shape for one program."""
    random = numpy.random.default_rng(settings.seed)
    while True:
        length = random.integers(1, settings.time + 1)
        yield *parities(settings.batch, settings.time, random), numpy.arange(settings.time) < length


def mean_loss(logits: Any, targets: Any, counts: Any) -> Any:
    """Return the mean cross entropy of the steps that count."""
    return (cross_entropy(logits, targets) * counts).sum() / (counts.sum() * targets.shape[0])


def accuracies(apply: Callable[[Any], Any], settings: Settings) -> dict[int, float]:
    """Return the accuracy at the last step of each length of the test, of a model as a function of tokens."""
    lengths = [settings.time * times for times in settings.longer]
    # Another seed than that of training.
    bits, wanted = parities(settings.tests, max(lengths), numpy.random.default_rng(settings.seed + 1))
    is_right = (jnp.argmax(jax.jit(lambda bits: apply(bits))(bits), -1) == wanted).mean(0)
    return {length: float(is_right[length - 1]) for length in lengths}


def with_cell(record: Record, cell: str, by_length: dict[int, float], course: Training) -> Record:
    """Return the record with the row, the details and the curve of a cell."""
    row = {"cell": cell, **{f"length {length}": accuracy for length, accuracy in by_length.items()}}
    details = {"cell": cell, "last loss": course.losses[-1], "step ms": course.step_ms}
    return record.with_row(row, details, [Line(name=cell, x=tuple(by_length), y=tuple(by_length.values()))])


def example(command: Command[Settings]) -> None:
    """Train a model for every cell and record its accuracies at the last steps of all lengths."""
    settings = command.settings
    record = new_record(command, "length", "accuracy at the last step")
    with progress_bar() as progress, jax.default_device(jax.devices(command.device)[0]):
        for cell in settings.cells:
            model = SequenceModel(cell, tokens=2, classes=2, width=settings.width, layers=settings.layers)
            params, course = train(
                lambda params, bits, targets, counts, model=model: mean_loss(model.apply(params, bits), targets, counts),
                model.init(jax.random.key(settings.seed)),
                batches(settings),
                progress,
                cell,
                steps=settings.steps,
                learning_rate=settings.learning_rate,
            )
            by_length = accuracies(lambda bits, model=model, params=params: model.apply(params, bits), settings)
            record = with_cell(record, cell, by_length, course)
            save(record, command)
    finish(record, command)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("jax_parity", __doc__.splitlines()[0], Settings(), SMALL, example, arguments, JAX)


if __name__ == "__main__":
    sys.exit(main())
