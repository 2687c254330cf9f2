"""The class of a cell is proved: a and b are what the equations say, and no affine polynomial is overlooked."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cell_evaluation import Tree, built_in, cell_of, tree_text, trees, value_of
from support.examples import examples
from support.one_step import lower_step

from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.files import library_names
from minrnn_gen.cell.lowering import lower_scan
from minrnn_gen.cell.printing import equation_text

KINDS = {
    **dict.fromkeys(
        ["min_gru", "min_gru_log", "min_gru_tanh", "min_lstm", "min_lstm_log", "hgrn", "qrnn", "rg_lru"], "affine-diagonal"
    ),
    **dict.fromkeys(["ind_rnn", "lif"], "diagonal"),
    **dict.fromkeys(["elman", "lstm", "gru", "gru_reset_before", "slstm", "peephole_lstm", "recurrent_lif"], "dense"),
    "layer_norm_lstm": "dense",
}


@pytest.mark.parametrize("name", library_names())
def test_the_class_of_a_built_in_cell(name: str) -> None:
    recurrence = classify(built_in(name))
    assert recurrence.kind == KINDS[name]
    assert bool(recurrence.a) == bool(recurrence.b) == (recurrence.kind == "affine-diagonal")
    assert recurrence.proof.endswith(".") and "\n" not in recurrence.proof


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        ("min_gru", "1 - z", "z * W.h"),
        ("min_lstm", "1 - new", "new * W.h"),
        ("hgrn", "f", "(1 - f) * silu(W.i)"),
        ("rg_lru", "exp(l)", "sqrt(-expm1(2 * l)) * (i * W.x)"),
    ],
)
def test_a_and_b_keep_the_authors_form(name: str, a: str, b: str) -> None:
    recurrence = classify(built_in(name))
    assert (equation_text(recurrence.a[0][1]), equation_text(recurrence.b[0][1])) == (a, b)


AFFINE = [
    ("h[t] = W.h", "0", "W.h"),
    ("h[t] = h[t-1] + 0 * W.h", "1", "0 * W.h"),
    ("h[t] = h[t-1] + W.z * (W.h - h[t-1])", "1 - W.z", "W.z * W.h"),
    ("h[t] = -(W.z - h[t-1] / W.h)", "1 / W.h", "-W.z"),
    ("h[t] = where(W.z > 0, W.z * h[t-1], W.h)", "where(W.z > 0, W.z, 0)", "where(W.z > 0, 0, W.h)"),
    ("v = W.z * h[t-1]\nu = v + W.h\nh[t] = 2 * u", "2 * W.z", "2 * W.h"),
    ("h[t] = (h[t-1] + 1) ** 2 - h[t-1] ** 2 + 0 * W.h", "2", "1 + 0 * W.h"),
    ("h[t] = (W.g * h[t-1] + W.b) ** 2 - W.g ** 2 * h[t-1] ** 2", "W.g * W.b + W.b * W.g", "W.b * W.b"),
    ("g = W.a * 2\nh[t] = (g - W.a - W.a) * h[t-1] ** 2 + W.a", "0", "W.a"),
    ("h[t] = tanh(W.h + h[t-1] - h[t-1])", "0", "tanh(W.h)"),
    ("h[t] = where(h[t-1] - h[t-1] >= 0, W.a, W.b)", "0", "where(0 >= 0, W.a, W.b)"),
    ("h[t] = (W.h + h[t-1] - h[t-1]) ** 5", "0", "W.h * W.h * W.h * W.h * W.h"),
    ("h[t] = detach(W.z) * h[t-1]", "detach(W.z)", "0"),
    ("s = sigmoid(W.a)\nh[t] = (s * h[t-1] + 1) * (s * h[t-1] - 1) - s * h[t-1] * (s * h[t-1])", "-s + s", "-1"),
]


@pytest.mark.parametrize(("equations", "a", "b"), AFFINE, ids=[each[0] for each in AFFINE])
def test_affine_cells(equations: str, a: str, b: str) -> None:
    recurrence = classify(cell_of(equations))
    assert recurrence.kind == "affine-diagonal", recurrence.proof
    assert (equation_text(recurrence.a[0][1]), equation_text(recurrence.b[0][1])) == (a, b)


NOT_AFFINE = [
    ("h[t] = tanh(W.h + h[t-1])", "tanh(W.h + h[t-1]) applies tanh to a value that depends on the previous step"),
    ("h[t] = W.h * h[t-1] ** 2", "contains the product h[t-1] * h[t-1]"),
    ("h[t] = W.h / h[t-1]", "divides by a value that depends on the previous step"),
    ("h[t] = where(h[t-1] > 0, W.h, 0)", "the condition h[t-1] > 0 depends on the previous step"),
    ("h[t] = W.h * detach(h[t-1])", "hides from the gradient"),
    ("h[t] = max(h[t-1], W.h)", "applies max"),
    ("v = exp(h[t-1])\nh[t] = v * W.h", "exp(h[t-1]) applies exp"),
    ("h[t] = (h[t-1] * W.h) ** 5", "product of more than 4 previous values"),
]


@pytest.mark.parametrize(("equations", "reason"), NOT_AFFINE, ids=[each[0] for each in NOT_AFFINE])
def test_cells_that_are_not_affine_say_why(equations: str, reason: str) -> None:
    recurrence = classify(cell_of(equations))
    assert recurrence.kind == "diagonal" and reason in recurrence.proof
    assert recurrence.proof.startswith("not a scan: ") and recurrence.proof.count(".") >= 1


def test_a_cell_with_several_states_is_affine_when_each_is() -> None:
    recurrence = classify(cell_of("c[t] = W.f * c[t-1] + W.c\nn[t] = W.f * n[t-1] + (c[t] - W.f * c[t-1])", states=["n", "c"]))
    assert recurrence.kind == "affine-diagonal"
    assert [(state, equation_text(a)) for state, a in recurrence.a] == [("n", "W.f"), ("c", "W.f")]


def test_a_same_step_state_that_no_state_reaches_may_be_used() -> None:
    recurrence = classify(cell_of("m[t] = W.m\nh[t] = m[t] * h[t-1] + W.h", output="h"))
    assert [equation_text(a) for _, a in recurrence.a] == ["0", "m[t]"]


Exponents = tuple[int, int, int]
"""Of W.x, W.y and h[t-1]."""

UNITS: dict[str, Exponents] = {"W.x": (1, 0, 0), "W.y": (0, 1, 0), "h[t-1]": (0, 0, 1)}


def multiplied_out(tree: Tree, early: Tree | None = None) -> dict[Exponents, Fraction]:
    """Return a polynomial's nonzero coefficients; `early` is what the leaf "v" stands for."""
    name, *parts = tree
    if name == "number":
        return {(0, 0, 0): Fraction(parts[0])} if Fraction(parts[0]) else {}
    if name == "leaf":
        return multiplied_out(early) if parts[0] == "v" and early else {UNITS[parts[0]]: Fraction(1)}
    if name == "**":
        return multiplied_out(("*", parts[0], parts[0] if parts[1] == 2 else ("**", parts[0], parts[1] - 1)), early)
    values = [multiplied_out(part, early) for part in parts]
    terms = [(exponents, coefficient) for exponents, coefficient in values[0].items()]
    if name == "*":
        terms = [((i + p, j + q, k + r), one * other) for (i, j, k), one in terms for (p, q, r), other in values[1].items()]
    elif len(values) == 1:
        terms = [(exponents, -coefficient) for exponents, coefficient in terms]
    else:
        terms += [(exponents, coefficient if name == "+" else -coefficient) for exponents, coefficient in values[1].items()]
    result: dict[Exponents, Fraction] = {}
    for exponents, coefficient in terms:
        result[exponents] = result.get(exponents, Fraction(0)) + coefficient
    return {exponents: coefficient for exponents, coefficient in result.items() if coefficient}


