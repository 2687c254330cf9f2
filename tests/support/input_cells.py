"""Cells with inputs X.*, which are read at every step and not projected, of each class."""

from __future__ import annotations

from typing import Any

# A scan whose coefficient and whose output read inputs; one that only an addition reads, so that no gradient depends on it.
HIGHWAY: dict[str, Any] = {
    "name": "highway",
    "gates": ["z", "f", "r"],
    "parameters": ["v"],
    "inputs": ["skip", "added"],
    "equations": """
        f    = sigmoid(W.f + v * X.skip)
        r    = sigmoid(W.r)
        h[t] = f * h[t-1] + (1 - f) * W.z + X.added
        y    = r * h[t] + (1 - r) * X.skip
    """,
    "output": "y",
}
# Time gaps and masks, as of GRU-D and phased cells.
GAPS: dict[str, Any] = {
    "name": "gaps",
    "gates": ["i", "n"],
    "states": ["h", "c"],
    "parameters": ["w"],
    "inputs": ["gap", "added", "mask"],
    "recurrent_bias": True,
    "equations": """
        i    = sigmoid(W.i + R.i + w * X.mask)
        c[t] = exp(-softplus(X.gap)) * c[t-1] + i * tanh(W.n + R.n)
        h[t] = X.mask * c[t] + (1 - X.mask) * h[t-1] + X.added
    """,
}
# An input within what a second round of products multiplies.
IN_ROUNDS: dict[str, Any] = {
    "name": "in_rounds",
    "gates": ["z", "n"],
    "inputs": ["mask", "gap"],
    "recurrent_bias": True,
    "equations": """
        z    = sigmoid(W.z + R.z + X.gap)
        n    = tanh(W.n + R.n(X.mask * h[t-1]))
        h[t] = z * h[t-1] + (1 - z) * n
    """,
}
# No state before a step is read by its gradients: nothing but the inputs says where rows lie.
LINEAR: dict[str, Any] = {
    "name": "linear",
    "inputs": ["added"],
    "equations": "h[t] = W.z + R.z + X.added",
}
DIAGONAL: dict[str, Any] = {
    "name": "diagonal_with_inputs",
    "gates": ["i", "n"],
    "states": ["h", "c"],
    "parameters": ["w"],
    "inputs": ["gap", "added", "mask"],
    "equations": """
        i    = sigmoid(W.i + w * h[t-1] + w * X.mask)
        c[t] = exp(-softplus(X.gap)) * c[t-1] + i * tanh(W.n + h[t-1])
        h[t] = X.mask * c[t] + (1 - X.mask) * h[t-1] + X.added
    """,
}
# The argument of a round reads an input of the step.
GAP_OF_ROUNDS: dict[str, Any] = {
    "name": "gap_of_rounds",
    "inputs": ["gap"],
    "equations": """
        r = sigmoid(W.r + R.r)
        h[t] = tanh(W.n + R.n(X.gap * r * h[t-1])) + 0.5 * X.gap
    """,
}
# Inputs within what is normalised, in a round of products and in the step itself.
NORMED: dict[str, Any] = {
    "name": "normed_inputs",
    "gates": ["z", "n"],
    "inputs": ["mask", "gap"],
    "equations": """
        a    = layer_norm(W.z + R.z + X.gap, head, 1e-3)
        n    = tanh(W.n + R.n(X.mask * a))
        h[t] = sigmoid(a) * h[t-1] + X.gap * rms_norm(n + X.mask, head, 1e-3)
    """,
}


def with_step_inputs(cell: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a cell in which these inputs have one value per step."""
    return {**cell, "inputs": {name: "step" if name in names else 1 for name in cell["inputs"]}}


EVERY_CELL = (HIGHWAY, GAPS, IN_ROUNDS, LINEAR, DIAGONAL, NORMED)
