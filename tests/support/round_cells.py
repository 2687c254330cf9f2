"""Cells whose products multiply other values than the previous output: rounds of products in a step."""

from __future__ import annotations

from typing import Any

# One round; the gate n is reset before it is multiplied.
RESET_BEFORE: dict[str, Any] = {
    "name": "gru_reset_before",
    "gates": ["z", "r", "n"],
    "recurrent_bias": True,
    "equations": """
        z = sigmoid(W.z + R.z)
        r = sigmoid(W.r + R.r)
        n = tanh(W.n + R.n(r * h[t-1]))
        h[t] = z * h[t-1] + (1 - z) * n
    """,
}
# Four rounds, of R's gates that are no neighbours; gates of R alone, a parameter, and another state within an argument.
DEEP: dict[str, Any] = {
    "name": "deep",
    "gates": ["k", "g"],
    "states": ["h", "c"],
    "parameters": ["w"],
    "recurrent_bias": True,
    "equations": """
        a = silu(R.a)
        b = tanh(w * R.b(a) + W.k + R.d)
        r = sigmoid(R.r(b) + W.g)
        n = tanh(r * R.n(b * c[t-1]))
        c[t] = 0.5 * c[t-1] + n
        h[t] = r * n + (1 - r) * h[t-1]
    """,
}
# No product of the previous output at all: the first round multiplies what is made of two states.
OF_TWO_STATES: dict[str, Any] = {
    "name": "of_two_states",
    "equations": """
        h[t] = tanh(W.h + R.h(h[t-1] - 0.5 * c[t-1]))
        c[t] = 0.9 * c[t-1] + 0.1 * h[t]
    """,
}
# A product is a state as it is, and the output.
PRODUCT_ALONE: dict[str, Any] = {
    "name": "product_alone",
    "equations": """
        c[t] = sigmoid(W.f + R.f) * c[t-1] + tanh(W.z + R.z)
        h[t] = R.p(tanh(c[t]))
    """,
    "output": "h",
}
EVERY_CELL = (RESET_BEFORE, DEEP, OF_TWO_STATES, PRODUCT_ALONE)
