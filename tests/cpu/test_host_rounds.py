"""Products of other values than the previous output: several rounds of products in a step, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.host_kernels import compiled, fill, in_published_precisions
from support.round_cells import DEEP

from minrnn_gen.call.array import numpy_dtype

RESET_BEFORE = "gru_reset_before"
# Two gates of one argument, a chain of three, an argument that reads a state linearly, R's order, and no product of the output.
CHAINED = {
    "name": "chained",
    "states": ["h", "c"],
    "parameters": ["p"],
    "recurrent_bias": True,
    "equations": """
        b    = sigmoid(R.b(c[t-1] + W.x))
        a    = tanh(W.a + R.a(p * b * h[t-1]))
        m    = R.m(c[t-1] + W.x)
        c[t] = 0.5 * c[t-1] + 0.25 * m
        h[t] = b * h[t-1] + (1 - b) * tanh(R.x(a * c[t]) + m)
    """,
}


@in_published_precisions
def test_a_gru_that_resets_before_the_product_gives_the_published_numbers(code: str, precision: str, rtol: float) -> None:
    """A loop in float64, written by hand, gave these outputs and sums of squares of each gradient."""
    kernel = compiled(code, model=RESET_BEFORE, hidden_size=4, precision=precision)
    assert kernel.interface.recurrent_gates == ("z", "r", "n")
    dtype = numpy_dtype(kernel.interface.precision.storage_dtype)

    def given(shape: tuple[int, ...], phase: float, scale: float = 1.0) -> Any:
        return (scale * fill(shape, phase)).astype(dtype)

    R = np.stack([given((1, 4, 4), 2 + gate, 0.5) for gate in range(3)])
    bias = np.stack([given((1, 4), 20 + gate, 0.5) for gate in range(3)])
    y, _, saved = kernel.forward(given((2, 5, 3, 4), 1), R, recurrent_bias=bias, state={"h": given((2, 4), 60, 0.5)})
    np.testing.assert_allclose(y.sum(dtype=np.float64), -10.418843306754422, rtol=rtol)
    expected = [-0.12506706286115915, -0.3706736737724185, -0.06848258903713425, -0.2861902314304403]
    np.testing.assert_allclose(y[1, 4], expected, rtol=rtol)
    gradients = kernel.backward(saved, given((2, 5, 4), 80), {"h": given((2, 4), 100)})
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
        np.testing.assert_allclose((gradient.astype(np.float64) ** 2).sum(), square, rtol=rtol, err_msg=name)


@pytest.mark.parametrize("model", one_in(2, [CHAINED, DEEP]), ids=lambda model: model["name"])
def test_gradients_of_several_rounds_are_those_of_differences(code: str, model: dict[str, Any]) -> None:
    """Along one direction through all arrays, with a reset in the middle of time."""
    kernel = compiled(code, model=model, hidden_size=6, heads=2, precision="fp64")
    interface, random = kernel.interface, np.random.default_rng(0)
    shapes = {"x": (3, 7, len(interface.gates), 6), "R": interface.R_shape, "recurrent_bias": interface.recurrent_bias_shape}
    shapes |= {f"parameters {name}": (6,) for name in interface.parameters}
    shapes |= {f"state {name}": (3, 6) for name in interface.states}
    if not interface.takes_recurrent_bias:
        del shapes["recurrent_bias"]
    at = {name: 0.5 * random.standard_normal(shape) for name, shape in shapes.items()}
    to = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    dy, dstate = random.standard_normal((3, 7, 6)), {name: random.standard_normal((3, 6)) for name in interface.states}
    resets = np.zeros((3, 7), bool)
    resets[1, 3] = True

    def run(size: float) -> Any:
        flat = {name: value + size * to[name] for name, value in at.items()}
        return kernel.forward(**nested(flat), resets=resets)

    def total(size: float) -> float:
        y, final, _ = run(size)
        return float((y * dy).sum() + sum((final[name] * dstate[name]).sum() for name in final))

    gradients = flattened(kernel.backward(run(0)[2], dy, dstate))
    found = sum((gradients[name] * to[name]).sum() for name in at)
    # Of the fourth order: five-point differences.
    differences = (8 * (total(1e-3) - total(-1e-3)) - (total(2e-3) - total(-2e-3))) / 12e-3
    np.testing.assert_allclose(found, differences, rtol=1e-8)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in flat.items():
        outer, _, inner = name.partition(" ")
        if inner:
            result.setdefault(outer, {})[inner] = value
        else:
            result[outer] = value
    return result


def flattened(gradients: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{outer} {inner}" if inner else outer: one
        for outer, value in gradients.items()
        for inner, one in (value.items() if isinstance(value, dict) else [("", value)])
    }
