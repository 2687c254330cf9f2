"""Model of the examples in JAX: an embedding, residual blocks with a recurrence, and a readout of every step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

import minrnn_gen.jax

# The same equations by what JAX has itself, in one head.
BY_LAX_SCAN = "lax.scan-lstm"
# The cells whose recurrent product is split into heads; all others have none.
WITH_HEADS = ("elman", "gru", "lstm", "slstm")

Parameters = dict[str, Any]


@dataclass(frozen=True)
class SequenceModel:
    """Tokens [B, T] to logits [B, T, classes] through `layers` residual blocks of one width, as functions `init` and `apply`.

    cell: one of minrnn_gen, built in or a file, or BY_LAX_SCAN. precision: that of the recurrences. feed_forward: whether a
    feed-forward block of twice the width follows each.
    """

    cell: str
    tokens: int
    classes: int
    width: int
    layers: int
    heads: int = 1
    precision: str = "fp32"
    feed_forward: bool = False

    @cached_property
    def recurrence(self) -> minrnn_gen.jax.RNN:
        """The layer of every block."""
        cell = "lstm" if self.cell == BY_LAX_SCAN else self.cell
        heads = self.heads if cell in WITH_HEADS and self.cell != BY_LAX_SCAN else 1
        return minrnn_gen.jax.RNN(cell, self.width, self.width, heads=heads, precision=self.precision)

    def init(self, key: Any) -> Parameters:
        """Return parameters; tables and products are drawn normal, scaled by the square root of their inputs."""
        keys = iter(jax.random.split(key, 2 + 3 * self.layers))
        params: Parameters = {"embedding": jax.random.normal(next(keys), (self.tokens, self.width))}
        for layer in range(self.layers):
            params[f"recurrence {layer}"] = {"norm": jnp.ones(self.width), **self.recurrence.init(next(keys))}
            if self.feed_forward:
                widening, narrowing = (
                    linear(next(keys), self.width, 2 * self.width),
                    linear(next(keys), 2 * self.width, self.width),
                )
                params[f"feed-forward {layer}"] = {"norm": jnp.ones(self.width), "widening": widening, "narrowing": narrowing}
        params["readout"] = {"norm": jnp.ones(self.width), "product": linear(next(keys), self.width, self.classes)}
        return params

    def apply(self, params: Parameters, tokens: Any) -> Any:
        """Return the logits of tokens."""
        x = params["embedding"][tokens]
        for layer in range(self.layers):
            block = dict(params[f"recurrence {layer}"])
            x = x + self._mixed(block, normed(x, block.pop("norm")))
            if self.feed_forward:
                block = params[f"feed-forward {layer}"]
                x = x + jax.nn.gelu(normed(x, block["norm"]) @ block["widening"]) @ block["narrowing"]
        return normed(x, params["readout"]["norm"]) @ params["readout"]["product"]

    def _mixed(self, params: Parameters, x: Any) -> Any:
        dtype = jnp.bfloat16 if self.precision == "bf16" else x.dtype
        run = lstm_by_lax_scan if self.cell == BY_LAX_SCAN else lambda params, x: self.recurrence.apply(params, x)[0]
        return run(params, x.astype(dtype)).astype(x.dtype)


def linear(key: Any, inputs: int, outputs: int) -> Any:
    """Return the matrix of a product, [inputs, outputs]."""
    return jax.random.normal(key, (inputs, outputs)) / inputs**0.5


def normed(x: Any, scale: Any) -> Any:
    """Return x with mean 0 and variance 1 over its channels, scaled."""
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale


def lstm_by_lax_scan(params: Parameters, x: Any) -> Any:
    """Return the outputs of an LSTM with the parameters of `minrnn_gen.jax.RNN`, step by step."""
    weight, R, bias = (params[f"{name}_l0"].astype(x.dtype) for name in ("weight_ih", "weight_hh", "bias_ih"))
    gates = jnp.moveaxis(x @ weight.T + bias + params["bias_hh_l0"].astype(x.dtype), 1, 0)
    zeros = jnp.zeros((x.shape[0], R.shape[1]), x.dtype)

    def step(state: Any, of_input: Any) -> Any:
        h, c = state
        i, f, g, o = jnp.split(of_input + h @ R.T, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    return jnp.moveaxis(jax.lax.scan(step, (zeros, zeros), gates)[1], 0, 1)