EXACT = {"number": lambda number: number.value}
SMALL = st.fractions(-3, 3, max_denominator=5)


@settings(max_examples=examples(300))
@given(
    trees(("W.x", "W.y", "h[t-1]"), False, 2),
    trees(("W.x", "h[t-1]", "h[t-1]", "v"), False, 3),
    st.tuples(SMALL, SMALL, SMALL),
)
def test_a_polynomial_is_affine_exactly_if_its_degree_is_at_most_one(early: Tree, tree: Tree, point: Any) -> None:
    first = f"v = {tree_text(early)}\n" if "v" in tree_text(tree) else ""
    equations = f"{first}h[t] = {tree_text(tree)} + 0 * (W.x + W.y)"
    recurrence = classify(cell_of(equations))
    expected = multiplied_out(tree, early)
    degree = max((k for _, _, k in expected), default=0)
    if recurrence.kind == "diagonal":
        # That powers above the limit cancel is the one thing that may go unproved.
        assert degree > 1 or "more than 4" in recurrence.proof
        return
    assert degree <= 1
    x, y, h = point
    values = {"W.x": x, "W.y": y, "h[t-1]": h}
    values["v"] = sum(c * x**i * y**j * h**k for (i, j, k), c in multiplied_out(early).items())
    a, b = (value_of(each[0][1], values, EXACT) for each in (recurrence.a, recurrence.b))
    assert a * h + b == sum(c * x**i * y**j * h**k for (i, j, k), c in expected.items())


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind == "affine-diagonal"])
def test_the_next_state_moves_by_a_times_what_the_previous_state_moves(name: str) -> None:
    cell = built_in(name)
    lowered = lower_scan(cell, classify(cell))
    random = np.random.default_rng(1)
    inputs = {key: random.normal(size=1000) * 3 for key in lowered.coefficients.inputs}
    step = lower_step(cell)
    (state,) = cell.states
    one, other = random.normal(size=(2, 1000))
    moved = [step.evaluate({**inputs, f"previous_{state}": value})[f"state_{state}"] for value in (one, other)]
    a = lowered.coefficients.evaluate(inputs)[f"a_{state}"]
    np.testing.assert_allclose(moved[0] - moved[1], a * (one - other), rtol=1e-12, atol=1e-13)
