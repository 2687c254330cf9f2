"""Committed pages have the text of the committed records."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.pages import PAGES, PLOTS, PUBLISHED_RECORDS, SECTIONS, Records, filled
from benchmarks.problems.scan_problems import TableName
from benchmarks.report.plot import panels_of
from benchmarks.report.record import Record, Row, read_record
from benchmarks.report.tables import FIRST_CALL, PATH, provenance
from benchmarks.suites import CALLS, RECURRENT
from minrnn_gen.errors import BadInput

ROOT = Path(__file__).resolve().parents[2]
EMPTY = {
    command: Record(command=f"python -m benchmarks {command}", gpu="none", versions={}, method={})
    for command in PUBLISHED_RECORDS
}


@pytest.fixture(scope="module")
def published() -> Records:
    paths = {command: ROOT / path for command, path in PUBLISHED_RECORDS.items()}
    return {command: read_record(path) for command, path in paths.items() if path.exists()}


@pytest.mark.parametrize("name", PAGES)
def test_the_page_has_the_tables_of_the_record(published: Records, name: str) -> None:
    page = (ROOT / name).read_text(encoding="utf-8")
    assert "<!-- measured: " in page
    assert filled(page, published, name) == page, "run: python -m benchmarks.write_pages"


def test_every_committed_record_can_be_read_and_one_that_was_cut_off_says_so() -> None:
    paths = (ROOT / PUBLISHED_RECORDS["scan"]).parent.glob("*.json")
    # Those of ranks are records of another kind.
    records = {path.name: read_record(path) for path in paths if not path.stem.startswith("distributed")}
    assert Path(PUBLISHED_RECORDS["scan"]).name in records and records[Path(PUBLISHED_RECORDS["scan"]).name].is_complete
    page = "".join((ROOT / name).read_text(encoding="utf-8") for name in PAGES)
    for record in records.values():
        assert provenance(record) in page
        assert record.is_complete or provenance(record).endswith("the run was not completed.")


@pytest.mark.parametrize("command", PLOTS)
def test_the_committed_plot_shows_every_curve_of_the_record(published: Records, command: str) -> None:
    record = published.get(command)
    names = {curve.name for panel in panels_of(record) for curve in panel.curves} if record else set()
    path = ROOT / PLOTS[command]
    assert path.exists() == bool(names), "run: python -m benchmarks.write_pages"
    text = path.read_text(encoding="utf-8") if names else ""
    assert {name for name in names if name not in text} == set()


@pytest.mark.parametrize("records", [EMPTY, {}], ids=["empty", "none"])
@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_is_replaced_as_a_whole_and_nothing_else(section: str, records: Records) -> None:
    page = f"before\n\n<!-- measured: {section} -->\nold\n<!-- end of measured -->\n\nafter\n"
    once = filled(page, records, "page.md")
    assert once.startswith(f"before\n\n<!-- measured: {section} -->\n")
    assert once.endswith("<!-- end of measured -->\n\nafter\n")
    assert "old" not in once
    assert filled(once, records, "page.md") == once
    record, _ = SECTIONS[section]
    assert record == "scan" or f"{section} ".startswith(f"{record} ")
    assert records or f"Not measured yet; `python -m benchmarks {record.split()[0]}` does." in once


def test_a_record_of_dense_cells_has_its_tables() -> None:
    (problem, *_) = RECURRENT.problems("cells", False)
    rows = [
        Row(problem=problem, contender="minrnn-gen", ms=0.25, facts={FIRST_CALL: 1.25, PATH: "persistent"}),
        Row(problem=problem, contender="flashrnn.cuda_fused", failure="not installed"),
    ]
    records = {"recurrent": EMPTY["recurrent"].with_rows(rows)}
    text = filled("<!-- measured: recurrent cells -->\n<!-- end of measured -->\n", records, "page.md")
    assert "| lstm 12 x 64, 16 x 1024 bf16 | 0.250 | not installed | 0.170 | persistent |" in text
    assert "| lstm 12 x 64, 16 x 1024 bf16 | 1.25 |" in text


@pytest.mark.parametrize(("table", "shown"), [("host", "20.0"), ("decode", "1.56")])
def test_calls_are_shown_in_microseconds_and_decoding_by_the_token(table: TableName, shown: str) -> None:
    (problem, *_) = CALLS.problems(table, False)
    rows = [Row(problem=problem, contender="minrnn-gen", ms=0.32 if table == "host" else 0.1)]
    text = filled(
        f"<!-- measured: calls {table} -->\n<!-- end of measured -->\n", {"calls": EMPTY["calls"].with_rows(rows)}, "page.md"
    )
    assert f"| {problem.label} | {shown} |" in text
    assert f"| {'us' if table == 'host' else 'us per token'}: heads x head_dim, batch x time |" in text


def test_an_unknown_section_is_refused() -> None:
    page = "<!-- measured: clasic -->\n<!-- end of measured -->\n"
    with pytest.raises(BadInput, match=r"page\.md: measured: 'clasic' is given \(did you mean 'classic'\?\)"):
        filled(page, EMPTY, "page.md")
