"""Parity with layers of Flax: a recurrence as a module of flax.nnx, trained by its optimizer."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import training  # noqa: F401

# isort: split
import jax
import optax
from flax import nnx
from jax_parity import accuracies, batches, mean_loss, with_cell
from training.command import Command, run_command
from training.course import progress_bar, run_spans
from training.library import JAX
from training.record import finish, new_record, save

import minrnn_gen.jax


@dataclass(frozen=True)
class Settings:
    """Settings of a run: `time` is the longest in training, `longer` the lengths of the test in multiples of it."""

    cells: tuple[str, ...] = ("lstm", "min_gru")
    time: int = 40
    longer: tuple[int, ...] = (1, 2, 4, 8)
    width: int = 64
    batch: int = 256
    steps: int = 3000
    learning_rate: float = 3e-3
    tests: int = 4096
    seed: int = 0


SMALL = Settings(width=32, batch=64, steps=400, learning_rate=1e-2, tests=512)


class Recurrence(nnx.Module):
    """Layers of a cell, from [B, T, inputs] to [B, T, features]; keywords are those of `minrnn_gen.jax.RNN`."""

    def __init__(self, cell: str, inputs: int, features: int, *, rngs: nnx.Rngs, **keywords: Any) -> None:
        self.layer = minrnn_gen.jax.RNN(cell, inputs, features, **keywords)
        self.params = nnx.Dict({name: nnx.Param(array) for name, array in self.layer.init(rngs.params()).items()})

    def __call__(self, x: Any, state: Any = None, **sequences: Any) -> tuple[Any, dict[str, Any]]:
        return self.layer.apply({name: param[...] for name, param in self.params.items()}, x, state, **sequences)


class Model(nnx.Module):
    """Tokens [B, T] to logits of two classes."""

    def __init__(self, cell: str, width: int, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(2, width, rngs=rngs)
        self.recurrence = Recurrence(cell, width, width, rngs=rngs)
        self.readout = nnx.Linear(width, 2, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        return self.readout(self.recurrence(self.embedding(tokens))[0])


@nnx.jit
def update(model: Model, optimizer: nnx.Optimizer, tokens: Any, targets: Any, counts: Any) -> Any:
    """Take one step in place, and return its loss."""
    loss, gradients = nnx.value_and_grad(lambda model: mean_loss(model(tokens), targets, counts))(model)
    optimizer.update(model, gradients)
    return loss


def example(command: Command[Settings]) -> None:
    """Train a model for every cell and record its accuracies at the last steps of all lengths."""
    settings = command.settings
    record = new_record(command, "length", "accuracy at the last step")
    with progress_bar() as progress, jax.default_device(jax.devices(command.device)[0]):
        for cell in settings.cells:
            model = Model(cell, settings.width, nnx.Rngs(settings.seed))
            rate = optax.cosine_onecycle_schedule(settings.steps, settings.learning_rate, pct_start=0.1)
            rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=0.01))
            optimizer = nnx.Optimizer(model, rule, wrt=nnx.Param)
            drawn = batches(settings)
            course = run_spans(
                lambda model=model, optimizer=optimizer, drawn=drawn: update(model, optimizer, *next(drawn)),
                settings.steps,
                progress,
                cell,
            )
            by_length = accuracies(model, settings)
            record = with_cell(record, cell, by_length, course)
            save(record, command)
    finish(record, command)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("jax_flax", __doc__.splitlines()[0], Settings(), SMALL, example, arguments, JAX)


if __name__ == "__main__":
    sys.exit(main())
