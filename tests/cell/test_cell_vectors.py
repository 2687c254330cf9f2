"""Values with the axis n in the equation language: what is read, what is proved, what is derived, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cell_evaluation import built_in, cell_of, source_of

from minrnn_gen.build.recipe import recipe_of, spec_from
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.axes import Vectors
from minrnn_gen.cell.files import find_cell, library_names, vector_library_names
from minrnn_gen.cell.gradient_text import gradient_equations
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.cell.lowering import lower_scan, lower_scan_backward
from minrnn_gen.cell.lowering_steps import lower_steps_backward
from minrnn_gen.config.spec import load_spec
from minrnn_gen.cpu.recurrence import scan
from minrnn_gen.errors import BadInput

SELECTIVE = {
    "states": {"h": "n"},
    "shared": ["b", "c"],
    "parameters": {"a": "n", "d": 1},
    "output": "sum(S.c * h[t]) + d * W.x",
}
EQUATIONS = "dt = softplus(W.dt)\nh[t] = exp(-exp(a) * dt) * h[t-1] + dt * W.x * S.b"


def test_the_names_with_the_axis_are_those_that_the_file_lists() -> None:
    cell = cell_of(EQUATIONS, **SELECTIVE)
    assert cell.vectors == Vectors(("h",), ("a",), ("b", "c"))
    assert (cell.gates, cell.states, cell.parameters) == (("dt", "x"), ("h",), ("a", "d"))
    assert source_of(EQUATIONS, **SELECTIVE).has_vectors


def test_a_mapping_gives_axes_and_first_use_the_order() -> None:
    states = {"g": 1, "h": "n"}
    one = cell_of("h[t] = W.x * h[t-1]\ng[t] = W.x + 0 * g[t-1]", states=states, output="sum(h[t]) + g[t]")
    other = cell_of(
        "h[t] = W.x * h[t-1]\ng[t] = W.x + 0 * g[t-1]", states=dict(reversed(states.items())), output="sum(h[t]) + g[t]"
    )
    assert one.states == other.states == ("h", "g") and one.vectors.states == ("h",)


def test_cells_without_the_axis_are_as_before() -> None:
    for name in library_names():
        cell = built_in(name)
        assert not cell.vectors and not find_cell(name, Path(), "<test>").has_vectors
    value_named_so = cell_of("sum = W.x + W.S\nS = sum * 2\nh[t] = S * h[t-1]")
    assert not value_named_so.vectors
    assert parse_cell(source_of("h[t] = W.x", states={"h": 1})).states == ("h",)


@pytest.mark.parametrize("name", vector_library_names())
def test_a_built_in_cell_with_vectors_is_a_scan_that_says_where_it_is_published(name: str) -> None:
    cell, source = built_in(name), find_cell(name, Path(), "<test>")
    assert source.has_vectors and source.name == name and source.document.data["source"] and source.document.data["description"]
    assert classify(cell).kind == "affine-diagonal"


def test_the_built_in_cells_with_vectors_are_these() -> None:
    assert vector_library_names() == ("gated_linear", "s4d", "selective")
    assert not {*vector_library_names()} & {*library_names()}
    assert built_in("selective").gates == ("dt", "x", "z") and built_in("selective").vectors.shared == ("b", "c")
    assert built_in("s4d").parameters == ("a", "step", "c", "d") and built_in("gated_linear").vectors.shared == ("f", "k", "q")


@pytest.mark.parametrize("name", vector_library_names())
def test_a_recipe_stands_by_itself(name: str) -> None:
    spec = load_spec({"model": name, "hidden_size": 4, "state_size": 8})
    recipe = recipe_of(spec, find_cell(name, spec.folder, "<dict>"))
    again = spec_from(recipe)
    assert (again.state_size, again.hidden_size) == (8, 4)
    model: Any = again.model
    assert parse_cell(find_cell(model, again.folder, "<dict>")) == built_in(name)


PROOFS = [
    (EQUATIONS, SELECTIVE, "affine-diagonal", "a = exp(-exp(a) * dt) and b = dt * W.x * S.b"),
    ("h[t] = sigmoid(W.f) * h[t-1] + W.x", {"states": {"h": "n"}, "output": "sum(h[t])"}, "affine-diagonal", "b = W.x"),
    (
        "h[t] = S.f * h[t-1] + S.k * (W.v - sum(S.k * h[t-1]))",
        {"states": {"h": "n"}, "shared": ["f", "k"], "output": "sum(h[t])"},
        "diagonal",
        "applies sum to a value that depends on the previous step",
    ),
    (
        "g[t] = W.f * g[t-1] + sum(h[t-1])\nh[t] = W.f * h[t-1] + W.x",
        {"states": {"h": "n", "g": 1}, "output": "g[t]"},
        "block-affine",
        "h[t] = W.f * h[t-1] + W.x; then g[t] = W.f * g[t-1] + b, where b reads h[t-1]",
    ),
    (
        "g[t] = W.f * g[t-1] + W.x\nh[t] = W.f * h[t-1] + g[t-1]",
        {"states": {"h": "n", "g": 1}, "output": "sum(h[t]) + g[t]"},
        "block-affine",
        "then h[t] = W.f * h[t-1] + b, where b reads g[t-1]",
    ),
]


@pytest.mark.parametrize(("equations", "keys", "kind", "said"), PROOFS)
def test_the_proof_is_per_value_and_a_sum_over_its_own_previous_state_is_no_scan(
    equations: str, keys: dict[str, Any], kind: str, said: str
) -> None:
    recurrence = classify(cell_of(equations, **keys))
    assert recurrence.kind == kind and said in recurrence.proof


H = {"states": {"h": "n"}}
WRONG: list[tuple[str, dict[str, Any], str]] = [
    (
        "h[t] = W.f * h[t-1] + W.x",
        H,
        "but h[t], the output because it is the first state, has the axis n; give an output that adds over n, such as",
    ),
    (
        "h[t] = W.f * h[t-1] + S.b",
        {"shared": ["b"]},
        "h[t] is one value per channel, but its expression has the axis n; add over n with sum(…), or list the state as "
        "`states: {h: n}`",
    ),
    (
        "h[t] = W.f + W.x",
        {**H, "output": "sum(h[t])"},
        "h[t] has n values per channel, but its expression lacks the axis n",
    ),
    ("h[t] = W.f * h[t-1] + sum(W.x)", {}, "sum adds over the axis n, and W.x lacks it: one value per channel"),
    (
        "h[t] = W.f * h[t-1]",
        {**H, "output": "sum(sum(h[t]))"},
        "sum adds over the axis n, and sum(h[t]) lacks it",
    ),
    ("h[t] = W.f * h[t-1]", {**H, "output": "h[t] * 2"}, "the output is one value per channel, but h[t] * 2 has the axis n"),
    (
        "h[t] = W.f * h[t-1] + R.f",
        {**H, "output": "sum(h[t])"},
        "R.f multiplies the previous output, which a cell with the axis n",
    ),
    ("h[t] = W.f * h[t-1] + S.b", {**H, "output": "sum(h[t])"}, "S.b is not listed; list it, `shared: [b]`"),
    (
        "h[t] = W.f * h[t-1] + S.b",
        {**H, "shared": ["bee"], "output": "sum(h[t])"},
        "S.b is not listed",
    ),
    ("h[t] = W.f * h[t-1]", {**H, "shared": ["b"], "output": "sum(h[t])"}, "'b' is never used as S.b"),
    ("h[t] = W.f * h[t-1]", {"states": {"h": "n", "g": 1}, "output": "sum(h[t])"}, "'g' is never used as g[t]"),
    (
        "h[t] = W.f * h[t-1]\ng[t] = W.f * g[t-1]",
        {**H, "output": "sum(h[t]) + g[t]"},
        "'g' is used here but not listed under states; list it with its axis, `g: n` or `g: 1`",
    ),
    ("h[t] = W.f * h[t-1]", {**H, "parameters": {"a": "n"}, "output": "sum(h[t])"}, "'a' is never used as a"),
    (
        "h[t] = W.f * h[t-1]",
        {"states": {"h": "m"}},
        "model.states: 'm' is given for h; allowed: n, for n values per channel, p, for P projected units, or 1",
    ),
    ("h[t] = W.f * h[t-1]", {"parameters": {"a": 2}}, "model.parameters: 2 is given for a; allowed: n"),
    ("h[t] = W.f * h[t-1]", {"states": {"h h": "n"}}, "model.states: 'h h' is given; allowed: names, a letter"),
    ("h[t] = W.f * h[t-1] + sum(h[t-1], 1)", H, "sum takes 1 argument"),
    ("h[t] = W.f * h[t-1] + S.b", {"shared": "b"}, "shared"),
]


@pytest.mark.parametrize(("equations", "keys", "said"), WRONG)
def test_what_is_refused_is_one_sentence_that_names_the_axis(equations: str, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        cell_of(equations, **keys)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_an_error_in_a_file_says_line_and_column(tmp_path: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nstates: {h: n}\nequations: |\n  h[t] = W.f * h[t-1]\n  g[t] = h[t] * W.f\noutput: g[t]\n")
    with pytest.raises(BadInput, match=r"mine\.yaml:5:3: g\[t\] is one value per channel"):
        parse_cell(find_cell("mine.yaml", tmp_path, "<dict>"))


def test_the_gradient_of_what_all_n_values_use_is_added_over_n() -> None:
    lines = dict(line.split(" = ", 1) for line in gradient_equations(built_in("gated_linear")))
    assert lines["dW.v"] == "sum(d.h[t] * S.k)"
    assert lines["dS.k"] == "d.h[t] * W.v" and lines["dS.q"] == "in.y * h[t]"
    lines = dict(line.split(" = ", 1) for line in gradient_equations(built_in("selective")))
    assert lines["dS.b"].startswith("d.h[t] * ") and "sum" not in lines["d.a"] and "sum" not in lines["d.d"]


def test_a_branch_that_no_value_takes_has_a_gradient_of_zero() -> None:
    """The branch is log at 0, chosen by none of n values, by some, or by a condition that is one per channel."""
    keys = {"states": {"h": "n"}, "shared": ["b"], "output": "sum(h[t])"}
    by_each = cell_of("h[t] = where(S.b > 0, log(W.x), 1) * h[t-1]", **keys)
    by_all = cell_of("h[t] = where(W.x > 0, log(W.x), 1) * h[t-1] + S.b", **keys)
    previous, gradient = np.ones((1, 3)), np.ones((1, 3))
    for cell, x, b, expected in (
        (by_each, 0.0, [-1.0, -2.0, -3.0], 0.0),
        (by_each, 2.0, [-1.0, 2.0, 3.0], 4 / 2),
        (by_all, 0.0, [1.0, 1.0, 1.0], 0.0),
        (by_all, 0.5, [1.0, 1.0, 1.0], 6 / 0.5),
    ):
        program = lower_steps_backward(cell).backward
        values = {"W_x": np.array([[x]]), "S_b": np.array([b]), "previous_h": previous, "gradient_state_h": gradient}
        values["gradient_y"] = np.array([[1.0]])
        found = program.evaluate({name: values[name] for name in program.inputs})["gradient_W_x"]
        assert found[0, 0] == expected


@given(st.integers(1, 4), st.integers(1, 9), st.data())
def test_steps_compose_in_any_grouping(n: int, time: int, data: Any) -> None:
    """Maps h -> a h + b of drawn steps, composed of any split of time, are those of the scan from step to step."""
    random = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    lowered = lower_scan(built_in("selective"), classify(built_in("selective")))
    shape = (time, 2, 3)
    inputs = {f"W_{gate}": random.normal(size=(*shape, 1)) for gate in ("dt", "x", "z")}
    inputs |= {"S_b": random.normal(size=(time, 2, 1, n)), "S_c": random.normal(size=(time, 2, 1, n))}
    inputs |= {"parameter_a": random.normal(size=(3, n)), "parameter_d": random.normal(size=(3, 1))}
    steps = lowered.coefficients.evaluate(inputs)
    a, b = (np.broadcast_to(steps[f"{letter}_h"], (*shape, n)) for letter in "ab")
    initial = random.normal(size=(2, 3, n))

    def composed(begin: int, end: int) -> tuple[Any, Any]:
        if end - begin == 1:
            return a[begin], b[begin]
        split = data.draw(st.integers(begin + 1, end - 1))
        (first_a, first_b), (second_a, second_b) = composed(begin, split), composed(split, end)
        return second_a * first_a, second_a * first_b + second_b

    whole_a, whole_b = composed(0, time)
    for method in ("sequential", "parallel"):
        states = scan(a, b, initial, method)  # type: ignore[arg-type]
        np.testing.assert_allclose(whole_a * initial + whole_b, states[-1], rtol=1e-12, atol=1e-12)


def test_what_a_backward_reads_and_gives() -> None:
    cell = built_in("selective")
    backward = lower_scan_backward(cell, classify(cell))
    assert backward.needs_saved_states == ("h",) and backward.output_state is None and backward.vectors == cell.vectors
    labels = {label for label, _ in backward.gradients.results}
    assert labels == {f"gradient_{name}" for name in ("W_dt", "W_x", "W_z", "S_b", "S_c", "parameter_a", "parameter_d")}
