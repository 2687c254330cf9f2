"""The gradient of a diagonal cell goes to the argument that is taken, also to NaN, where blocks divide time."""

from __future__ import annotations

import numpy as np
import pytest
from support.needed import needed

import minrnn_gen

needed("minrnn_gen.interpret.backend")
EQUATIONS = "h[t] = tanh(max(min(W.a, W.b), h[t-1]) + relu(W.c) + 0 * W.z)"
BATCH, TIME, UNITS = 2, 500, 8


@pytest.mark.parametrize("layout", ["BTD", pytest.param("BDT", marks=pytest.mark.matrix_full)])
def test_the_gradient_goes_to_the_argument_that_is_taken(layout: str) -> None:
    spec = {"model": {"name": "choosing", "equations": EQUATIONS}, "hidden_size": UNITS, "layout": layout, "time": TIME}
    emulated, host = (minrnn_gen.compile(spec, gpu="h200", device=device) for device in ("interpret", None))
    random = np.random.default_rng(4)
    x = random.standard_normal((BATCH, TIME, 4, UNITS)).astype("f4")
    x[random.random(x.shape) < 0.02] = np.nan
    x = x if layout == "BTD" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    resets = np.arange(TIME)[None].repeat(BATCH, 0) % 30 == 0
    gradients = []
    for kernel in (emulated, host):
        y, _, saved = kernel.forward(x, resets=resets)
        gradients.append(kernel.backward(saved, np.ones_like(y))["x"])
    ours, expected = gradients
    assert "diagonal_backward_scan" in {built.plan.name for built in emulated.built}
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(expected))
    np.testing.assert_array_equal(ours == 0, expected == 0)
