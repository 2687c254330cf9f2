"""Inputs X.* in a cell file: how they are listed and read, and that they count as known in the proof."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.documentation import ROOT, table
from support.input_cells import DIAGONAL, EVERY_CELL, GAPS, HIGHWAY, IN_ROUNDS, LINEAR

from minrnn_gen.cell.analysis import Recurrence, classify
from minrnn_gen.cell.files import find_cell, input_library_names
from minrnn_gen.cell.gradient_text import gradient_equations
from minrnn_gen.cell.language import Cell, parse_cell
from minrnn_gen.errors import BadInput


def read(cell: str | dict[str, Any]) -> Cell:
    return parse_cell(find_cell(cell, Path.cwd(), "test"))


def proved(cell: str | dict[str, Any]) -> Recurrence:
    return classify(read(cell))


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (HIGHWAY, "affine-diagonal"),
        (GAPS, "dense"),
        (IN_ROUNDS, "dense"),
        (LINEAR, "dense"),
        (DIAGONAL, "diagonal"),
        ("sru", "affine-diagonal"),
        ("zoneout_lstm", "dense"),
    ],
    ids=lambda one: one if isinstance(one, str) else one["name"],
)
def test_a_cell_with_inputs_is_of_the_class_that_it_is_of_without(cell: Any, kind: str) -> None:
    assert proved(cell).kind == kind


def test_a_coefficient_that_reads_an_input_stays_one_of_a_scan() -> None:
    proof = proved(
        {"name": "gap", "inputs": ["gap"], "equations": "h[t] = exp(-abs(X.gap)) * h[t-1] + where(X.gap > 1, W.x, 0)"}
    )
    assert proof.is_scan
    assert "a = exp(-abs(X.gap))" in proof.proof


def test_inputs_stand_in_the_order_of_their_list() -> None:
    assert read(HIGHWAY).inputs == ("skip", "added")
    assert read({**HIGHWAY, "inputs": ["added", "skip"]}).inputs == ("added", "skip")
    assert input_library_names() == ("sru", "zoneout_lstm")


def test_names_of_inputs_are_their_own() -> None:
    """A gate, a state and a parameter of the same name are others; X may be a value's name."""
    same = {
        "name": "same",
        "parameters": ["m"],
        "inputs": ["m", "x"],
        "equations": "X = W.m + m\nx[t] = X * x[t-1] + X.m + X.x",
    }
    assert read(same).inputs == ("m", "x")
    assert classify(read(same)).is_scan


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"inputs": []}, r"X\.m is not listed; list it, `inputs: \[m\]`"),
        ({"inputs": ["mm"]}, r"X\.m is not listed.*mm.*list it"),
        ({"inputs": ["m", "k"]}, r"inputs.*'k' is never used as X\.k; remove it or use it"),
        ({"inputs": ["m", "m"]}, r"inputs.*'m' is listed twice"),
        ({"equations": "h[t] = W.x + X.m[t-1]"}, "a state is written"),
        ({"equations": "h[t] = W.x + X(m)"}, "X"),
        ({"equations": "h[t] = W.x + X.tanh", "inputs": ["tanh"]}, "'tanh' is"),
        ({"states": {"h": "n"}, "output": "sum(h[t])"}, r"X\.m is an input of a cell with the axis n, which takes none"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_what_is_wrong_is_said_in_one_sentence(change: dict[str, Any], wanted: str) -> None:
    cell = {"name": "wrong", "inputs": ["m"], "equations": "h[t] = 0.5 * h[t-1] + W.x + X.m", **change}
    if "states" in change:
        cell["parameters"], cell["equations"] = {"a": "n"}, "h[t] = a * h[t-1] + W.x + X.m"
    with pytest.raises(BadInput, match=wanted) as refused:
        read(cell)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("cell", EVERY_CELL, ids=lambda cell: cell["name"])
def test_the_gradient_of_every_input_is_shown(cell: dict[str, Any]) -> None:
    lines = gradient_equations(read(cell))
    assert [name for name in cell["inputs"] if not any(line.startswith(f"dX.{name} = ") for line in lines)] == []


def test_the_built_in_cells_are_those_of_the_table() -> None:
    rows = table(ROOT / "docs" / "cells.md", "cell", "X.*")
    assert [row[0].strip("`") for row in rows] == list(input_library_names())
    assert [row[1].split(", ") for row in rows] == [list(read(name).inputs) for name in input_library_names()]
