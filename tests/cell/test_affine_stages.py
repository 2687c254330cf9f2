"""Stages of affine cells: which states compose together, which after others, and for which cells there are none."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.cell_evaluation import built_in, cell_of
from support.stage_cells import DELAYS, STAGES, STAGES_OF_VALUES

from minrnn_gen.build.altered_cells import altered_recipe
from minrnn_gen.build.recipe import cell_source_of, spec_from
from minrnn_gen.cell.affine_stages import affine_stages
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.files import coupled_library_names, find_cell, library_names, vector_library_names
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.cell.printing import equation_text


def states_of(cell: Any) -> list[str]:
    return [" ".join(stage.states) for stage in affine_stages(cell)]


def named(model: Any) -> Any:
    return parse_cell(find_cell(model, Path(), "<test>"))


@pytest.mark.parametrize("name", [*library_names(), *coupled_library_names(), *vector_library_names()])
def test_every_scan_has_stages_with_all_of_its_states(name: str) -> None:
    cell = named(name)
    composes = classify(cell).kind in ("affine-diagonal", "block-affine")
    assert sorted(" ".join(states_of(cell)).split()) == (sorted(cell.states) if composes else [])


@pytest.mark.parametrize(
    ("model", "stages"),
    [
        ("conv_min_gru", ["x1 x2 x3 h"]),  # delays and the scan that they lead into are affine together
        (STAGES, ["a", "b c"]),
        (STAGES_OF_VALUES, ["m", "u v"]),
        (DELAYS, ["d0 d1 d2 d3", "d4", "h"]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_blocks_that_are_affine_together_are_one_stage(model: Any, stages: list[str]) -> None:
    assert states_of(named(model)) == stages


def test_what_scans_of_maps_bound_is_not_bounded_here() -> None:
    """States that depend on each other may be five, and as many scans as there are may wait for each other."""
    names, sums = "abcde", " + ".join(f"0.1 * {name}[t-1]" for name in "abcde")
    coupled = cell_of("\n".join(f"{name}[t] = {sums} + W.x" for name in names), states=[*names], output="a[t]")
    chain = cell_of(
        "a[t] = 0.5 * a[t-1] + W.x\n"
        + "\n".join(f"{name}[t] = 0.5 * {name}[t-1] + tanh({before}[t])" for before, name in pairwise(names)),
        states=[*names],
        output="e[t]",
    )
    assert [classify(cell).kind for cell in (coupled, chain)] == ["diagonal", "diagonal"]
    assert states_of(coupled) == ["a b c d e"] and states_of(chain) == [*names]


def test_a_held_step_is_the_identity_and_no_further_stage() -> None:
    recipe = altered_recipe('{"hidden_size":4,"model":"conv_min_gru"}', True, True).recipe
    (stage,) = affine_stages(parse_cell(cell_source_of(spec_from(recipe))))
    held = {pair: equation_text(entry) for pair, entry in stage.a.items()}
    assert held["h", "h"] == "where(X.hold0 > 0, 1, 1 - z)" and held["x2", "x1"] == "where(X.hold0 > 0, 0, 1)"


def test_products_have_the_entries_that_paths_lead_to() -> None:
    (stage,) = affine_stages(built_in("conv_min_gru"))
    assert [pair for pair in stage.entries if pair[0] != "h"] == [
        ("x1", "x1"),
        *(("x2", column) for column in ("x1", "x2")),
        *(("x3", column) for column in ("x1", "x2", "x3")),
    ]
