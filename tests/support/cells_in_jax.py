"""Recurrences of a few cells as `jax.lax.scan` over their equations: the oracle of the JAX front, of their gradients too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

Step = Callable[[Any, Any, dict[str, Any]], dict[str, Any]]


def _lstm(w: Any, r: Any, state: dict[str, Any]) -> dict[str, Any]:
    i, f, g, o = (w[:, gate] + r[:, gate] for gate in range(4))
    c = jax.nn.sigmoid(f) * state["c"] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return {"h": jax.nn.sigmoid(o) * jnp.tanh(c), "c": c}


def _gru(w: Any, r: Any, state: dict[str, Any]) -> dict[str, Any]:
    reset, update = (jax.nn.sigmoid(w[:, gate] + r[:, gate]) for gate in range(2))
    candidate = jnp.tanh(w[:, 2] + reset * r[:, 2])
    return {"h": (1 - update) * candidate + update * state["h"]}


def _min_gru(w: Any, _r: Any, state: dict[str, Any]) -> dict[str, Any]:
    update = jax.nn.sigmoid(w[:, 0])
    return {"h": (1 - update) * state["h"] + update * w[:, 1]}


# Of each cell its step, its states, the output's first, how many gates x has, and how many R has.
CELLS: dict[str, tuple[Step, tuple[str, ...], int, int]] = {
    "lstm": (_lstm, ("h", "c"), 4, 4),
    "gru": (_gru, ("h",), 3, 3),
    "min_gru": (_min_gru, ("h",), 2, 0),
}


def by_lax_scan(
    model: str,
    x: Any,
    R: Any = None,
    *,
    bias: Any = None,
    recurrent_bias: Any = None,
    state: Mapping[str, Any] | None = None,
    resets: Any = None,
) -> tuple[Any, dict[str, Any]]:
    """Return (y, final state) of pre-activations [B, T, G, H] and R [Gr, N, D, D]."""
    cell_step, names, _, _ = CELLS[model]
    batch, time, _, hidden = x.shape
    initial = dict(state or {name: jnp.zeros((batch, hidden), x.dtype) for name in names})

    def body(before: dict[str, Any], inputs: Any) -> tuple[dict[str, Any], Any]:
        w, reset = inputs
        before = {name: jnp.where(reset[:, None], 0, array) for name, array in before.items()}
        r = None
        if R is not None:
            heads = before["h"].reshape(batch, R.shape[1], R.shape[2])
            products = jnp.einsum("gnoi,bni->bgno", R, heads)
            r = (products + (0 if recurrent_bias is None else recurrent_bias)).reshape(batch, R.shape[0], hidden)
        after = cell_step(w + (0 if bias is None else bias), r, before)
        return after, after["h"]

    marks = jnp.zeros((batch, time), bool) if resets is None else resets
    final, y = jax.lax.scan(body, initial, (jnp.moveaxis(x, 1, 0), marks.T))
    return jnp.moveaxis(y, 0, 1), final
