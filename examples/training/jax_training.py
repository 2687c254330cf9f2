"""Training in JAX alone: AdamW as a pair of functions, and the loop of the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich.progress import Progress

from training.course import Training, run_spans

# Those of Adam's paper, and the decay of torch's AdamW.
FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8
WEIGHT_DECAY = 0.01


class Moments(NamedTuple):
    """Moving means of gradients and of their squares, and how many steps they are of."""

    first: Any
    second: Any
    steps: Any


def no_moments(params: Any) -> Moments:
    """Return the moments before the first step."""
    zeros = jax.tree.map(jnp.zeros_like, params)
    return Moments(zeros, zeros, jnp.zeros((), jnp.int32))


def learning_rate_at(step: Any, steps: int, most: float) -> Any:
    """Return the rate of a step: a rise over a tenth of the steps, then a cosine to zero."""
    warm = max(1, steps // 10)
    falling = 0.5 * (1 + jnp.cos(jnp.pi * (step - warm) / max(1, steps - warm)))
    return most * jnp.where(step < warm, (step + 1) / warm, falling)


def adamw(params: Any, gradients: Any, moments: Moments, learning_rate: Any) -> tuple[Any, Moments]:
    """Return parameters and moments after a step with gradients clipped at norm 1."""
    norm = jnp.sqrt(sum((gradient**2).sum() for gradient in jax.tree.leaves(gradients)))
    gradients = jax.tree.map(lambda gradient: gradient / jnp.maximum(norm, 1), gradients)
    steps = moments.steps + 1
    first = jax.tree.map(lambda mean, gradient: FIRST * mean + (1 - FIRST) * gradient, moments.first, gradients)
    second = jax.tree.map(lambda mean, gradient: SECOND * mean + (1 - SECOND) * gradient**2, moments.second, gradients)

    def moved(array: Any, mean: Any, square: Any) -> Any:
        direction = (mean / (1 - FIRST**steps)) / (jnp.sqrt(square / (1 - SECOND**steps)) + EPSILON)
        return array - learning_rate * (direction + WEIGHT_DECAY * array)

    return jax.tree.map(moved, params, first, second), Moments(first, second, steps)


def train(
    loss: Callable[..., Any],
    params: Any,
    batches: Iterator[tuple[Any, ...]],
    progress: Progress,
    title: str,
    *,
    steps: int,
    learning_rate: float,
) -> tuple[Any, Training]:
    """Return the parameters trained by `loss(params, *batch)`, a scalar, and the course of the training."""

    @jax.jit
    def update(params: Any, moments: Moments, batch: tuple[Any, ...]) -> tuple[Any, Moments, Any]:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return *adamw(params, gradients, moments, learning_rate_at(moments.steps, steps, learning_rate)), value

    moments = no_moments(params)

    def step() -> Any:
        nonlocal params, moments
        params, moments, value = update(params, moments, next(batches))
        return value

    course = run_spans(step, steps, progress, title)
    return params, course


def cross_entropy(logits: Any, targets: Any) -> Any:
    """Return the cross entropy, in nats, of every target."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits.astype(jnp.float32)), targets[..., None], axis=-1)[..., 0]
