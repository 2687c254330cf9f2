"""Spiking neurons of the examples beside loops over time: adaptive thresholds, and those of Izhikevich."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.everyday import in_turn

import minrnn_gen

EXAMPLES = Path(__file__).parents[2] / "examples"


def kernel_of(name: str, hidden_size: int, precision: str = "fp64") -> Any:
    return minrnn_gen.compile({"model": str(EXAMPLES / f"{name}.yaml"), "hidden_size": hidden_size, "precision": precision})


def test_regular_spiking_as_published() -> None:
    """10 pA for half a second: Izhikevich's regular spiking neuron fires at intervals that grow."""
    kernel, steps = kernel_of("izhikevich", 1), 500
    numbers = {"a": 0.02, "b": 0.2, "c": -65.0, "d": 8.0}
    y, final = kernel(
        np.full((1, steps, 1, 1), 10.0),
        parameters={name: np.array([number]) for name, number in numbers.items()},
        state={"v": np.array([[-70.0]]), "u": np.array([[-14.0]])},
    )
    v, u, spikes = -70.0, -14.0, []
    for _ in range(steps):
        for _half in range(2):
            v += 0.5 * (0.04 * v * v + 5 * v + 140 - u + 10)
        u += numbers["a"] * (numbers["b"] * v - u)
        spikes.append(v >= 30)
        if v >= 30:
            v, u = numbers["c"], u + numbers["d"]
    np.testing.assert_array_equal(y[0, :, 0], spikes)
    np.testing.assert_allclose([final["v"][0, 0], final["u"][0, 0]], [v, u], rtol=1e-9)
    intervals = np.diff(np.flatnonzero(spikes))
    assert len(intervals) >= 5 and intervals[0] < intervals[-1]


def test_an_adaptive_threshold_rises_with_spikes_and_their_gradient_is_a_triangle() -> None:
    rng, kernel = np.random.default_rng(0), kernel_of("adaptive_lif", 4)
    x, R = 4 * rng.random((2, 12, 1, 4)), 0.5 * rng.standard_normal((1, 1, 4, 4))
    vectors = {"decay": np.full(4, 2.0), "slow": np.full(4, 3.0)}
    y, final, saved = kernel.forward(x, R, parameters=vectors)
    keeps, slow = (1 / (1 + np.exp(-number)) for number in (2.0, 3.0))
    s, m, a = (np.zeros((2, 4)) for _ in range(3))
    for t in range(12):
        spent = (1 + 1.8 * a) * s
        m = keeps * m + (1 - keeps) * (x[:, t, 0] + s @ R[0, 0].T) - spent
        a = slow * a + (1 - slow) * s
        s = (m > 1 + 1.8 * a).astype(float)
        np.testing.assert_array_equal(y[:, t], s)
    np.testing.assert_allclose(final["m"], m, rtol=1e-12, atol=1e-12)
    dy = np.zeros_like(y)
    dy[:, -1] = 1
    over = m - (1 + 1.8 * a)
    last = kernel.backward(saved, dy)["x"][:, -1, 0]
    np.testing.assert_allclose(last, (1 - keeps) * 0.3 * np.maximum(1 - np.abs(over), 0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("model", "precision"), in_turn(["lif", "recurrent_lif"], ["fp64", "bf16", "fp32", "fp16"]))
def test_spikes_are_zero_or_one_in_every_precision(model: str, precision: str) -> None:
    kernel = minrnn_gen.compile({"model": model, "hidden_size": 8, "precision": precision})
    storage = kernel.interface.precision.storage_dtype
    rng = np.random.default_rng(0)
    dtype = ml_dtypes.bfloat16 if storage == "bfloat16" else storage
    R = {"R": rng.standard_normal((1, 1, 8, 8)).astype(dtype)} if model == "recurrent_lif" else {}
    decay = np.zeros(8, kernel.interface.precision.arithmetic_dtype)
    y, final = kernel(rng.standard_normal((3, 20, 1, 8)).astype(dtype), **R, parameters={"decay": decay})
    assert set(np.unique(y.astype(float))) == {0.0, 1.0} == set(np.unique(final["s"]))
