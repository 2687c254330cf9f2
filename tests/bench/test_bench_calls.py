"""Single calls in the benchmark: layers on torch's tensors in host memory, and steps of decoding against float64."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from support.everyday import one_in
from support.fake_gpu import FakeClock, OnHost

from benchmarks.contenders import decoding, host_calls, torch_cells
from benchmarks.harness.gpu import Gpu
from benchmarks.harness.rounds import Arrays, Limits, run_rounds
from benchmarks.problems import call_problems
from benchmarks.problems.scan_problems import Problem, Task
from benchmarks.report.record import Row

BASELINES = (torch_cells.NAME,)


@pytest.fixture(scope="module")
def gpu() -> OnHost:
    return OnHost(pytest.importorskip("torch", exc_type=ImportError))


def host_problem(model: str, task: Task = "forward", heads: int = 2) -> Problem:
    sizes = {"batch": 2, "time": 3, "channels": 16, "inputs": 12}
    return Problem(table="host", task=task, model=model, precision="bf16", heads=heads, **sizes)


def decode_problem(model: str, heads: int = 1) -> Problem:
    sizes = {"batch": 2, "time": 9, "channels": 16}
    return Problem(table="decode", task="forward", model=model, precision="bf16", heads=heads, **sizes)


def measured(problem: Problem, contenders: Any) -> dict[str, Row]:
    return {row.contender: row for row in run_rounds(problem, contenders, FakeClock(), Limits(2, 2))}


@pytest.mark.parametrize(
    ("model", "heads", "task"),
    one_in(
        9,
        [
            (*model, task)
            for model in (("lstm", 2), ("gru", 2), ("min_gru", 1))
            for task in ("forward", "forward, recorded", "forward + backward")
        ],
    ),
)
def test_a_layer_is_called_on_the_host_s_clock(gpu: OnHost, model: str, heads: int, task: Task) -> None:
    problem = host_problem(model, task, heads)
    rows = measured(problem, host_calls.contenders(problem, gpu, BASELINES, {}))
    theirs = [] if model == "min_gru" else ["torch.nn bf16", "torch.nn fp16"]
    assert list(rows) == ["minrnn-gen", *theirs]
    for row in rows.values():
        assert (row.failure, row.clock, row.rounds) == (None, "host", 2)
    assert {rows[name].facts[host_calls.FLAT] for name in theirs} <= {"yes", "no"}


@pytest.mark.parametrize("task", one_in(2, ["forward", "forward, recorded", "forward + backward"]))
def test_what_autograd_records_is_what_the_task_says(gpu: OnHost, task: Task) -> None:
    problem = host_problem("lstm", task)
    for contender in host_calls.contenders(problem, gpu, BASELINES, {}):
        results = contender.prepare()()
        assert results["y"].shape == (2, 3, 16)
        assert (results["y"].grad_fn is not None) == (task != "forward")
        assert ("dx" in results) == (task == "forward + backward")
        if "dx" in results:
            assert results["dx"].shape == (2, 3, 12)


@pytest.mark.parametrize("model", one_in(2, ["lstm", "gru"]))
def test_all_contenders_decode_what_float64_does(gpu: OnHost, model: str) -> None:
    problem = decode_problem(model)
    rows = measured(problem, decoding.contenders(problem, gpu, BASELINES, {}))
    ours = ["minrnn-gen", "minrnn-gen eager", "minrnn-gen projected"]
    assert list(rows) == [*ours, "torch.nn cell bf16", "torch.nn layer bf16", "torch.nn layer fp16"]
    for name, row in rows.items():
        assert set(row.errors) == {"y"}, row.failure
        assert row.is_right, row
        assert row.clock == ("host" if name == "minrnn-gen eager" else "device events")


@pytest.mark.parametrize(("model", "heads", "columns"), [("min_gru", 1, 2), ("lstm", 2, 3)])
def test_cells_that_torch_has_not_are_decoded_alone(gpu: OnHost, model: str, heads: int, columns: int) -> None:
    problem = decode_problem(model, heads)
    rows = measured(problem, decoding.contenders(problem, gpu, BASELINES, {}))
    assert len(rows) == columns
    for row in rows.values():
        assert set(row.errors) == {"y"}, row.failure
        assert row.is_right, row


def test_a_state_that_is_lost_shows(gpu: OnHost) -> None:
    problem = decode_problem("lstm")
    inputs = decoding.Inputs(problem, gpu)
    kernel, R = decoding.minrnn_gen.compile(problem.spec), inputs.array("R")
    steps = [inputs.array("x")[:, step].contiguous() for step in range(problem.time)]
    forgetful = decoding.decoded(lambda x_t, _: kernel.step(x_t, R), steps)
    assert decoding.judge_of_steps(gpu, inputs.judged)(forgetful())["y"] > 0.05


def test_without_baselines_there_is_only_ours(gpu: OnHost) -> None:
    for problem, table in ((host_problem("lstm"), host_calls), (decode_problem("lstm"), decoding)):
        assert {contender.name.partition(" ")[0] for contender in table.contenders(problem, gpu, (), {})} == {"minrnn-gen"}


@pytest.mark.parametrize("quick", [False, True])
def test_problems_are_distinct_and_labels_tell_them_apart(quick: bool) -> None:
    for table in call_problems.TABLES:
        problems = call_problems.problems_of(table, quick)
        assert len({problem.label for problem in problems}) == len(problems) > 0
        assert {problem.table for problem in problems} == {table}
        assert {problem.precision for problem in problems} == {"bf16"}


def test_a_graph_is_captured_after_a_run_and_replayed_without_another() -> None:
    seen: list[str] = []

    @contextmanager
    def noted(name: str) -> Iterator[None]:
        seen.append(name)
        yield
        seen.append(f"end of {name}")

    stream = SimpleNamespace(wait_stream=lambda _: None)
    cuda = SimpleNamespace(
        Stream=lambda: stream,
        current_stream=lambda: stream,
        stream=lambda _: noted("side"),
        synchronize=lambda: seen.append("idle"),
        CUDAGraph=lambda: SimpleNamespace(replay=lambda: seen.append("replay")),
        graph=lambda _: noted("capture"),
    )

    def run() -> Arrays:
        seen.append("run")
        return {"y": len(seen)}

    replayed = Gpu(SimpleNamespace(cuda=cuda)).graph_of(run)
    before = ["side", "run", "end of side", "idle", "capture", "run", "end of capture"]
    assert seen == before
    assert replayed() == replayed() == {"y": 6}
    assert seen == [*before, "replay", "replay"]
    # Memory that the graph reads is not given to others while it is there.
    captured_run = weakref.ref(run)
    del run
    gc.collect()
    assert captured_run() is not None
    del replayed
    gc.collect()
    assert captured_run() is None
