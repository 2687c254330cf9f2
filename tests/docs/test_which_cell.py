"""The page that says which cell to take: cells with the class that is proved of each, and the version to cite."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from support.cell_evaluation import built_in
from support.documentation import ROOT

import minrnn_gen
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.files import library_folders
from minrnn_gen.plan.classes import FAMILY_OF_CLASS

PAGE = (ROOT / "docs/which-cell.md").read_text(encoding="utf-8")
ROWS = [
    (name, columns[3].strip())
    for line in PAGE.splitlines()
    if len(columns := line.split("|")) == 6
    for name in re.findall(r"`(\w+)`", columns[2])
]


@pytest.mark.parametrize(("name", "said"), ROWS)
def test_a_cell_of_the_page_is_of_the_class_that_is_said(name: str, said: str) -> None:
    assert FAMILY_OF_CLASS[classify(built_in(name)).kind] == said


def test_every_class_and_the_most_used_cells_have_a_row() -> None:
    assert {said for _, said in ROWS} == set(FAMILY_OF_CLASS.values())
    assert (
        {"min_gru", "min_lstm", "lstm", "gru", "slstm"}
        <= {name for name, _ in ROWS}
        <= {*chain.from_iterable(library_folders())}
    )


def test_the_citation_has_the_version() -> None:
    assert f"version = {{{minrnn_gen.__version__}}}" in PAGE
