"""`python -m benchmarks` around the measurement: refused options, printed tables, and the record of a stopped run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from support.command_runner import Command
from support.fake_gpu import OnHost

import benchmarks.__main__ as benchmarks_program
from benchmarks import suites
from benchmarks.harness import gpu, session
from benchmarks.harness.rounds import Arrays, Limits, Run
from benchmarks.harness.session import Suite
from benchmarks.problems.scan_problems import Problem, problems_of
from benchmarks.problems.share import Share, problems_of_share
from benchmarks.report.page import html_of
from benchmarks.report.record import COPY, Row, read_record
from benchmarks.report.tables import time_text, whole_text
from benchmarks.suites import SUITES
from minrnn_gen.cli import main
from minrnn_gen.errors import ToolchainMissing

Measure = Callable[[session.Session, Problem], tuple[Row, ...]]


def answer(_: session.Session, problem: Problem) -> tuple[Row, ...]:
    return (
        Row(problem=problem, contender=COPY, ms=1.0),
        Row(problem=problem, contender="somebody", ms=2.0, errors={"y": 0.0}, error_allowed=1e-6),
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[Measure], None]:
    """Return the function that replaces the GPU by a fake and the measurement by a function."""

    def put(measure: Measure) -> None:
        monkeypatch.setattr(gpu, "open_gpu", lambda: SimpleNamespace(name="a GPU that is none"))
        monkeypatch.setattr(session.Session, "measure", measure)

    return put


@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES.keys())
def test_every_table_is_printed_and_recorded(
    command: Command, measured: Callable[[Measure], None], suite: Suite, tmp_path: Path
) -> None:
    measured(answer)
    path = tmp_path / "record.json"
    page = tmp_path / "record.html"
    said = command(suite.command, "--quick", "--baseline", "none", "--json", path, "--html", page)
    assert (said.status, said.error) == (0, "")
    record = read_record(path)
    assert record.is_complete and page.read_text(encoding="utf-8") == html_of(record, suite.titles)
    assert [row.problem for row in record.rows[::2]] == [
        problem for table in suite.tables for problem in suite.problems(table, True)
    ]
    assert record.command == f"python -m benchmarks {suite.command} --quick --baseline none"
    for title in suite.titles.values():
        assert title in said.out
    answers = [row for row in record.rows if row.contender == "somebody"]
    # One table has errors, and one shares of others' times.
    timed = [row for row in answers if row.problem.table not in ("accuracy", "sizes")]
    for time, count in Counter(time_text(row) for row in timed).items():
        assert said.out.count(f" {time} (50 %, 0e+00)") == count
    assert said.out.count("y 0.0e+00") == sum(row.problem.table == "accuracy" for row in answers)
    assert f"Made by `{record.command}` on an a GPU that is none" in said.out


@pytest.mark.parametrize(("name", "table"), [(name, table) for name, suite in SUITES.items() for table in suite.tables])
def test_one_table_can_be_had_alone(command: Command, measured: Callable[[Measure], None], name: str, table: str) -> None:
    measured(answer)
    said = command(name, "--quick", "--only", table, "--baseline", "none")
    titles = SUITES[name].titles
    assert [title for title in titles.values() if title in said.out] == [
        title for other, title in titles.items() if other == table
    ]


class Timed(OnHost):
    """Torch's CPU as the GPU of a whole run."""

    name = "no GPU"

    def time(self, run: Run, on_host: bool) -> tuple[float, Arrays]:
        assert on_host
        return 1.0, run()

    def release(self) -> None:
        pass


def test_layers_are_measured_printed_and_recorded(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    monkeypatch.setattr(gpu, "open_gpu", lambda: Timed(torch))
    monkeypatch.setattr(suites, "LAYERS", replace(suites.LAYERS, limits=Limits(1, 1)))
    path = tmp_path / "record.json"
    said = command("layers", "--quick", "--only", "scans", "--baseline", "torch.log_space", "--json", path)
    assert (said.status, said.error) == (0, "")
    record = read_record(path)
    assert record.is_complete and record.of_table("scans") == record.rows
    assert [(row.contender, row.clock, row.failure) for row in record.rows] == [
        (name, "host", None) for _ in range(4) for name in ("minrnn-gen", "torch.log_space")
    ]
    assert all(row.errors and row.problem.goal == 0.7 for row in record.rows)
    assert whole_text(record.rows) in said.out
    assert record.method["clock"].startswith("the host's")


def test_a_run_that_is_stopped_leaves_what_it_has(
    command: Command, measured: Callable[[Measure], None], tmp_path: Path
) -> None:
    problems = problems_of("raw", quick=True)

    def stopped(running: session.Session, problem: Problem) -> tuple[Row, ...]:
        if problem == problems[1]:
            raise KeyboardInterrupt
        return answer(running, problem)

    measured(stopped)
    path = tmp_path / "record.json"
    said = command("scan", "--quick", "--baseline", "none", "--json", path)
    assert said.status == 130
    assert problems[0].label in said.out
    assert "the run was not completed" in said.out
    record = read_record(path)
    assert {row.problem for row in record.rows} == {problems[0]}
    assert not record.is_complete


def test_a_file_that_cannot_be_is_refused_before_anything_is_measured(
    command: Command, measured: Callable[[Measure], None], tmp_path: Path
) -> None:
    def never(*_: object) -> tuple[Row, ...]:
        raise AssertionError("measured")

    measured(never)
    for option in ("--json", "--html"):
        said = command("scan", "--baseline", "none", f"{option}={tmp_path}")
        assert said.status == 2
        assert said.error.startswith(f"error: {option}: ")


def test_what_is_missing_is_said_in_a_sentence(command: Command) -> None:
    try:
        gpu.open_gpu()
    except ToolchainMissing:
        said = command("scan")
        assert said.status == 1
        assert said.error.startswith("error: the benchmark needs ")
    else:
        pytest.skip("nothing is missing here: torch sees a GPU")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("scan", "--baseline", "accelerated_scan.wrap"), "did you mean 'accelerated_scan.warp'?"),
        (("scan", "--only", "sweep"), "invalid value for '--only'"),
        (("scan", "--baseline-seconds", "0"), "invalid value for '--baseline-seconds'"),
        (("recurrent", "--baseline", "flashrnn.cuda_fuse"), "did you mean 'flashrnn.cuda_fused'?"),
        (("recurrent", "--only", "raw"), "invalid value for '--only'"),
        (("calls", "--only", "cells"), "invalid value for '--only'"),
        (("calls", "--baseline", "torch.n"), "did you mean 'torch.nn'?"),
        (("calls", "--plot", "calls.svg"), "--plot"),
        (("layers", "--only", "host"), "invalid value for '--only'"),
        (("layers", "--baseline", "torch.compil"), "did you mean 'torch.compile'?"),
    ],
)
def test_options_are_checked(command: Command, arguments: tuple[str, ...], sentence: str) -> None:
    said = command(*arguments)
    assert said.status == 2
    assert sentence in said.error


