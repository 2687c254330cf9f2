"""Means and norms over the units of a step: how they are written, what is proved and derived of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cell_evaluation import cell_of
from support.norm_cells import EVERY_CELL, GATES_TOGETHER, OF_ROUNDS

import minrnn_gen
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.files import find_cell
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.cell.lowering_steps import LoweredStepsBackward, lower_steps, lower_steps_backward
from minrnn_gen.cell.printing import equation_text
from minrnn_gen.cell.program import Program
from minrnn_gen.cell.waits import StepInParts, step_in_parts
from minrnn_gen.errors import BadInput

EQUATIONS = "g = {0}\nh[t] = tanh(W.x + R.h + g)"


def refusal(tmp_path: Path, expression: str, more: str = "") -> str:
    """The sentence for an expression on line 3 of a cell's file, from column 7 on."""
    file = tmp_path / "mine.yaml"
    equations = "\n".join(f"  {line}" for line in EQUATIONS.format(expression).splitlines())
    file.write_text(f"name: mine\nequations: |\n{equations}\n{more}")
    with pytest.raises(BadInput) as raised:
        parse_cell(find_cell(str(file), tmp_path, "test"))
    return str(raised.value).partition("mine.yaml:")[2]


@pytest.mark.parametrize(
    ("expression", "sentence"),
    [
        ("mean(R.h)", "3:7: mean needs the units that it is over; write mean(x, head) or mean(x, all)"),
        ("mean()", "3:7: mean needs the units that it is over; write mean(x, head) or mean(x, all)"),
        ("mean(head)", "3:7: mean needs the units that it is over; write mean(x, head) or mean(x, all)"),
        ("mean(R.h, R.a)", "3:7: mean needs the units that it is over; write mean(x, head) or mean(x, all)"),
        ("mean(R.h, R.a, head)", "3:7: mean is not written like this; write mean(x, head) or mean(x, all)"),
        ("mean(R.h, head, 1)", "3:7: mean is not written like this; write mean(x, head) or mean(x, all)"),
        ("mean(x=R.h)", "3:7: mean needs the units that it is over; write mean(x, head) or mean(x, all)"),
        (
            "rms_norm(R.h, all)",
            "3:7: rms_norm needs a number above 0 that is added under its root; write rms_norm(x, head, 1e-5) or "
            "rms_norm(x, all, 1e-5)",
        ),
        ("1 + rms_norm(R.h, all, 0)", "3:30: rms_norm adds a number above 0 under its root; write one, such as 1e-5"),
        ("rms_norm(R.h, head, -1)", "3:27: rms_norm adds a number above 0 under its root; write one, such as 1e-5"),
        ("rms_norm(R.h, head, R.h)", "3:27: rms_norm adds a number above 0 under its root; write one, such as 1e-5"),
        (
            "rms_norm([R.h], head, 1e-5)",
            "3:7: rms_norm is not written like this; write rms_norm(x, head, 1e-5) or rms_norm(x, all, 1e-5)",
        ),
        ("layer_norm(R.h, [], head, 1e-5)", "3:7: layer_norm is not written like this; write layer_norm(x, head, 1e-5), or"),
        ("mean(W.x * 2, head)", "3:7: no previous step reaches mean(W.x * 2, head); compute it before the layer, and give"),
        ("layer_norm(W.x, all, 1e-5)", "3:7: no previous step reaches layer_norm(W.x, all, 1e-05); compute it before the"),
        ("mean", "3:7: 'mean' is a function; write mean(…)"),
        ("[R.h, W.x]", "3:7: '[R.h, W.x]' is not part of the equation language"),
        (
            "9 * " + "mean(" * 9 + "R.h" + ", head)" * 9,
            "3:11: this is the last of 9 norms and means that each need the one before; at most 8 may",
        ),
        ("men(R.h, head)", "3:7: 'men' is not a function of the language (did you mean 'mean'?)"),
    ],
)
def test_what_is_no_norm_is_refused_where_it_stands(tmp_path: Path, expression: str, sentence: str) -> None:
    assert refusal(tmp_path, expression).startswith(sentence)


