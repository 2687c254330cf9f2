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
