"""Records go to JSON and back, and a stopped run leaves the rows it has measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.session import PREPARE_SECONDS, run_tables, too_slow
from benchmarks.problems.scan_problems import TABLES, Problem, problems_of
from benchmarks.report.record import Record, Row, read_record, write_record
from benchmarks.suites import SCAN, SUITES
from minrnn_gen.errors import BadInput

EMPTY = Record(command="python -m benchmarks scan", gpu="none", versions={"numpy": "2"}, method={"time": "median"})
FINITE = st.floats(1e-9, 1e9)
ROWS = st.builds(
    Row,
    problem=st.sampled_from(
        [problem for suite in SUITES.values() for table in suite.tables for problem in suite.problems(table, False)]
    ),
    contender=st.text(max_size=9),
    ms=st.none() | FINITE,
    quartiles_ms=st.none() | st.tuples(FINITE, FINITE),
    rounds=st.integers(0, 99),
    errors=st.dictionaries(st.sampled_from(["y", "da"]), st.none() | FINITE),
    failure=st.none() | st.text(max_size=9),
    facts=st.dictionaries(st.text(max_size=3), st.integers(0, 9) | st.text(max_size=3)),
)


@given(st.lists(ROWS, max_size=4), st.booleans())
def test_a_record_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], is_complete: bool
) -> None:
    path = tmp_path_factory.mktemp("record") / "new" / "record.json"
    record = EMPTY.with_rows(rows)
    record = record.completed() if is_complete else record
    write_record(record, path)
    assert read_record(path) == record
    assert [file.name for file in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": 1}', '{"rows": [{}]}', "\x00", '{"surprise": 1}'])
def test_what_is_no_record_is_refused_in_a_sentence(tmp_path: Path, content: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=r"record\.json.*give a file that"):
        read_record(path)


def test_files_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_record(tmp_path / "missing.json")
    with pytest.raises(BadInput, match=r"--json: .*cannot be written"):
        write_record(EMPTY, tmp_path)


def test_a_stopped_run_has_kept_every_shape_before() -> None:
    problems = problems_of("raw", quick=True) + problems_of("cells", quick=True)
    kept: list[Record] = []

    def measure(problem: Problem) -> tuple[Row, ...]:
        if problem == problems[-1]:
            raise KeyboardInterrupt
        return (Row(problem=problem, contender="a", ms=1.0),)

    with pytest.raises(KeyboardInterrupt):
        run_tables(SCAN, ("raw", "cells"), True, EMPTY, measure, lambda record, _: kept.append(record))
    assert [len(record.rows) for record in kept] == list(range(1, len(problems)))
    assert not kept[-1].is_complete


def test_a_finished_run_says_so() -> None:
    kept: list[Record] = []
    record = run_tables(SCAN, TABLES, True, EMPTY, lambda _: (), lambda record, _: kept.append(record))
    assert record.is_complete
    assert kept[-1] == record


def test_a_baseline_that_takes_too_long_to_prepare_is_left_out_afterwards() -> None:
    (problem, *_) = problems_of("raw")
    rows = [
        Row(problem=problem, contender="slow", ms=1.0, prepare_seconds=PREPARE_SECONDS + 1),
        Row(problem=problem, contender="slow and broken", failure="no", prepare_seconds=PREPARE_SECONDS + 1),
        Row(problem=problem, contender="fast", ms=1.0, prepare_seconds=PREPARE_SECONDS - 1),
        Row(problem=problem, contender="ours", ms=1.0, prepare_seconds=PREPARE_SECONDS + 1),
    ]
    dropped = too_slow(rows, {"slow", "slow and broken", "fast"})
    assert set(dropped) == {"slow", "slow and broken"}
    assert dropped["slow"] == "prepared for 61 s at 8 x 1024 x 1536 fp32, longer than 60 s"
