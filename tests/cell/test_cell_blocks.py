"""States that feed each other are proved affine by blocks: A and b reproduce the step, and sentences say what was proved."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cell_evaluation import cell_of, tree_text, trees, value_of
from support.examples import examples

from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.blocks import Block, partition
from minrnn_gen.cell.language import Cell

BIQUAD = {
    "equations": "y = b0 * W.x + u[t-1]\nu[t] = b1 * W.x - a1 * y + v[t-1]\nv[t] = b2 * W.x - a2 * y",
    "states": ["u", "v"],
    "parameters": ["b0", "b1", "b2", "a1", "a2"],
    "output": "y",
}
ADAM = "m[t] = 0.9 * m[t-1] + W.g\nv[t] = 0.99 * v[t-1] + W.g ** 2\np[t] = p[t-1] - m[t] / (sqrt(v[t]) + 1)"
TAPS = "x1[t] = W.x\nx2[t] = x1[t-1]\nu = c1 * x1[t-1] + c2 * x2[t-1] + W.x\nh[t] = sigmoid(W.f) * h[t-1] + u"
PROVED: list[tuple[dict[str, Any], list[tuple[str, int]], str]] = [
    (
        BIQUAD,
        [("full", 1)],
        "block-affine: (u, v)[t] = A (u, v)[t-1] + b with A = [[-a1, 1], [-a2, 0]], free of both. "
        "A of u and v is a constant full map.",
    ),
    (
        {"equations": "re[t] = p * re[t-1] - W.q * im[t-1]\nim[t] = W.q * re[t-1] + p * im[t-1]", "parameters": ["p"]},
        [("rotation", 1)],
        "A = [[p, -W.q], [W.q, p]], free of both. A of re and im is a rotation.",
    ),
    (
        {"equations": "v[t] = sigmoid(b) * v[t-1] + W.g\np[t] = p[t-1] + v[t]", "parameters": ["b"], "output": "p"},
        [("scalar", 1), ("scalar", 2)],
        "scan after scan: v[t] = sigmoid(b) * v[t-1] + W.g; then p[t] = 1 * p[t-1] + b, where b reads v[t].",
    ),
    (
        {"equations": ADAM, "output": "p"},
        [("scalar", 1), ("scalar", 1), ("scalar", 2)],
        "0.99 * v[t-1] + W.g ** 2; then p[t] = 1 * p[t-1] + b, where b reads m[t] and v[t].",
    ),
    (
        {"equations": TAPS, "parameters": ["c1", "c2"], "output": "h"},
        [("memory", 0), ("memory", 0), ("scalar", 1)],
        "h[t] = sigmoid(W.f) * h[t-1] + b, where b reads x1[t-1] and x2[t-1]. x1 and x2 are finite memory.",
    ),
    (
        {"equations": "g[t] = W.x\ng2[t] = tanh(g[t-1])", "output": "g2"},
        [("memory", 0), ("memory", 0)],
        "block-affine: g and g2 are finite memory.",
    ),
    (
        {"equations": "u[t] = W.p * u[t-1] + W.q * v[t-1]\nv[t] = W.p * v[t-1] + (u[t-1] - u[t-1]) * W.q"},
        [("dual", 1)],
        "(v, u)[t] = A (v, u)[t-1] + b with A = [[W.p, 0], [W.q, W.p]], free of both. A of v and u is a dual map.",
    ),
    (
        {"equations": "c[t] = W.c * c[t-1] + 1\nh[t] = tanh(c[t-1]) * h[t-1] + detach(c[t])", "output": "h"},
        [("scalar", 1), ("scalar", 2)],
        "then h[t] = a * h[t-1] + b, where a and b read c[t-1] and c[t].",
    ),
    (
        {"equations": "h[t] = W.h * c[t-1]\nc[t] = W.c * c[t-1] + h[t-1]"},
        [("full", 1)],
        "A = [[0, W.h], [1, W.c]], free of both.",
    ),
]


@pytest.mark.parametrize(("keys", "forms", "sentence"), PROVED, ids=[forms[0][0] for _, forms, _ in PROVED])
def test_blocks_that_are_proved(keys: dict[str, Any], forms: list[tuple[str, int]], sentence: str) -> None:
    recurrence = classify(cell_of(**keys))
    assert recurrence.kind == "block-affine", recurrence.proof
    assert [(block.form, block.level) for block in recurrence.blocks] == forms
    assert sentence in recurrence.proof and not recurrence.a


FIVE = "a[t] = W.x + b[t-1]\nb[t] = a[t-1] + c[t-1]\nc[t] = b[t-1] + d[t-1]\nd[t] = c[t-1] + e[t-1]\ne[t] = d[t-1]"
FOUR_SCANS = "a[t] = W.x * a[t-1]\nb[t] = b[t-1] + a[t]\nc[t] = c[t-1] + b[t]\nd[t] = d[t-1] + c[t]"
WIDE = "a[t] = W.x * c[t-1]\nb[t] = W.x * a[t-1]\nc[t] = W.x * b[t-1]"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"equations": FIVE}, "5 states, a, b, c, d, e, depend on each other; at most 4 may."),
    ({"equations": FOUR_SCANS, "output": "d"}, "d[t] needs 4 scans, one after the other; at most 3 may wait for each other."),
    (
        {"equations": WIDE, "states": dict.fromkeys("abc", "n"), "output": "sum(a[t])"},
        "3 states with n values per channel, a, c, b, depend on each other; at most 2 may.",
    ),
    (
        {"equations": "h[t] = W.h + c[t-1]\nc[t] = tanh(h[t-1])"},
        "c[t] is not affine in h[t-1] and c[t-1], because tanh(h[t-1]) applies tanh to a value that depends on",
    ),
    (
        {"equations": "h[t] = W.h * detach(c[t-1])\nc[t] = W.c * h[t-1]"},
        "h[t] is not affine in h[t-1] and c[t-1], because detach(c[t-1]) hides from the gradient",
    ),
    ({"equations": "h[t] = W.h * c[t-1]\nc[t] = h[t-1] * c[t-1]"}, "it contains the product h[t-1] * c[t-1]."),
]


@pytest.mark.parametrize(("keys", "reason"), REFUSED, ids=[reason[:20] for _, reason in REFUSED])
def test_blocks_that_are_not_affine_say_why(keys: dict[str, Any], reason: str) -> None:
    recurrence = classify(cell_of(**keys))
    assert recurrence.kind == "diagonal" and not recurrence.blocks
    assert recurrence.proof.startswith("not a scan: ") and reason in recurrence.proof


NAMES = ("a", "b", "c", "d")
OF_INPUTS = ("W.x", "W.y")
EXACT = {"number": lambda number: number.value}
SMALL = st.fractions(-3, 3, max_denominator=5)


@st.composite
def linked_equations(draw: st.DrawFn) -> str:
    """Equations of states that are linear in previous values, of one, some or all, with polynomials for coefficients."""
    names, lines = NAMES[: draw(st.integers(2, 4))], []
    for position, name in enumerate(names):
        terms = [f"({tree_text(draw(trees(OF_INPUTS, False, 1)))}) * {read}[t-1]" for read in names if draw(st.booleans())]
        current = [f"{name}[t]" for name in names[:position]]
        rest = tree_text(draw(trees((*OF_INPUTS, *(current if draw(st.booleans()) else ())), False, 2)))
        lines.append(f"{name}[t] = {' + '.join((*terms, rest))}")
    return "\n".join(lines)


def block_step(block: Block, values: dict[str, Fraction]) -> list[Fraction]:
    before = [values[f"{state}[t-1]"] for state in block.states]
    return [
        sum((value_of(entry, values, EXACT) * state for entry, state in zip(row, before, strict=True)), Fraction())
        + value_of(b, values, EXACT)
        for row, b in zip(block.a, block.b, strict=True)
    ]


def step(cell: Cell, values: dict[str, Fraction]) -> dict[str, Fraction]:
    for symbol, expression in cell.definitions:
        values[symbol.name] = value_of(expression, values, EXACT)
    return values


@settings(max_examples=examples(6))
@given(linked_equations(), st.lists(SMALL, min_size=6, max_size=6))
def test_a_and_b_of_drawn_blocks_reproduce_the_step(equations: str, point: list[Fraction]) -> None:
    output = " + ".join(f"{name}[t]" for name in NAMES if f"{name}[t] =" in equations)
    cell = cell_of(equations, output=f"{output} + 0 * (W.x + W.y)")
    recurrence = classify(cell)
    before = dict(zip(("W.x", "W.y", *(f"{name}[t-1]" for name in NAMES)), point, strict=True))
    values = step(cell, dict(before))
    known: set[str] = set()
    for block in recurrence.blocks:
        assert [values[f"{state}[t]"] for state in block.states] == block_step(block, values)
        # Only what earlier blocks gave may be read.
        made_of = (*block.b, *(entry for row in block.a for entry in row))
        symbols = {symbol.name for value in made_of for symbol in ex.symbols_of(value)}
        assert {name[0] for name in symbols if "[" in name} <= known
        known |= set(block.states)
        if block.form == "rotation":
            (p, q), (r, s) = [[value_of(entry, values, EXACT) for entry in row] for row in block.a]
            assert (p, q) == (s, -r)
    if recurrence.kind == "block-affine":
        assert sorted(known) == sorted(cell.states)
    if recurrence.kind == "diagonal":
        # Powers of a current value, or a chain too long; what is linear is never overlooked.
        assert "contains the product" in recurrence.proof or "more than 4" in recurrence.proof or "scans" in recurrence.proof


def test_blocks_are_ordered_by_what_they_read() -> None:
    cell = cell_of("p[t] = p[t-1] + W.x * v[t-1]\nv[t] = v[t-1] * W.x + k[t-1]\nk[t] = W.x - v[t-1]", output="p")
    assert partition(cell) == (("v", "k"), ("p",))
