"""Cells that need means over the units of a head, or of all, within a step."""

from __future__ import annotations

from typing import Any

# All four gates together, as torchaudio's and haste's: `layer_norm(a, [a, b, c, d], head, eps)`.
GATES_TOGETHER: dict[str, Any] = {
    "name": "gates_together",
    "gates": ["i", "f", "z", "o"],
    "states": ["h", "c"],
    "parameters": ["gi", "gf", "gz", "go"],
    "recurrent_bias": True,
    "equations": """
        a = W.i + R.i
        b = W.f + R.f
        k = W.z + R.z
        d = W.o + R.o
        i = sigmoid(gi * layer_norm(a, [a, b, k, d], head, 1e-5))
        f = sigmoid(gf * layer_norm(b, [a, b, k, d], head, 1e-5))
        z = tanh(gz * layer_norm(k, [a, b, k, d], head, 1e-5))
        o = sigmoid(go * layer_norm(d, [a, b, k, d], head, 1e-5))
        c[t] = f * c[t-1] + i * z
        h[t] = o * tanh(c[t])
    """,
}
# Means of two values, over a head and over all, one of another; within a choice, of a previous state, and the root of a mean.
OF_BOTH: dict[str, Any] = {
    "name": "of_both",
    "gates": ["a", "b", "h"],
    "states": ["h", "c"],
    "parameters": ["p"],
    "equations": """
        m = mean([R.a, W.a + c[t-1]], head)
        s = rms_norm(p * R.b - m, all, 0.1)
        g = where(W.h > 0, mean(abs(h[t-1]), all), layer_norm(s * h[t-1], head, 0.1))
        c[t] = 0.5 * c[t-1] + sigmoid(W.b) * mean(g * s, head)
        h[t] = tanh(W.h + s + g) + 0.1 * c[t]
    """,
}
# A norm of what a round of products multiplies, and one of its products.
OF_ROUNDS: dict[str, Any] = {
    "name": "of_rounds",
    "parameters": ["p"],
    "recurrent_bias": True,
    "equations": """
        r = sigmoid(W.r + p * rms_norm(R.r, all, 1e-4))
        n = tanh(W.n + layer_norm(R.n(r * rms_norm(h[t-1], head, 1e-2)), head, 1e-3))
        h[t] = r * h[t-1] + (1 - r) * n
    """,
}
# Of one level a norm of a value alone, and one over a list with another value.
MIXED_LISTS: dict[str, Any] = {
    "name": "mixed_lists",
    "equations": """
        a = W.z + R.z
        z = sigmoid(layer_norm(a, head, 1e-3))
        h[t] = z * h[t-1] + (1 - z) * tanh(layer_norm(W.n, [W.n, a], head, 1e-3))
    """,
}
# As a cell whose products over all heads make one head of four: means over these parts of it and over all, at one depth too.
OF_PARTS: dict[str, Any] = {
    "name": "of_parts",
    "parameters": ["p"],
    "norm_parts": 4,
    "equations": """
        r = sigmoid(W.r + p * rms_norm(R.r, head, 1e-2) - mean(abs(R.r), all))
        a = R.n(r * rms_norm(h[t-1], all, 1e-2))
        n = tanh(W.n + layer_norm(a, [a, r], head, 1e-2))
        h[t] = r * h[t-1] + (1 - r) * n
    """,
}
BY_PARTS: dict[str, Any] = {
    "name": "by_parts",
    "norm_parts": 4,
    "equations": "h[t] = tanh(W.n + layer_norm(R.n, head, 1e-2)) * mean(abs(h[t-1]), head)",
}
EVERY_CELL = (GATES_TOGETHER, OF_BOTH, OF_ROUNDS)
