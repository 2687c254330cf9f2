"""The JAX front in the benchmark, on JAX's CPU platform and torch's tensors in host memory."""

from __future__ import annotations

from typing import Any

import pytest
from support.everyday import one_in
from support.fake_gpu import FakeClock, OnHost

from benchmarks.contenders import jax_calls
from benchmarks.harness.rounds import Limits, run_rounds
from benchmarks.problems.scan_problems import Problem, TableName
from benchmarks.report.record import PEAK_MIB, Row
from benchmarks.report.tables import FIRST_CALL, GROWN, RECORDED, TARGETS, left_behind_text, whole_text
from benchmarks.suites import JAX
from minrnn_gen.precision import precision_of

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")


@pytest.fixture(scope="module")
def gpu() -> OnHost:
    return OnHost(pytest.importorskip("torch", exc_type=ImportError))


def problem_of(table: TableName, model: str, heads: int = 1) -> Problem:
    sizes = {"batch": 2, "time": 5, "channels": 8 * heads, "heads": heads}
    task = "forward" if table == "dispatch" else "forward + backward"
    return Problem(table=table, task=task, model=model, precision="bf16", **sizes)  # type: ignore[arg-type]


def measured(problem: Problem, contenders: Any) -> dict[str, Row]:
    return {row.contender: row for row in run_rounds(problem, contenders, FakeClock(), Limits(1, 1))}


@pytest.mark.parametrize("model", one_in(2, ["lstm", "gru", "min_gru"]))
def test_values_and_gradients_are_judged_beside_those_of_jax_and_torch(gpu: OnHost, model: str) -> None:
    problem = problem_of("jit", model)
    rows = measured(problem, jax_calls.contenders(problem, gpu, jax_calls.NAMES, {}))
    cudnn = rows.pop(jax_calls.CUDNN, None)
    assert (cudnn is not None) == (model == "lstm")
    associative = [jax_calls.ASSOCIATIVE] if model == "min_gru" else []
    assert list(rows) == ["minrnn-gen", jax_calls.TORCH_FRONT, jax_calls.LAX_SCAN, *associative]
    for row in rows.values():
        assert (row.failure, row.clock) == (None, "host")
        assert row.errors and row.is_right
    assert cudnn is None or cudnn.failure  # it has no CPU platform
    assert FIRST_CALL in rows["minrnn-gen"].facts and "first call" in whole_text(list(rows.values()))
    # y and the gradient of x at the least.
    elements = problem.batch * problem.time * problem.channels * (2 if model == "min_gru" else 1)
    for name in ("minrnn-gen", jax_calls.LAX_SCAN):
        assert float(rows[name].facts[PEAK_MIB]) * 2**20 > elements * precision_of(problem.precision).storage_bytes


def test_an_ensemble_is_the_heads_of_one_kernel(gpu: OnHost) -> None:
    problem = problem_of("ensemble", "lstm", jax_calls.ENSEMBLE)
    rows = measured(problem, jax_calls.contenders(problem, gpu, (), {}))
    assert list(rows) == ["minrnn-gen", jax_calls.VMAP]
    assert all(row.failure is None and row.errors and row.is_right for row in rows.values())


def test_calls_and_new_traces_leave_nothing_behind(gpu: OnHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_calls, "left_behind", lambda *_: {GROWN: 0, TARGETS: 0, RECORDED: 0})
    problem = problem_of("dispatch", "min_gru")
    rows = measured(problem, jax_calls.contenders(problem, gpu, (), {}))
    assert [name for name in rows if name != jax_calls.BY_PYTHON] == ["minrnn-gen", jax_calls.NOTHING]
    assert left_behind_text(list(rows.values())).endswith(f"| {problem.label} | 0 | 0 | 0 |\n")
    monkeypatch.undo()
    subject = jax_calls.Subject(problem, gpu)  # type: ignore[arg-type]
    left = jax_calls.left_behind(subject, jax_calls._ours(subject), calls=3, retraces=2)
    assert left == {GROWN: 0, TARGETS: left[TARGETS], RECORDED: 0} and left[TARGETS] <= 1


def test_what_is_measured_is_what_people_train() -> None:
    labels = [problem.label for table in JAX.tables for problem in JAX.problems(table, False)]
    assert "lstm 1 x 512, 16 x 1024 bf16 forward + backward" in labels
    assert "gru 1 x 512, 16 x 1024 bf16 forward + backward" in labels
    assert "min_gru 1 x 1536, 8 x 4096 bf16 forward + backward" in labels
    assert all(JAX.problems(table, True) for table in JAX.tables)
