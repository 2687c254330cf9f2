"""A language model over bytes in JAX: Python's own documentation and standard library, cells against an LSTM by `lax.scan`.

Nothing is downloaded: the text is what comes with the interpreter, so losses are to be compared within one run; the record has
the hash of the text.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import training  # noqa: F401

# isort: split
import jax
import numpy
from training.command import Command, run_command
from training.course import progress_bar
from training.jax_model import BY_LAX_SCAN, WITH_HEADS, SequenceModel
from training.jax_training import cross_entropy, train
from training.library import JAX
from training.record import Line, finish, new_record, save
from training.text import split, text

BYTES = 256


@dataclass(frozen=True)
class Settings:
    """Settings of a run: `width` of every layer, `heads` of cells with a recurrent product."""

    models: tuple[str, ...] = ("lstm", "gru", "slstm", "min_gru", "min_lstm", "rg_lru", BY_LAX_SCAN)
    width: int = 768
    heads: int = 12
    layers: int = 2
    batch: int = 16
    time: int = 1024
    steps: int = 1000
    learning_rate: float = 1e-3
    tests: int = 4
    seed: int = 0


SMALL = Settings(width=64, heads=2, layers=1, batch=8, time=64, steps=100, learning_rate=5e-3, tests=8)


def batches(part: bytes, settings: Settings, seed: int) -> Iterator[tuple[Any, Any]]:
    """Yield pieces from random places and their next bytes, both uint8 [B, T], the same for every model."""
    random, data = numpy.random.default_rng(seed), numpy.frombuffer(part, numpy.uint8)
    steps = numpy.arange(settings.time + 1)
    while True:
        pieces = data[random.integers(len(data) - settings.time, size=(settings.batch, 1)) + steps]
        yield pieces[:, :-1], pieces[:, 1:]


def example(command: Command[Settings]) -> None:
    """Train every model on the same pieces, and record its loss on held-out text and its speed."""
    settings = command.settings
    whole = text()
    trained, tested = split(whole)
    precision = "bf16" if command.device == "cuda" else "fp32"
    record = new_record(command, "training steps", "training loss, nats per byte")
    origin = {"text bytes": len(whole), "text sha256": hashlib.sha256(whole).hexdigest()}
    with progress_bar() as progress, jax.default_device(jax.devices(command.device)[0]):
        for name in settings.models:
            model = SequenceModel(
                name,
                tokens=BYTES,
                classes=BYTES,
                width=settings.width,
                layers=settings.layers,
                heads=settings.heads,
                precision=precision,
                feed_forward=True,
            )

            def loss(params: Any, pieces: Any, following: Any, model: SequenceModel = model) -> Any:
                return cross_entropy(model.apply(params, pieces), following).mean()

            params, course = train(
                loss,
                model.init(jax.random.key(settings.seed)),
                batches(trained, settings, settings.seed),
                progress,
                name,
                steps=settings.steps,
                learning_rate=settings.learning_rate,
            )
            # Another seed than that of training, and another text.
            held_out, measure = batches(tested, settings, settings.seed + 1), jax.jit(loss)
            tested_loss = sum(float(measure(params, *next(held_out))) for _ in range(settings.tests)) / settings.tests
            row = {
                "model": name,
                "heads": settings.heads if name in WITH_HEADS else 1 if name == BY_LAX_SCAN else "",
                "arithmetic": precision,
                "parameters": sum(array.size for array in jax.tree.leaves(params)),
                "bits per byte": tested_loss / math.log(2),
                "step, ms": course.step_ms,
                "bytes/s": round(settings.batch * settings.time / course.step_ms * 1e3),
            }
            record = record.with_row(row, {"model": name, **origin}, [Line(name=name, x=course.steps, y=course.losses)])
            save(record, command)
    finish(record, command)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("jax_char_lm", __doc__.splitlines()[0], Settings(), SMALL, example, arguments, JAX)


if __name__ == "__main__":
    sys.exit(main())