def test_what_takes_time_is_shared_out_by_name() -> None:
    shares = gpu.shares_of([("gemm", 3.0), ("scan", 6.0), ("gemm", 1.0), ("nothing", 0.0)])
    assert shares == {"gemm": 0.4, "scan": 0.6}
    assert gpu.shares_of([]) == {}


def test_versions_are_those_installed() -> None:
    import numpy

    assert gpu.versions()["numpy"] == numpy.__version__


def commands_of(program: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command line and of all its commands."""
    yield words
    for name, inner in getattr(program, "commands", {}).items():
        yield from commands_of(inner, (*words, name))


@pytest.mark.parametrize("program", [main.PROGRAM, benchmarks_program.PROGRAM])
def test_every_command_of_both_programs_helps_alike(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A module that Python runs has no name by which a shell could complete it."""
    app = main.app if program == main.PROGRAM else benchmarks_program.app
    assert main.run_command(app, program, []) == 0
    assert main.run_command(app, program, ["--help"]) == 0
    assert len({*capsys.readouterr().out.split("Usage: ")}) == 2  # the same twice
    for words in commands_of(typer.main.get_command(app)):
        said = []
        for option in ("-h", "--help"):
            assert main.run_command(app, program, [*words, option]) == 0, (words, option)
            said.append(capsys.readouterr().out)
        assert said[0] == said[1] and said[0].lstrip().startswith(f"Usage: {' '.join((program, *words))} "), words
        assert ("completion" in said[0]) == (program == main.PROGRAM and not words), words


def sizes_of(problem: Problem) -> dict[str, Any]:
    return problem.model_dump(exclude={"task", "precision", "autocast", "limit_ms", "goal"})


@pytest.mark.parametrize("name", ["scan", "recurrent", "layers"])
@given(count=st.integers(1, 6))
def test_shares_are_all_problems_and_whole_shapes(name: str, count: int) -> None:
    suite = SUITES[name]
    for table in suite.tables:
        every = suite.problems(table, False)
        shares = [problems_of_share(every, Share(number, count)) for number in range(1, count + 1)]
        assert Counter(problem for share in shares for problem in share) == Counter(every)
        number_of = {problem: number for number, share in enumerate(shares) for problem in share}
        for one, other in pairwise(every):
            if sizes_of(one) == sizes_of(other):
                assert number_of[one] == number_of[other], "they share inputs and results in float64"


def test_shares_are_joined_to_the_record_of_all(command: Command, measured: Callable[[Measure], None], tmp_path: Path) -> None:
    measured(answer)
    asked = ("layers", "--only", "token", "--only", "weights", "--baseline", "none")
    parts = [tmp_path / f"{number}.json" for number in (1, 2)]
    assert command(*asked, "--json", tmp_path / "whole.json").status == 0
    for number, part in enumerate(parts, 1):
        assert command(*asked, "--share", f"{number}/2", "--json", part).status == 0
    said = command("join", tmp_path / "joined.json", *reversed(parts))
    assert (said.status, said.error) == (0, "")
    whole, joined = read_record(tmp_path / "whole.json"), read_record(tmp_path / "joined.json")
    assert (joined.command, joined.is_complete) == (f"{whole.command}, in 2 shares", True)
    assert [row for table in SUITES["layers"].tables for row in whole.of_table(table)] == list(joined.rows)


def test_other_parts_and_other_shares_are_refused(
    command: Command, measured: Callable[[Measure], None], tmp_path: Path
) -> None:
    measured(answer)
    for name in ("layers", "scan"):
        assert command(name, "--quick", "--baseline", "none", "--json", tmp_path / f"{name}.json").status == 0
    said = command("join", tmp_path / "joined.json", tmp_path / "layers.json", tmp_path / "scan.json")
    assert said.status == 2 and "parts differ in their command" in said.error
    for share in ("0/4", "5/4", "1", "1/0", "a/b"):
        said = command("layers", "--share", share)
        assert said.status == 2 and f"'{share}' is given" in said.error
