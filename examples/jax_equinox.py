"""Parity with layers of Equinox: a recurrence as a module that is a tree of arrays, trained by functions of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import training  # noqa: F401

# isort: split
import equinox
import jax
import jax.numpy as jnp
from jax_parity import Settings, accuracies, batches, mean_loss, with_cell
from training.command import Command, run_command
from training.course import progress_bar
from training.jax_training import train
from training.library import JAX
from training.record import finish, new_record, save

import minrnn_gen.jax

FULL = Settings(cells=("lstm", "min_gru"), layers=1)
SMALL = Settings(cells=("lstm", "min_gru"), width=32, layers=1, batch=64, steps=400, learning_rate=1e-2, tests=512)


class Recurrence(equinox.Module):
    """Layers of a cell, from [B, T, inputs] to [B, T, features]; keywords are those of `minrnn_gen.jax.RNN`."""

    params: dict[str, Any]
    layer: minrnn_gen.jax.RNN = equinox.field(static=True)

    def __init__(self, cell: str, inputs: int, features: int, *, key: Any, **keywords: Any) -> None:
        self.layer = minrnn_gen.jax.RNN(cell, inputs, features, **keywords)
        self.params = self.layer.init(key)

    def __call__(self, x: Any, state: Any = None, **sequences: Any) -> tuple[Any, dict[str, Any]]:
        return self.layer.apply(self.params, x, state, **sequences)


class Model(equinox.Module):
    """Tokens [B, T] to logits of two classes."""

    embedding: Any
    recurrence: Recurrence
    readout: Any

    def __init__(self, cell: str, width: int, layers: int, key: Any) -> None:
        keys = jax.random.split(key, 3)
        self.embedding = jax.random.normal(keys[0], (2, width))
        self.recurrence = Recurrence(cell, width, width, num_layers=layers, key=keys[1])
        self.readout = equinox.nn.Linear(width, 2, key=keys[2])

    def __call__(self, tokens: Any) -> Any:
        y, _ = self.recurrence(self.embedding[tokens])
        return jax.vmap(jax.vmap(self.readout))(y)


def example(command: Command[Settings]) -> None:
    """Train a model for every cell and record its accuracies at the last steps of all lengths."""
    settings = command.settings
    record = new_record(command, "length", "accuracy at the last step")
    with progress_bar() as progress, jax.default_device(jax.devices(command.device)[0]):
        for cell in settings.cells:
            model = Model(cell, settings.width, settings.layers, jax.random.key(settings.seed))
            arrays, rest = equinox.partition(model, equinox.is_inexact_array)

            def loss(arrays: Any, bits: Any, targets: Any, counts: Any, rest: Any = rest) -> Any:
                return mean_loss(equinox.combine(arrays, rest)(jnp.asarray(bits)), targets, counts)

            arrays, course = train(
                loss,
                arrays,
                batches(settings),
                progress,
                cell,
                steps=settings.steps,
                learning_rate=settings.learning_rate,
            )
            by_length = accuracies(equinox.combine(arrays, rest), settings)
            record = with_cell(record, cell, by_length, course)
            save(record, command)
    finish(record, command)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command("jax_equinox", __doc__.splitlines()[0], FULL, SMALL, example, arguments, JAX)


if __name__ == "__main__":
    sys.exit(main())
