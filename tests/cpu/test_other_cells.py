"""Cells nobody built in: several states, an output that looks back, coefficients without a gate; in exact numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.kernel_inputs import LAYOUTS, arranged, by_time
from support.uncompiled_kernels import compiled_for_host

from minrnn_gen import Kernel

Step = Callable[[Mapping[str, Fraction], Mapping[str, Fraction], Fraction], tuple[dict[str, Fraction], Fraction]]

# (equations, gates, the other keys of the cell file, and one step of it: (W, states before, u) to (states, y)).
CELLS: dict[str, tuple[str, tuple[str, ...], dict[str, Any], Step]] = {
    "two states that do not meet": (
        "h[t] = W.a * h[t-1] + W.b\nc[t] = W.b * c[t-1] + u",
        ("a", "b"),
        {"parameters": ["u"], "output": "h[t] - c[t]"},
        lambda W, s, u: (new := {"h": W["a"] * s["h"] + W["b"], "c": W["b"] * s["c"] + u}, new["h"] - new["c"]),
    ),
    "an output of both, and of what was before": (
        "h[t] = W.a * h[t-1] + W.b\nc[t] = 2 * c[t-1] + W.b",
        ("a", "b", "o"),
        {"output": "W.o * (h[t] - h[t-1]) + c[t] * c[t-1]"},
        lambda W, s, _: (
            new := {"h": W["a"] * s["h"] + W["b"], "c": 2 * s["c"] + W["b"]},
            W["o"] * (new["h"] - s["h"]) + new["c"] * s["c"],
        ),
    ),
    "a coefficient without a gate": (
        "h[t] = u * h[t-1] + W.b",
        ("b",),
        {"parameters": ["u"]},
        lambda W, s, u: (new := {"h": u * s["h"] + W["b"]}, new["h"]),
    ),
    "no memory at all": ("h[t] = W.b * 3", ("b",), {}, lambda W, _, __: (new := {"h": 3 * W["b"]}, new["h"])),
    "nothing but memory": (
        "h[t] = W.a * h[t-1]",
        ("a",),
        {},
        lambda W, s, _: (new := {"h": W["a"] * s["h"]}, new["h"]),
    ),
    "an output that forgets the state": (
        "h[t] = W.a * h[t-1] + W.b",
        ("a", "b"),
        {"output": "W.a - W.b + 0 * h[t]"},
        lambda W, s, _: ({"h": W["a"] * s["h"] + W["b"]}, W["a"] - W["b"]),
    ),
}


@functools.cache
def kernel_of(cell: str, layout: str) -> Kernel:
    equations, _, keys, _ = CELLS[cell]
    model = {"name": "mine", "equations": equations, **keys}
    return compiled_for_host({"model": model, "hidden_size": 2, "precision": "fp64", "layout": layout})


# Eighths of small size: sums and products of the few steps below are exact in float64.
numbers = st.integers(-16, 16).map(lambda each: Fraction(each, 8))


@given(cell=st.sampled_from(sorted(CELLS)), layout=st.sampled_from(LAYOUTS), time=st.integers(0, 4), data=st.data())
def test_exactly_what_the_equations_say(cell: str, layout: str, time: int, data: st.DataObject) -> None:
    _, gates, keys, step = CELLS[cell]
    kernel = kernel_of(cell, layout)
    assert kernel.gates == gates

    def drawn(*shape: int) -> Any:
        count = int(np.prod(shape))
        return np.array(data.draw(st.lists(numbers, min_size=count, max_size=count)), object).reshape(shape)

    W, u = drawn(time, 1, len(gates), 2), drawn(2)
    before = {name: drawn(1, 2) for name in kernel.states}
    x = arranged(np, {gate: W[:, :, g] for g, gate in enumerate(gates)}, layout).astype(float)
    parameters = {"u": u.astype(float)} if "parameters" in keys else None
    y, final = kernel(x, state={name: one.astype(float) for name, one in before.items()}, parameters=parameters)
    for channel in range(2):
        states = {name: one[0, channel] for name, one in before.items()}
        for t in range(time):
            states, output = step(dict(zip(gates, W[t, 0, :, channel], strict=True)), states, u[channel])
            assert by_time(y, layout)[t, 0, channel] == output
        assert {name: Fraction(final[name][0, channel]) for name in final} == states
