"""Cells whose states are dual numbers: the tangents of scans, as models of specs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minrnn_gen.cell.files import find_cell
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.cell.tangent import tangent_cell


def tangent_of(model: Any) -> dict[str, Any]:
    """Return the file of a cell's tangent."""
    return tangent_cell(parse_cell(find_cell(model, Path(), "test")), False)[0]


# Two states, each with its tangent, of which the output reads one at either step.
TWO_PAIRS = {
    "name": "two",
    "equations": "s[t] = sigmoid(W.a) * s[t-1] + W.b\nh[t] = p * h[t-1] + sigmoid(W.a) * W.b",
    "output": "s[t] * s[t-1] + h[t]",
    "parameters": ["p"],
}
MOVED_GRU, MOVED_LRU, MOVED_SRU, MOVED_TWO = map(tangent_of, ("min_gru", "rg_lru", "sru", TWO_PAIRS))
