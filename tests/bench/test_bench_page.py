"""The page of a record: every problem, contender and curve is in it, and a browser shows it."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from support.browser import assert_is_readable, assert_is_whole, needs_browser
from support.documentation import ROOT

from benchmarks.problems.scan_problems import Problem
from benchmarks.report.page import html_of
from benchmarks.report.plot import panels_of
from benchmarks.report.record import Record, Row, read_record
from benchmarks.report.tables import by_problem
from benchmarks.suites import SUITES

RECORDS = {
    "scan_h200": "scan",
    "selective_h200": "scan",
    "recurrent_h200": "recurrent",
    "recurrent_large_h200": "recurrent",
    "layers_h200": "layers",
    "layer_sizes_h200": "layers",
    "layers_h100": "layers",
    "recurrent_h100": "recurrent",
    "calls_h200": "calls",
    "jax_h200": "jax",
}


def committed(name: str) -> Record:
    return read_record(ROOT / "benchmarks" / "results" / f"{name}.json")


@pytest.mark.parametrize("name", RECORDS)
def test_every_problem_and_every_point_is_in_it(name: str) -> None:
    record = committed(name)
    page = html_of(record, SUITES[RECORDS[name]].titles)
    assert_is_whole(page)
    # Those of ranks are records of another kind.
    paths = (ROOT / "benchmarks" / "results").glob("*.json")
    assert {path.stem for path in paths if not path.stem.startswith("distributed")} == set(RECORDS)
    lines = len(re.findall(r"<tr><td", page))
    assert lines == len(by_problem(record.rows))
    assert page.count("data-says=") == sum(len(curve.sizes) for panel in panels_of(record) for curve in panel.curves)
    assert all(f"<th>{html.escape(row.contender)}</th>" in page for row in record.rows)


def test_the_fastest_correct_time_of_a_row_is_marked() -> None:
    problem = Problem(table="raw", task="forward", precision="fp32", batch=1, time=2, channels=3)
    rows = [
        Row(problem=problem, contender="copy", ms=0.5),
        Row(problem=problem, contender="wrong", ms=0.6, errors={"y": 1.0}, error_allowed=1e-6),
        Row(problem=problem, contender="slow", ms=3.0, errors={"y": 0.0}, error_allowed=1e-6),
        Row(problem=problem, contender="fast", ms=2.0, errors={"y": 0.0}, error_allowed=1e-6),
        Row(problem=problem, contender="<b>", failure="<script>alert(1)</script> is a sentence"),
    ]
    record = Record(command="python -m benchmarks scan", gpu="none", versions={}, method={}, rows=tuple(rows))
    page = html_of(record, {"raw": "Scans"})
    assert re.findall(r'<td class="pick"[^>]*>([^<]*)', page) == ["2.00 (25 %, 0e+00)"]
    assert page.count("<script") == 1 and "&lt;script&gt;" in page and "<b>" not in page


@needs_browser
def test_a_browser_shows_it(tmp_path: Path) -> None:
    assert_is_readable(html_of(committed("scan_h200"), SUITES["scan"].titles), tmp_path)
