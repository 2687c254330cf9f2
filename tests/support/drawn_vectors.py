"""Strategies of cells with n values per channel whose sums are over anything: states, inputs, parameters alone."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

# Of a channel, and of each of its n values; what is summed may be constant over time.
NARROW = ("W.v", "W.w", "d", "sigmoid(W.w)")
WIDE = ("S.q", "p", "tanh(p)", "S.q * p", "W.v * p", "S.q + W.w", "exp(-abs(p))")
SUMMED = (*WIDE, "h[t]", "S.q * h[t]", "p * h[t]", "h[t-1] * S.q", "p * p")
KEPT = ("sigmoid(W.w)", "sigmoid(p)", "sigmoid(W.w + p)", "exp(-abs(S.q * p))", "0.5")
# Each name at least once, as cells must have it, and so that no sum takes two of them.
EACH_NAME = "0.125 * (sum(h[t]) + W.v + W.w) + sum(S.q) * 0.25 + sum(p) * d"


@st.composite
def vector_cells(draw: st.DrawFn) -> dict[str, Any]:
    """Cells that are scans, as a spec has them: states h of n values, inputs S.q, parameters p of n values and d."""
    term = st.tuples(st.sampled_from(NARROW), st.sampled_from(SUMMED)).map(lambda pair: f"{pair[0]} * sum({pair[1]})")
    terms = draw(st.lists(term, max_size=3, unique=True))
    return {
        "name": "drawn",
        "states": {"h": "n"},
        "shared": ["q"],
        "parameters": {"p": "n", "d": 1},
        "equations": f"h[t] = {draw(st.sampled_from(KEPT))} * h[t-1] + {draw(st.sampled_from(WIDE))}",
        "output": " + ".join([*terms, EACH_NAME]),
    }
