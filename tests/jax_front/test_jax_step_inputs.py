"""Inputs X.* of one value per step in JAX: recurrences, steps, layers and vmap, as those of every channel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.input_cells import GAPS, with_step_inputs
from support.needed import needed

import minrnn_gen

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")

BATCH, TIME, HIDDEN, INPUTS = 2, 4, 6, 3
OF_STEPS = with_step_inputs(GAPS, "gap")
SHAPE = (BATCH, TIME, HIDDEN)
MARKS = np.array([[0, 1, 0, 0], [0, 0, 1, 0]], bool)


@pytest.mark.parametrize("altering", one_in(2, [{"holds": MARKS}, {}]), ids=["holds", "plain"])
def test_a_recurrence_is_that_of_the_value_in_every_channel(altering: dict[str, Any]) -> None:
    of_steps, of_channels = (
        minrnn_gen.compile({"model": model, "hidden_size": HIDDEN, "precision": "fp32"}) for model in (OF_STEPS, GAPS)
    )
    interface, random = of_channels.interface, np.random.default_rng(0)
    x, R, mask, gap = (
        random.standard_normal(shape).astype("f4")
        for shape in ((BATCH, TIME, 2, HIDDEN), interface.R_shape, SHAPE, (BATCH, TIME))
    )
    more: dict[str, Any] = {"parameters": {"w": np.ones(HIDDEN, "f4")}, **altering}

    def loss(gap: Any, kernel: Any) -> Any:
        inputs = {"gap": gap, "mask": mask, "added": np.zeros(SHAPE, "f4")}
        return (front.recurrence(kernel, x, R / 3, inputs=inputs, **more)[0] ** 2).sum()

    def wide_loss(gap: Any) -> Any:
        return loss(jnp.broadcast_to(gap[..., None], SHAPE), of_channels)

    found, expected = jax.value_and_grad(loss)(gap, of_steps), jax.value_and_grad(wide_loss)(gap)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), found, expected)
    if altering:
        return
    gaps = jnp.stack([gap, 2 * gap])
    mapped = jax.vmap(lambda gap: loss(gap, of_steps))(gaps)
    np.testing.assert_allclose(mapped, [loss(gap, of_steps) for gap in gaps], rtol=1e-5)
    inputs = {"gap": gap[:, 0], "mask": mask[:, 0].copy(), "added": np.zeros((BATCH, HIDDEN), "f4")}
    y_t, _ = front.step(of_steps, x[:, 0], R, inputs=inputs, **more)
    np.testing.assert_allclose(y_t, of_steps.step(x[:, 0], R, inputs=inputs, **more)[0], rtol=1e-5)


def test_a_layer_is_that_of_the_value_in_every_channel() -> None:
    of_steps, of_channels = (front.RNN(model, INPUTS, HIDDEN, 2) for model in (OF_STEPS, GAPS))
    params = of_steps.init(jax.random.key(0))
    random = np.random.default_rng(0)
    x, mask, gap = (random.standard_normal(shape).astype("f4") for shape in ((BATCH, TIME, INPUTS), SHAPE, (BATCH, TIME)))

    def loss(gap: Any, layer: Any) -> Any:
        inputs = {"gap": gap, "mask": mask, "added": np.zeros(SHAPE, "f4")}
        return (layer.apply(params, x, inputs=inputs)[0] ** 2).sum()

    def wide_loss(gap: Any) -> Any:
        return loss(jnp.broadcast_to(gap[..., None], SHAPE), of_channels)

    found, expected = jax.value_and_grad(loss)(gap, of_steps), jax.value_and_grad(wide_loss)(gap)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6), found, expected)
