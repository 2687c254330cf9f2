"""Cells with projected units in JAX: recurrences and steps beside their kernels, and layers beside torch's LSTM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.needed import needed
from support.projected_cells import NORMED, call_of

import minrnn_gen

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")

HIDDEN, PROJECTED, INPUTS = 8, 4, 5


@pytest.mark.parametrize(
    "model", one_in(3, [NORMED, "lstm_projected", "block_gru"]), ids=["normed", "lstm_projected", "block_gru"]
)
def test_a_recurrence_and_its_gradients_are_those_of_the_kernel(model: Any) -> None:
    spec = {"model": model, "hidden_size": HIDDEN, "heads": 2, "projection_size": PROJECTED, "precision": "fp32"}
    kernel = minrnn_gen.compile(spec)
    arrays = call_of(kernel.interface, 2, 4, "float32")
    y, final, saved = kernel.forward(**arrays)
    found, last, states = front.recurrence(kernel, **arrays, all_states=True)
    np.testing.assert_allclose(found, y, atol=1e-5)
    assert {name: value.shape for name, value in states.items()} == {
        name: kernel.interface.states_shape(name, 2, 4) for name in kernel.states
    }
    for name, value in final.items():
        np.testing.assert_allclose(last[name], value, atol=1e-5)

    def loss(arrays: Any) -> Any:
        y, final = front.recurrence(kernel, **arrays)
        return y.sum() + sum(value.sum() for value in final.values())

    gradients = jax.jit(jax.grad(loss))(jax.tree.map(jnp.asarray, arrays))
    ones = {name: np.ones_like(value) for name, value in final.items()}
    expected = kernel.backward(saved, np.ones_like(y), ones)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=2e-5), gradients, expected)
    x = arrays.pop("x")
    y_t, _ = front.step(kernel, x[:, 0], **arrays)
    np.testing.assert_allclose(y_t, y[:, 0], atol=1e-5)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_layer_computes_what_torchs_does(bidirectional: bool) -> None:
    import torch

    theirs = torch.nn.LSTM(INPUTS, HIDDEN, 2, proj_size=PROJECTED, batch_first=True, bidirectional=bidirectional).double()
    ours = front.RNN(
        "lstm_projected", INPUTS, HIDDEN, 2, projection_size=PROJECTED, bidirectional=bidirectional, dtype=jnp.float64
    )
    params = {}
    for name, value in theirs.named_parameters():
        array = jnp.asarray(value.detach().numpy())
        if name.startswith(("weight_hh", "bias_hh")):
            kind, suffix = name[: name.index("_l")], name[name.index("_l") :]
            params |= {f"{kind}_{gate}{suffix}": part for gate, part in zip("ifzo", jnp.split(array, 4), strict=True)}
        else:
            params[name.replace("weight_hr", "weight_hh_p")] = array
    x = torch.randn(2, 6, INPUTS, dtype=torch.float64)
    expected, (h, c) = theirs(x)
    y, final = ours.apply(params, x.numpy())
    np.testing.assert_allclose(y, expected.detach(), atol=1e-12)
    np.testing.assert_allclose(final["h"], h.detach(), atol=1e-12)
    again, _ = ours.apply(params, x.numpy(), final)
    np.testing.assert_allclose(again, theirs(x, (h, c))[0].detach(), atol=1e-12)
    if not bidirectional:
        y_t, _ = ours.step(params, x[:, 0].numpy())
        np.testing.assert_allclose(y_t, expected[:, 0].detach(), atol=1e-12)
    assert {name: like.shape for name, like in jax.eval_shape(ours.init, jax.random.key(0)).items()} == {
        name: array.shape for name, array in params.items()
    }
    assert final["c"].dtype == jnp.float64
    assert c.shape == final["c"].shape