def test_cells_with_n_and_cells_without_a_product_have_no_norms() -> None:
    with pytest.raises(
        BadInput, match="mean is over units, which cells with the axis n do not support; leave it out, or list every"
    ):
        cell_of("h[t] = W.x + mean(sum(k[t-1]), head)\nk[t] = W.x * k[t-1] + S.b", states={"h": 1, "k": "n"}, shared=["b"])
    with pytest.raises(BadInput, match=r"mean is over units, and k\[t-1\] has the axis n; leave one of the two out"):
        cell_of("h[t] = W.x + mean(k[t-1], head)\nk[t] = W.x * k[t-1] + S.b", states={"h": 1, "k": "n"}, shared=["b"])
    with pytest.raises(BadInput, match=r"mean is computed between two products by R, and this cell has none; use R\.<gate>"):
        cell_of("h[t] = W.x + mean(h[t-1], head)")


@pytest.mark.parametrize("name", ["mean", "rms_norm", "layer_norm", "head", "all"])
def test_a_cell_may_use_the_new_words_as_names(name: str) -> None:
    as_value = cell_of(f"{name} = sigmoid(W.x + R.x)\nh[t] = {name} * h[t-1]")
    as_state = cell_of(f"{name}[t] = tanh(W.x + R.x) * {name}[t-1]")
    as_parameter = cell_of(f"h[t] = {name} * h[t-1] + R.x + W.x", parameters=[name])
    assert as_value.norms == as_state.norms == as_parameter.norms == ()
    if name not in ("head", "all"):
        with pytest.raises(BadInput, match=f"'{name}' is a value of this cell, which cannot be called; give it another name"):
            cell_of(f"{name} = R.x\nh[t] = {name}({name}, head) + W.x")


def test_units_are_named_even_where_a_value_has_their_name() -> None:
    cell = cell_of("head = sigmoid(W.x + R.x)\nh[t] = mean(head, head) * h[t-1]")
    assert [equation_text(norm) for norm in cell.norms] == ["mean(head, head)"]


@pytest.mark.parametrize(
    "text",
    [
        "mean(R.h, head)",
        "mean([R.h, W.x], all)",
        "rms_norm(R.h, all, 0.001)",
        "layer_norm(R.h, head, 0.5)",
        "layer_norm(W.x, [R.h, W.x, h[t-1]], head, 1e-05)",
        "layer_norm(W.x, [R.h], all, 1)",
    ],
)
def test_what_is_shown_reads_back(text: str) -> None:
    (norm,) = cell_of(EQUATIONS.format(text)).norms
    assert equation_text(norm) == text


def test_the_proof_names_the_values_over_units() -> None:
    proof = classify(cell_of(EQUATIONS.format("rms_norm(R.h, all, 0.5)")))
    assert proof.kind == "dense" and proof.proof.endswith(" Values over units within a step: rms_norm(R.h, all, 0.5).")


def means_of(levels: Any) -> list[int]:
    return [len(level.means) for level in levels]


def test_norms_that_need_nothing_of_each_other_share_a_level() -> None:
    """Four gates are normalised together: a mean, then a variance; and back, two means of gradients in one level."""
    cell = parse_cell(find_cell("layer_norm_lstm", Path.cwd(), "test"))
    forward, backward = lower_steps(cell), lower_steps_backward(cell)
    assert means_of(forward.levels) == [4, 4, 1, 1]
    assert means_of(backward.levels) == [4, 4, 1, 1, 4, 6]
    together = minrnn_gen.compile({"model": GATES_TOGETHER, "hidden_size": 8}).builder.cell
    assert means_of(lower_steps(together).levels) == [1, 1]


def test_what_needs_no_mean_takes_none() -> None:
    cell = cell_of("h[t] = tanh(W.x + R.h)")
    assert lower_steps(cell).levels == lower_steps_backward(cell).levels == ()


@pytest.mark.parametrize("document", EVERY_CELL, ids=lambda document: document["name"])
def test_each_level_takes_the_means_of_earlier_ones_alone(document: dict[str, Any]) -> None:
    cell = minrnn_gen.compile({"model": document, "hidden_size": 8}).builder.cell
    forward, backward = lower_steps(cell), lower_steps_backward(cell)
    programs = [(forward.levels, forward.step), (backward.levels, backward.backward)]
    programs += [(of.levels, of.program) for of in (*forward.rounds, *backward.rounds, *backward.arguments)]
    for levels, program in programs:
        known: set[str] = set()
        for level in levels:
            assert {name for name in level.program.inputs if name.startswith("mean_")} <= known
            known |= {name for name, _ in level.means}
        assert {name for name in program.inputs if name.startswith("mean_")} <= known


