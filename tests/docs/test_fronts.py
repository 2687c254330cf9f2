"""docs/fronts.md: which class of cells and which kernel each front takes: its tables are what calls answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from support import fronts, fronts_page, strategy_fronts
from support.documentation import table
from support.fronts_page import FRONTS, GROUPS, OF_STRATEGIES, PAGE, REASONS, WRITE
from support.uncompiled_kernels import nothing_compiled

from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.plan.classes import CellKind
from minrnn_gen.plan.families import FAMILIES


@pytest.fixture(scope="module")
def rows() -> Iterator[dict[str, fronts.Row]]:
    """Give a kernel for each row, planned once, whose host arrays NumPy computes: nothing is compiled."""
    with nothing_compiled(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CPU", "numpy")
        yield fronts.rows()


def of_classes(column: str) -> dict[str, str]:
    """Return a column of the page's tables of classes, by row."""
    (group,) = (columns for columns in GROUPS.values() if column in columns)
    return {row[0]: row[1 + group.index(column)] for row in table(PAGE, "cell", *group)}


def test_the_tables_have_every_class_and_every_strategy(rows: dict[str, fronts.Row]) -> None:
    assert [column for group in GROUPS.values() for column in group] == list(FRONTS)
    for column in FRONTS:
        assert list(of_classes(column)) == list(fronts.SPECS)
    classes = {(row.kernel.builder.cell_shape.kind, row.kernel.interface.has_vectors) for row in rows.values()}
    # Kernels of n values per channel ask whether a cell is a scan, and no more.
    one_value = {("dense", True), ("block-affine", True)}
    assert classes == {(kind, wide) for kind in get_args(CellKind) for wide in (False, True)} - one_value
    shown = [row[0].strip("`") for row in table(PAGE, "kernel", *strategy_fronts.FRONTS)]
    assert shown == [family.name for family in FAMILIES] and set(shown) == set(strategy_fronts.SERVED)


def test_every_entry_is_yes_or_a_reason_of_the_page() -> None:
    numbered = {int(number): why for number, why in re.findall(r"^(\d+)\. (.+)$", PAGE.read_text(), flags=re.MULTILINE)}
    assert numbered == dict(enumerate((reason.why for reason in (*REASONS, *OF_STRATEGIES)), 1))
    entries = {(column, row): one for column in FRONTS for row, one in of_classes(column).items()}
    for name, *answers in table(PAGE, "kernel", *strategy_fronts.FRONTS):
        entries |= {(column, name.strip("`")): one for column, one in zip(strategy_fronts.FRONTS, answers, strict=True)}
    reasoned = {
        (column, row): f"no ({number})"
        for number, reason in enumerate((*REASONS, *OF_STRATEGIES), 1)
        for column in reason.columns
        for row in reason.rows
    }
    assert reasoned == {place: one for place, one in entries.items() if one != "yes"}


@pytest.mark.parametrize(
    "column",
    [pytest.param(column, marks=pytest.mark.matrix_full if front.is_slow else ()) for column, front in FRONTS.items()],
)
def test_a_front_takes_what_the_table_says(rows: dict[str, fronts.Row], column: str, tmp_path: Path) -> None:
    if needed := FRONTS[column].needs:
        pytest.importorskip(needed)
    assert fronts_page.entries_of_column(rows, column, tmp_path) == of_classes(column), WRITE


@pytest.mark.matrix_full
@pytest.mark.skipif(not has_compiler(), reason="there is no C++ compiler")
@pytest.mark.parametrize("name", fronts.SPECS)
def test_what_is_emulated_is_right(rows: dict[str, fronts.Row], name: str) -> None:
    fronts.verified(rows[name])


def test_an_entry_without_a_reason_fails() -> None:
    with pytest.raises(AssertionError, match="autocast does not take dense: fill it, or say in a sentence why it cannot"):
        fronts_page.entry(False, "autocast", "dense")
    with pytest.raises(AssertionError, match="a reason says that it does not"):
        fronts_page.entry(True, "single step", "both directions")
