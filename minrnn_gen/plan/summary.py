"""A plan for people: what limits its time in words, and labelled phrases as a table for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

# Terms of cost models in words; a term without any is called by its name.
_TERMS = {
    "memory": "the memory bus",
    "busiest_sm": "the memory of the SM with the most blocks",
    "issue": "instructions",
    "transcendental": "exponentials and logarithms",
    "shared_memory": "accesses to shared memory",
    "chain": "steps or tiles one after the other",
    "tile_counter": "the counter of tiles",
    "products": "products by R",
    "step": "what every step costs whatever is in it",
    "cells": "the cells of a step",
    "exchange": "the exchange between blocks",
    "shared_matrix": "R in shared memory",
    "reduce_split_k": "sums over warps",
    "rounds": "further rounds of products",
    "prefetch": "values that are not in flight for long enough",
    "pointwise": "pointwise kernels",
    "fill_and_drain": "the first copy and the last tile",
    "launch": "the launch",
}


def limit_in_words(predicted_us: Mapping[str, float], total_us: float) -> str:
    """Return which term takes most of the predicted time."""
    name = largest_term(predicted_us)
    return f"{term_in_words(name)} (term {name}), {predicted_us[name]:,.1f} of {total_us:,.1f} us as predicted"


def largest_term(predicted_us: Mapping[str, float]) -> str:
    """Return the name of the term that takes most of the predicted time."""
    return max(predicted_us, key=predicted_us.__getitem__)


def term_in_words(name: str) -> str:
    """Return the meaning of a term of a cost model."""
    return _TERMS.get(name, name.replace("_", " "))


def html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Return labelled phrases as a table of a notebook; whatever they say is text."""
    lines = (
        f'<tr><th style="text-align:left">{html.escape(label)}</th><td style="text-align:left">{html.escape(text)}</td></tr>'
        for label, text in rows
    )
    return f"<table>{''.join(lines)}</table>"
