"""Products of other values than the previous output: several rounds of products in a step, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

import minrnn_gen

RESET_BEFORE = {
    "name": "gru_reset_before",
    "gates": ["z", "r", "n"],
    "recurrent_bias": True,
    "equations": """
        z = sigmoid(W.z + R.z)
        r = sigmoid(W.r + R.r)
        n = tanh(W.n + R.n(r * h[t-1]))
        h[t] = z * h[t-1] + (1 - z) * n
    """,
}


def fill(shape: tuple[int, ...], phase: float) -> Any:
    return np.sin(phase + 0.7 * np.arange(np.prod(shape))).reshape(shape)


def test_a_gru_that_resets_before_the_product_gives_the_published_numbers() -> None:
    """Of a loop in float64, written by hand: outputs, and the sum of squares of each gradient."""
    kernel = minrnn_gen.compile({"model": RESET_BEFORE, "hidden_size": 4, "precision": "fp64"})
    assert kernel.interface.recurrent_gates == ("z", "r", "n")
    R = np.stack([fill((1, 4, 4), 2 + gate) / 2 for gate in range(3)])
    bias = np.stack([fill((1, 4), 20 + gate) / 2 for gate in range(3)])
    state = {"h": fill((2, 4), 60) / 2}
    y, _, saved = kernel.forward(fill((2, 5, 3, 4), 1), R, recurrent_bias=bias, state=state)
    np.testing.assert_allclose(y.sum(), -10.418843306754422, rtol=1e-12)
    expected = [-0.12506706286115915, -0.3706736737724185, -0.06848258903713425, -0.2861902314304403]
    np.testing.assert_allclose(y[1, 4], expected, rtol=1e-12)
    gradients = kernel.backward(saved, fill((2, 5, 4), 80), {"h": fill((2, 4), 100)})
    squares = {
        "x": (gradients["x"], 1.2064361059172428),
        "R.z": (gradients["R"][0], 0.038060980151252026),
        "R.r": (gradients["R"][1], 0.000613300152479036),
        "R.n": (gradients["R"][2], 0.023002239394137588),
        "bias of z": (gradients["recurrent_bias"][0], 0.05210429390248354),
        "bias of r": (gradients["recurrent_bias"][1], 0.0004382639885160378),
        "bias of n": (gradients["recurrent_bias"][2], 0.22257437021577592),
        "h": (gradients["state"]["h"], 0.6498131165614383),
    }
    for name, (gradient, square) in squares.items():
        np.testing.assert_allclose((gradient**2).sum(), square, rtol=1e-11, err_msg=name)
