"""A cell of the user's own, examples/leaky_light_gru.yaml, is one that trains: its gradients are right and a task is learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.uncompiled_kernels import compiled_for_host

CELL = str(Path(__file__).parents[2] / "examples" / "leaky_light_gru.yaml")
INPUTS, HIDDEN, TIME, BATCH = 2, 12, 20, 32

Arrays = dict[str, Any]


def kernel_of(**spec: Any) -> Any:
    return compiled_for_host({"model": CELL, "hidden_size": HIDDEN, "input_size": INPUTS, "precision": "fp64", **spec})


def drawn(random: Any, heads: int = 1) -> Arrays:
    head_dim = HIDDEN // heads
    return {
        "weight": random.normal(size=(2 * HIDDEN, INPUTS)),
        "R": random.normal(size=(2, heads, head_dim, head_dim)) / 2 / np.sqrt(head_dim),
        "bias": random.normal(size=(2, HIDDEN)),
        "leak": random.normal(size=HIDDEN) + 3,
    }


def called(arrays: Arrays) -> Arrays:
    """Return the learnt arrays as a call takes them."""
    return {name: one for name, one in arrays.items() if name != "leak"} | {"parameters": {"leak": arrays["leak"]}}


def test_gradients_are_those_of_small_differences() -> None:
    random = np.random.default_rng(0)
    kernel = kernel_of(heads=3)
    arrays = drawn(random, heads=3) | {"x": random.normal(size=(3, 7, INPUTS)), "h": random.normal(size=(3, HIDDEN))}
    dy, dfinal = random.normal(size=(3, 7, HIDDEN)), random.normal(size=(3, HIDDEN))

    def loss(arrays: Arrays) -> tuple[float, Any]:
        given = called({name: one for name, one in arrays.items() if name != "h"})
        y, state, saved = kernel.forward(**given, state={"h": arrays["h"]})
        return float((dy * y).sum() + (dfinal * state["h"]).sum()), saved

    gradients = kernel.backward(loss(arrays)[1], dy, {"h": dfinal})
    gradients |= {"leak": gradients["parameters"]["leak"], "h": gradients["state"]["h"]}
    # The error of a central difference is of the order of step**2, and rounding adds 1e-16 / step times the loss.
    step = 1e-6
    for name, one in arrays.items():
        along = random.normal(size=one.shape)
        ahead, behind = (loss(arrays | {name: one + sign * step * along})[0] for sign in (1, -1))
        np.testing.assert_allclose((ahead - behind) / (2 * step), (gradients[name] * along).sum(), rtol=1e-6, err_msg=name)


@pytest.mark.matrix_full
def test_the_sign_of_the_first_input_is_remembered() -> None:
    """20 steps of noise later, a linear readout of the last output tells it; learnt with Adam, in NumPy alone."""
    random, kernel = np.random.default_rng(1), kernel_of()
    arrays = drawn(random) | {"readout": random.normal(size=HIDDEN) / np.sqrt(HIDDEN)}
    means, squares = ({name: np.zeros_like(one) for name, one in arrays.items()} for _ in range(2))
    losses = []
    for update in range(1, 301):
        x = random.normal(size=(BATCH, TIME, INPUTS))
        x[:, 1:, 0], x[:, :, 1] = 0.1 * x[:, 1:, 0], np.arange(TIME) == 0
        sign = np.sign(x[:, 0, 0])
        y, _, saved = kernel.forward(x, **called({name: one for name, one in arrays.items() if name != "readout"}))
        margin = sign * (y[:, -1] @ arrays["readout"])
        losses.append(np.logaddexp(0, -margin).mean())
        slope = -sign * np.exp(-np.logaddexp(0, margin)) / BATCH
        dy = np.zeros_like(y)
        dy[:, -1] = slope[:, None] * arrays["readout"]
        gradients = kernel.backward(saved, dy)
        gradients |= {"leak": gradients["parameters"]["leak"], "readout": slope @ y[:, -1]}
        for name, one in arrays.items():
            means[name] += 0.1 * (gradients[name] - means[name])
            squares[name] += 0.001 * (gradients[name] ** 2 - squares[name])
            mean, square = means[name] / (1 - 0.9**update), squares[name] / (1 - 0.999**update)
            arrays[name] = one - 0.02 * mean / (np.sqrt(square) + 1e-8)
    # Who guesses has log 2 = 0.69.
    assert np.mean(losses[-20:]) < 0.2, losses[::20]
