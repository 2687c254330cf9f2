"""Cells written in JAX as people write them: a step for `lax.scan`, and an associative scan; states and gates in fp32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def by_scan(model: str) -> Callable[..., Any]:
    """Return a function of x [B, T, G, H] and R [Gr, N, D, D], y [B, T, H]: the cell's equations under `lax.scan`."""

    def run(x: Any, R: Any = None) -> Any:
        import jax
        import jax.numpy as jnp

        batch, _, _, channels = x.shape
        zeros = jnp.zeros((batch, channels), jnp.float32)
        # Rounded in each step, for the gradient of what is rounded outside is summed over time in 16 bits.
        held: Any = None if R is None else R.astype(jnp.float32)

        def product(h: Any) -> Any:
            heads = h.astype(R.dtype).reshape(batch, R.shape[1], R.shape[2])
            sums = jnp.einsum("gnoi,bni->bgno", held.astype(R.dtype), heads, preferred_element_type=jnp.float32)
            return sums.reshape(batch, R.shape[0], channels)

        def step(states: Any, gates: Any) -> Any:
            w = gates.astype(jnp.float32)
            states = _STEPS[model](jax, w, None if R is None else product(states[0]), states)
            return states, states[0].astype(x.dtype)

        initial = (zeros, zeros) if model == "lstm" else (zeros,)
        return jnp.moveaxis(jax.lax.scan(step, initial, jnp.moveaxis(x, 1, 0))[1], 0, 1)

    return run


def by_associative_scan(x: Any) -> Any:
    """Return y [B, T, H] of min_gru from x [B, T, G, H], by `lax.associative_scan`."""
    import jax
    import jax.numpy as jnp

    gates = x.astype(jnp.float32)
    z = jax.nn.sigmoid(gates[:, :, 0])
    return jax.lax.associative_scan(_composed, (1 - z, z * gates[:, :, 1]), axis=1)[1].astype(x.dtype)


def _composed(earlier: Any, later: Any) -> Any:
    return later[0] * earlier[0], later[0] * earlier[1] + later[1]


def _lstm(jax: Any, w: Any, r: Any, states: Any) -> Any:
    i, f, g, o = (w[:, gate] + r[:, gate] for gate in range(4))
    c = jax.nn.sigmoid(f) * states[1] + jax.nn.sigmoid(i) * jax.numpy.tanh(g)
    return jax.nn.sigmoid(o) * jax.numpy.tanh(c), c


def _gru(jax: Any, w: Any, r: Any, states: Any) -> Any:
    reset, update = (jax.nn.sigmoid(w[:, gate] + r[:, gate]) for gate in range(2))
    candidate = jax.numpy.tanh(w[:, 2] + reset * r[:, 2])
    return ((1 - update) * candidate + update * states[0],)


def _min_gru(jax: Any, w: Any, _r: Any, states: Any) -> Any:
    update = jax.nn.sigmoid(w[:, 0])
    return ((1 - update) * states[0] + update * w[:, 1],)


_STEPS = {"lstm": _lstm, "gru": _gru, "min_gru": _min_gru}