def waits_of(document: dict[str, Any] | str, *, backward: bool = False) -> list[tuple[int, int]]:
    """The means of each exchange of a step in parts, and the round of products; 0 for those of means."""
    cell = minrnn_gen.compile({"model": document, "hidden_size": 8}).builder.cell
    waits = step_in_parts(lower_steps_backward(cell) if backward else lower_steps(cell)).waits
    return [(len(wait.statistics), wait.round) for wait in waits]


def test_a_norm_is_one_exchange_and_norms_at_one_depth_share_it() -> None:
    """The mean and the squares of a layer norm, and of a list; each exchange has as many means as can be made by then."""
    assert waits_of("layer_norm_lstm") == [(4, 0), (1, 0)]
    assert waits_of("layer_norm_lstm", backward=True) == [(4, 0), (6, 0)]
    assert waits_of(GATES_TOGETHER) == [(1, 0)]
    assert waits_of(OF_ROUNDS) == [(2, 0), (0, 1), (1, 0)]
    assert waits_of(OF_ROUNDS, backward=True) == [(2, 0), (0, 1), (2, 0)]
    by_hand = cell_of("a = R.h - mean(R.h, head)\nh[t] = tanh(W.x + a / sqrt(mean(a * a, head) + 0.1))")
    assert [len(wait.statistics) for wait in step_in_parts(lower_steps(by_hand)).waits] == [1]
    apart = cell_of("a = R.h - mean(R.h, head)\nb = a - mean(abs(a), head)\nh[t] = tanh(W.x + b * mean(a * b, head))")
    assert [len(wait.statistics) for wait in step_in_parts(lower_steps(apart)).waits] == [1, 1, 1]


def run_in_parts(step: StepInParts, values: dict[str, Any]) -> dict[str, Any]:
    """The results of a step in parts for all units at once, with squares as blocks merge them."""
    labels = {name: label for label, name in step.needs.items()}
    results: dict[str, Any] = {}
    for number, part in enumerate((step.preparation, *step.parts)):
        named = [(name, name) for name in (*dict(part.results).values(), *labels) if name not in values]
        own = {statement.name for statement in part.statements}
        asked = Program(part.inputs, part.statements, tuple((name, name) for name, _ in dict(named).items() if name in own))
        values |= asked.evaluate({name: values[name] for name in part.inputs})
        if number == len(step.parts):
            results = {label: values[name] for label, name in part.results}
        for statistic in step.waits[number - 1].statistics if 0 < number < len(step.parts) else ():
            value = values[step.needs[statistic.value_label]]
            within = values[step.needs[statistic.within_label]].mean() if statistic.is_of_list else 0.0
            values[statistic.mean] = np.full_like(value, value.mean())
            if statistic.squares:
                values[statistic.squares] = np.full_like(value, np.square(value - value.mean()).mean() + within)
    return results


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("document", ["layer_norm_lstm", *EVERY_CELL], ids=str)
def test_a_step_in_parts_is_the_step(document: dict[str, Any] | str, backward: bool) -> None:
    """The parts, with what arrives between them, give what the program with its levels does."""
    cell = minrnn_gen.compile({"model": document, "hidden_size": 8}).builder.cell
    lowered = lower_steps_backward(cell) if backward else lower_steps(cell)
    program = lowered.backward if isinstance(lowered, LoweredStepsBackward) else lowered.step
    rng, values = np.random.default_rng(0), {}
    for level_program in (*(level.program for level in lowered.levels), program, lowered.whole.program):
        for name in level_program.inputs:
            values.setdefault(name, rng.standard_normal(8))
    for level in lowered.levels:
        summands = level.program.evaluate(values)
        for (name, _), summand in zip(level.means, level.program.results, strict=True):
            values[name] = np.full(8, summands[summand[0]].mean())
    expected = program.evaluate(values)
    known = lowered.known_means if isinstance(lowered, LoweredStepsBackward) else ()
    of_parts = {name: value for name, value in values.items() if not name.startswith("mean_") or name in known}
    for gate in cell.recurrent_gates:
        of_parts |= {f"sum_{gate}": values.get(f"R_{gate}", np.zeros(8)) - 0.25, f"recurrent_bias_{gate}": np.full(8, 0.25)}
    found = run_in_parts(step_in_parts(lowered), of_parts)
    assert found.keys() >= expected.keys()
    for label, value in expected.items():
        np.testing.assert_allclose(found[label], value, rtol=1e-9, atol=1e-12, err_msg=label)
