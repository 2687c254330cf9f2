"""The committed pages are what the committed record gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from minrnn_gen.bench.pages import PAGES, PLOT, PUBLISHED_RECORD, SECTIONS, filled
from minrnn_gen.bench.plot import panels_of
from minrnn_gen.bench.record import Record, read_record
from minrnn_gen.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
EMPTY = Record(command="minrnn-gen bench scan", gpu="none", versions={}, method={})


@pytest.fixture(scope="module")
def published() -> Record:
    return read_record(ROOT / PUBLISHED_RECORD)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_the_tables_of_the_record(published: Record, name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert "<!-- measured: " in page
    assert filled(page, published, name) == page, "run: python benchmarks/write_pages.py"


def test_every_committed_record_can_be_read_and_was_completed() -> None:
    records = {path.name: read_record(path) for path in (ROOT / PUBLISHED_RECORD).parent.glob("*.json")}
    assert Path(PUBLISHED_RECORD).name in records
    assert [name for name, record in records.items() if not record.is_complete] == []


def test_the_committed_plot_shows_every_curve_of_the_record(published: Record) -> None:
    names = {curve.name for panel in panels_of(published) for curve in panel.curves}
    path = ROOT / PLOT
    assert path.exists() == bool(names), "run: python benchmarks/write_pages.py"
    text = path.read_text(encoding="utf-8") if names else ""
    assert {name for name in names if name not in text} == set()


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_is_replaced_as_a_whole_and_nothing_else(section: str) -> None:
    page = f"before\n\n<!-- measured: {section} -->\nold\n<!-- end of measured -->\n\nafter\n"
    once = filled(page, EMPTY, "page.md")
    assert once.startswith(f"before\n\n<!-- measured: {section} -->\n")
    assert once.endswith("<!-- end of measured -->\n\nafter\n")
    assert "old" not in once
    assert filled(once, EMPTY, "page.md") == once


def test_a_section_nobody_knows_is_refused() -> None:
    page = "<!-- measured: clasic -->\n<!-- end of measured -->\n"
    with pytest.raises(BadInput, match=r"page\.md: measured: 'clasic' is given \(did you mean 'classic'\?\)"):
        filled(page, EMPTY, "page.md")
