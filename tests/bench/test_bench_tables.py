"""Tables show the times of rows, or their failures."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.problems.scan_problems import TABLES, Problem, problems_of
from benchmarks.report.record import COPY, Record, Row
from benchmarks.report.tables import cell_text, milliseconds, provenance, shares_text, table_text

SHORT = Problem(table="raw", task="forward", precision="fp32", batch=8, time=1024, channels=1536)
LONG = SHORT.model_copy(update={"time": 4096, "task": "forward + backward"})
COPIED = Row(problem=SHORT, contender=COPY, ms=0.5)


def row(problem: Problem = SHORT, name: str = "ours", ms: float = 1.0, error: float | None = 1e-7, **more: object) -> Row:
    return Row.model_validate(
        {"problem": problem, "contender": name, "ms": ms, "errors": {"y": error}, "error_allowed": 1e-6, **more}
    )


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


@given(st.floats(1e-3, 1e5))
def test_times_have_three_digits_and_no_exponent(ms: float) -> None:
    text = milliseconds(ms)
    assert re.fullmatch(r"\d+(\.\d+)?", text)
    assert float(text) == pytest.approx(ms, rel=5.001e-3)
    assert len(text.replace(".", "").lstrip("0")) >= 3


def test_a_cell_has_time_share_and_error() -> None:
    assert cell_text(row(), COPIED, {}) == "1.00 (50 %, 1e-07)"
    assert cell_text(row(), None, {}) == "1.00 (1e-07)"
    assert cell_text(COPIED, COPIED, {}) == "0.500"


@given(st.one_of(st.none(), st.floats(1.001e-6, 1e30)))
def test_a_wrong_result_shows_its_error_and_not_its_time(error: float | None) -> None:
    text = cell_text(row(ms=0.123, error=error), COPIED, {})
    assert "0.123" not in text
    assert text == ("error NaN" if error is None else f"error {error:.1e}")


def test_the_worst_of_several_results_decides() -> None:
    both = row().model_copy(update={"errors": {"y": 1e-8, "da": 1e-3}})
    assert cell_text(both, None, {}) == "error 1.0e-03"
    assert cell_text(both.model_copy(update={"errors": {"y": 1e-8, "da": None}}), None, {}) == "error NaN"


def test_failures_are_cells_and_long_ones_notes() -> None:
    rows = [
        COPIED,
        Row(problem=SHORT, contender="a", failure="not installed"),
        Row(problem=SHORT, contender="b", failure="RuntimeError: sizes | must be powers of two"),
        Row(problem=LONG, contender="b", failure="RuntimeError: sizes | must be powers of two"),
        row(LONG),
    ]
    lines = table_text(rows).splitlines()
    assert cells(lines[0]) == ["batch x time x channels", COPY, "a", "b", "ours"]
    assert cells(lines[2]) == ["8 x 1024 x 1536 fp32", "0.500", "not installed", "fails [1]", ""]
    assert cells(lines[3]) == ["8 x 4096 x 1536 fp32 forward + backward", "", "", "fails [1]", "1.00 (1e-07)"]
    assert lines[-1].rstrip() == "[1] b: RuntimeError: sizes \\| must be powers of two"


def test_kernels_are_listed_by_their_share() -> None:
    text = shares_text([row(), row(shares={"gemm": 0.25, "scan_forward": 0.75})])
    assert [cells(line)[1:] for line in text.splitlines()[2:]] == [["`scan_forward`", "75 %"], ["`gemm`", "25 %"]]
    assert shares_text([row()]) == ""


def test_provenance_names_the_command_and_an_unfinished_run() -> None:
    record = Record(command="python -m benchmarks scan --quick", gpu="H", driver="1.2", versions={"torch": "2"}, method={})
    assert provenance(record.completed()) == "Made by `python -m benchmarks scan --quick` on an H, driver 1.2 (torch 2)."
    assert "not completed" in provenance(record)


@pytest.mark.parametrize("quick", [False, True])
def test_problems_are_distinct_and_labels_tell_them_apart(quick: bool) -> None:
    for table in TABLES:
        problems = problems_of(table, quick)
        assert len({problem.label for problem in problems}) == len(problems) > 0
        assert {problem.table for problem in problems} == {table}


def test_every_byte_is_counted_once() -> None:
    # 3 words a step for a scan, 8 with gradients; 3 and 4 for the cells, 6 and 8 for their backward.
    assert [problem.words for problem in (SHORT, LONG)] == [3, 8]
    counted = {(problem.model, problem.task): problem.words for problem in problems_of("cells")}
    assert counted == {
        ("min_gru", "forward"): 3,
        ("min_lstm", "forward"): 4,
        ("min_gru", "backward"): 6,
        ("min_lstm", "backward"): 8,
    }
    # dt, x, z and y; and dt, x, z, dy and three gradients.
    assert {problem.task: problem.words for problem in problems_of("selective")} == {
        "forward": 4,
        "forward + backward": 11,
        "step": 4,
    }


def test_a_build_that_stops_at_a_command_says_so_without_the_command() -> None:
    notes: dict[str, int] = {}
    text = cell_text(Row(problem=SHORT, contender="b", failure="[7/8] /usr/bin/g++ a.o b.o -shared -o b.so"), None, notes)
    assert text == "fails [1]"
    assert list(notes) == ["b: its build stopped in step 7 of 8, without a message"]
