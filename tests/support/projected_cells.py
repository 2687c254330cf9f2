"""Cells with projected units for tests, their sizes, and drawn arrays of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from minrnn_gen.call.interface import Interface

# The output is projected; a gate of its own leads back to H, with a bias, and another product mixes P units.
TWO_ROUNDS: dict[str, Any] = {
    "name": "two_rounds",
    "states": {"h": "p", "c": 1, "m": "p"},
    "parameters": {"s": "p", "w": 1},
    "products": {"a": {"to": "p", "bias": True}, "q": {"to": "p"}, "p": {"to": "p"}},
    "equations": """
        u    = s * tanh(R.a) + 0.5 * m[t-1]
        i    = sigmoid(W.i + w * R.i(u))
        c[t] = i * c[t-1] + (1 - i) * tanh(W.z + R.z)
        m[t] = tanh(u + R.q(u))
        h[t] = 0.5 * m[t] + R.p(tanh(c[t]))
    """,
    "output": "h",
}
# Products over all heads beside those of a head.
OVER_ALL: dict[str, Any] = {
    "name": "over_all",
    "states": ["h"],
    "products": {"a": {"to": "p", "over": "all"}, "e": {"over": "all"}},
    "recurrent_bias": True,
    "equations": """
        a    = silu(R.a)
        k    = silu(W.k + R.d + R.e(a))
        z    = sigmoid(R.z(k) - 1)
        h[t] = z * tanh(R.n(k)) + (1 - z) * h[t-1]
    """,
}
# Means of a head and of all, of lists and of both numbers of units, over values that are NaN beyond P units: 0 * log(0).
NORMED: dict[str, Any] = {
    "name": "normed",
    "states": {"h": "p", "c": 1, "m": "p"},
    "parameters": {"s": "p", "w": 1},
    "products": {"a": {"to": "p", "bias": True}, "q": {"to": "p"}, "p": {"to": "p"}},
    "equations": """
        u    = R.a * log(abs(R.a)) + mean(h[t-1], head)
        v    = layer_norm(u, [u, m[t-1]], head, 1)
        g    = tanh(mean([abs(v), 0.5 * u], all))
        i    = sigmoid(layer_norm(W.i + w * R.i(v), head, 1))
        c[t] = i * c[t-1] + (1 - i) * tanh(W.z + R.z + mean(c[t-1], all))
        m[t] = tanh(rms_norm(u + R.q(v), all, 0.5)) - g
        h[t] = s * layer_norm(m[t] + R.p(tanh(c[t])), head, 1)
    """,
    "output": "h",
}
# A state with P units that is not the output, and is NaN beyond them, as are its gradients.
NAN_BEYOND: dict[str, Any] = {
    "name": "nan_beyond",
    "states": {"h": "p", "m": "p"},
    "products": {"a": {"to": "p"}, "p": {"to": "p"}},
    "equations": """
        m[t] = R.a * log(abs(R.a)) + 0.5 * m[t-1]
        h[t] = R.p(tanh(W.x) + 0.1 * R.b(sin(m[t])))
    """,
    "output": "h",
}
# Norms over all beside products over all heads, as block_gru has them.
NORMS_OVER_ALL: dict[str, Any] = {
    "name": "norms_over_all",
    "states": ["h"],
    "parameters": {"s": "p", "w": 1},
    "products": {"a": {"to": "p", "over": "all"}, "e": {"over": "all"}},
    "recurrent_bias": True,
    "equations": """
        a    = silu(s * layer_norm(R.a, all, 1e-2))
        k    = silu(w * rms_norm(W.k + R.d + R.e(a), all, 1e-4))
        z    = sigmoid(R.z(k) - mean(abs(k), all))
        h[t] = z * tanh(R.n(k)) + (1 - z) * h[t-1]
    """,
}
# Norms over a head, of P units and of H, beside products over all heads.
NORMS_BY_HEAD: dict[str, Any] = {
    "name": "norms_by_head",
    "states": {"h": "p", "c": 1},
    "parameters": {"s": "p", "w": 1},
    "products": {"a": {"to": "p", "over": "all"}, "e": {"over": "all"}, "q": {"to": "p"}},
    "recurrent_bias": True,
    "equations": """
        a    = silu(s * layer_norm(R.a, head, 1e-2))
        k    = silu(w * rms_norm(W.k + R.d + R.e(a), head, 1e-2))
        z    = sigmoid(R.z(k) - mean(abs(k), all))
        c[t] = z * layer_norm(R.n(k), [R.n(k), k], head, 1e-1) + (1 - z) * c[t-1]
        h[t] = R.q(c[t]) + mean(a * h[t-1], head)
    """,
    "output": "h",
}


def matrices(interface: Interface, draw: Callable[[tuple[int, ...]], Any]) -> Any:
    """Return R by gate, each matrix drawn in its shape; one array where all have one shape."""
    if not interface.has_unequal_products:
        return draw(interface.R_shape)
    shapes = zip(interface.recurrent_gates, interface.product_shapes, strict=True)
    return {gate: draw((*interface.directions, *shape)) for gate, shape in shapes}


def biases(interface: Interface, draw: Callable[[tuple[int, ...]], Any]) -> Any:
    """Return the recurrent bias of each gate that has one; one array where all have one of one shape."""
    if not interface.has_unequal_biases:
        return draw(interface.recurrent_bias_shape)
    shapes = zip(interface.recurrent_gates, interface.product_shapes, strict=True)
    return {
        gate: draw((*interface.directions, shape.heads, shape.out)) for gate, shape in shapes if gate not in interface.unbiased
    }


def call_of(interface: Interface, batch: int, time: int, dtype: str, seed: int = 0) -> dict[str, Any]:
    """Return drawn arguments of a call with pre-activations."""
    random = numpy.random.default_rng(seed)

    def draw(shape: tuple[int, ...]) -> Any:
        return random.uniform(-0.5, 0.5, shape).astype(dtype)

    carried = interface.precision.arithmetic_dtype
    arguments = {
        "x": draw(interface.shape(interface.preactivation_axes, batch, time)),
        "R": matrices(interface, draw),
        "state": {name: draw(interface.shape_of_state(name, batch)).astype(carried) for name in interface.states},
    }
    if interface.parameters:
        arguments["parameters"] = {name: draw(interface.shape_of_parameter(name)) for name in interface.parameters}
    if interface.takes_recurrent_bias:
        arguments["recurrent_bias"] = biases(interface, draw)
    return arguments
