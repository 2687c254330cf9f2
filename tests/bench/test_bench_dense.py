"""Dense cells in the benchmark: the float64 reference, both ways of ours, and other libraries' orders, on arrays that pass for
tensors on a GPU."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.everyday import one_in
from support.examples import examples
from support.fake_gpu import FakeClock, FakeGpu, OnHost, tensor, torch
from support.patience import within
from support.uncompiled_kernels import planned_again
from test_bench_contenders import KernelOnTensors

import minrnn_gen
from benchmarks import suites
from benchmarks.contenders import dense, flash, flash_build, torch_cells, waiting_cells
from benchmarks.harness.rounds import Arrays, Limits, run_rounds
from benchmarks.problems import dense_problems
from benchmarks.problems.scan_problems import Problem, TableName, Task
from benchmarks.reference.dense_inputs import Inputs, ProjectedInputs
from benchmarks.reference.dense_reference import DENSE_REFERENCES, DenseReference
from benchmarks.report.record import Row
from benchmarks.report.tables import FIRST_CALL
from minrnn_gen.errors import ToolchainMissing
from minrnn_gen.precision import error_allowed, precision_of

CELLS = sorted(DENSE_REFERENCES)
STEP = 1e-6
HEADS, UNITS = 2, 3


def problem_of(model: str, task: Task = "forward", table: TableName = "cells", heads: int = 2) -> Problem:
    return Problem(
        table=table, task=task, model=model, precision="fp32", batch=3, time=7, channels=heads * 8, heads=heads
    )  # fmt: skip


def arrays_of(cell: DenseReference, time: int, seed: int) -> tuple[Any, Any, Any]:
    """Return x [T, G, N, B, D], R and dy."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((time, len(cell.gates), HEADS, 2, UNITS))
    R = rng.standard_normal((len(cell.gates), HEADS, UNITS, UNITS)) * 0.6
    return x, R, rng.standard_normal((time, HEADS, 2, UNITS))


@pytest.mark.parametrize("name", CELLS)
def test_the_reference_is_the_cell_of_the_library(name: str) -> None:
    cell = DENSE_REFERENCES[name]
    kernel = minrnn_gen.compile({"model": name, "hidden_size": HEADS * UNITS, "heads": HEADS, "precision": "fp64"})
    assert (kernel.gates, kernel.states) == (cell.gates, cell.states)
    x, R, _ = arrays_of(cell, 30, 1)
    forward = cell.run(np, x, R)
    y, states = kernel.reference(x.transpose(3, 0, 1, 2, 4).reshape(2, 30, len(cell.gates), -1), R)
    np.testing.assert_allclose(forward.y.transpose(2, 0, 1, 3).reshape(y.shape), y, rtol=1e-10, atol=1e-13)
    for state, last in forward.states.items():
        np.testing.assert_allclose(last.swapaxes(0, 1).reshape(2, -1), states[state], rtol=1e-10, atol=1e-13)


def without_stabiliser(x: Any, R: Any) -> Any:
    """Return y of slstm with n and c not divided by exp(m); the maximum of n and 1 binds only where m keeps n at 1."""
    h, c, n = (np.zeros(x.shape[2:]) for _ in range(3))
    y = []
    for gates in x:
        i, f, z, o = (w + np.einsum("noi,nbi->nbo", r, h) for w, r in zip(gates, R, strict=True))
        forget = 1 / (1 + np.exp(-f))
        c, n = forget * c + np.exp(i) * np.tanh(z), forget * n + np.exp(i)
        h = c / n / (1 + np.exp(-o))
        y.append(h)
    return np.stack(y)


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_slstm_is_that_of_its_paper_without_the_stabiliser(time: int, seed: int) -> None:
    x, R, _ = arrays_of(DENSE_REFERENCES["slstm"], time, seed)
    np.testing.assert_allclose(DENSE_REFERENCES["slstm"].run(np, x, R).y, without_stabiliser(x, R), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CELLS)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(20))
def test_gradients_of_the_reference_are_differences(name: str, time: int, seed: int) -> None:
    cell = DENSE_REFERENCES[name]
    x, R, dy = arrays_of(cell, time, seed)
    # m is detached, which changes nothing: y does not depend on it but through rounding.
    along_x, along_R, _ = arrays_of(cell, time, seed + 1)
    ahead, behind = ((dy * cell.run(np, x + s * STEP * along_x, R + s * STEP * along_R).y).sum() for s in (1, -1))
    dx, dR = cell.gradients(np, cell.run(np, x, R), R, dy)
    expected = (dx * along_x).sum() + (dR * along_R).sum()
    assert (ahead - behind) / (2 * STEP) == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def on_tensors(builder: Any) -> KernelOnTensors:
        return KernelOnTensors(kernel_from(builder))

    kernel_from = dense.kernel_from
    monkeypatch.setattr(dense, "kernel_from", on_tensors)


def measured(problem: Problem, contenders: Any) -> dict[str, Row]:
    return {row.contender: row for row in run_rounds(problem, contenders, FakeClock(), Limits(1, 1))}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("task", ["forward", "forward + backward"])
@pytest.mark.parametrize("model", one_in(2, CELLS))
def test_ours_is_right_by_both_paths(model: str, task: Task) -> None:
    problem = problem_of(model, task)
    rows = measured(problem, dense.contenders(problem, FakeGpu(), (), {}))
    assert list(rows) == list(dense.OURS)
    for row in rows.values():
        assert set(row.errors) == ({"y"} if task == "forward" else {"y", "dx", "dR"}), row.failure
        assert row.is_right, row
        assert float(row.facts[FIRST_CALL]) > 0


@pytest.mark.usefixtures("kernels")
def test_the_stepwise_path_runs_where_all_steps_would_fit_one_launch() -> None:
    problem = problem_of("lstm").model_copy(update={"precision": "fp16", "channels": 128, "time": 2})
    with planned_again():
        rows = measured(problem, dense.contenders(problem, FakeGpu(), (), {}))
    assert {name: row.facts["path"] for name, row in rows.items()} == {
        "minrnn-gen": "persistent",
        "minrnn-gen alternating": "alternating",
    }
    assert all(row.is_right for row in rows.values())


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("model", "results"), [("lstm", {"y", "c"}), ("slstm", {"y", "c", "n"})])
def test_accuracy_is_of_y_and_the_last_states(model: str, results: set[str]) -> None:
    problem = problem_of(model, table="accuracy")
    gates = Inputs(problem, FakeGpu()).array("x").mean(axis=(0, 1, 3))
    assert np.asarray(gates)[1] > 2, "f is the second gate, and remembers"
    (row,) = measured(problem, dense.contenders(problem, FakeGpu(), (), {})).values()
    assert set(row.errors) == results, row.failure
    assert row.is_right, row


@pytest.mark.parametrize("task", ["forward", "forward + backward"])
@pytest.mark.parametrize("model", ["lstm", "gru", "elman"])
def test_layers_of_torch_are_our_cells_and_judged_in_their_precision(model: str, task: Task) -> None:
    gpu = OnHost(pytest.importorskip("torch", exc_type=ImportError))
    problem = problem_of(model, task, heads=1)
    rows = measured(problem, torch_cells.contenders(problem, gpu, Inputs(problem, gpu), None))
    assert [row.facts["precision"] for row in rows.values()] == ["bf16", "fp16", "fp32"]
    for label, row in rows.items():
        assert row.failure is None, row
        precision = row.facts["precision"]
        assert label == f"torch.nn {precision}"
        assert row.error_allowed == error_allowed(precision_of(precision))
        assert set(row.errors) == ({"y"} if task == "forward" else {"y", "dx", "dR"})
        assert row.is_right, row


def test_for_accuracy_a_layer_of_torch_has_the_same_pre_activations() -> None:
    gpu = OnHost(pytest.importorskip("torch", exc_type=ImportError))
    problem = problem_of("lstm", table="accuracy", heads=1)
    inputs = Inputs(problem, gpu)
    (row,) = measured(problem, torch_cells.contenders(problem, gpu, inputs, None)).values()
    assert set(row.errors) == {"y", "c"}, row.failure
    assert row.is_right, row


def test_gradients_go_through_the_projection() -> None:
    problem = problem_of("gru", "forward + backward")
    gpu = FakeGpu()
    inputs = Inputs(problem, gpu)
    projected = ProjectedInputs(problem, gpu, inputs)
    x, weight, dy = (np.asarray(projected.array(name), np.float64) for name in ("x", "weight", "dy"))
    along = np.random.default_rng(3).standard_normal(x.shape)

    def loss(sign: int) -> float:
        gates = ((x + sign * STEP * along) @ weight.T).reshape(*x.shape[:2], -1, problem.channels)
        return float((np.asarray(inputs.computed(tensor(gates))["y"]) * dy).sum())

    expected = np.asarray(projected.expected()["dx"])
    assert (loss(1) - loss(-1)) / (2 * STEP) == pytest.approx((expected * along).sum(), rel=1e-5)


def test_torch_has_no_layer_of_several_heads() -> None:
    for problem in (problem_of("lstm"), problem_of("slstm", heads=1)):
        assert torch_cells.contenders(problem, FakeGpu(), Inputs(problem, FakeGpu()), None) == []


def flash_function(model: str) -> flash.Function:
    """FlashRNN's function as its documentation has it, with gru's R in the order n, r, z."""

    def function(Wx: Any, R: Any, b: Any) -> tuple[Any, Any]:
        assert b.shape[0] == {"elman": 1}.get(model, 4)
        ours = np.asarray(R)[[1, 2, 0]] if model == "gru" else np.asarray(R)
        forward = DENSE_REFERENCES[model].run(np, np.asarray(Wx).transpose(1, 2, 3, 0, 4), ours)
        last = np.stack([state.swapaxes(0, 1)[:, None] for state in forward.states.values()])
        states = np.stack([forward.y.transpose(2, 0, 1, 3)] * len(last))
        return tensor(states), tensor(last)

    return function


@pytest.mark.parametrize(
    ("model", "table"), [*((model, "cells") for model in CELLS), ("lstm", "accuracy"), ("slstm", "accuracy")]
)
def test_flashrnn_is_given_what_it_is_judged_by(model: str, table: TableName) -> None:
    problem = problem_of(model, table=table)
    inputs = Inputs(problem, FakeGpu())
    results = flash.run_of(problem, torch, inputs, flash_function(model))()
    errors = inputs.judged(flash.as_ours(problem, results))
    assert set(errors) == {"y", *inputs.states_out}
    assert max(errors.values()) < 1e-6


def test_gradients_of_flashrnn_come_back_in_our_order() -> None:
    problem = problem_of("gru", "forward + backward")
    R = tensor(np.arange(3.0))
    theirs = R[flash.their_order("gru")]
    assert np.asarray(theirs).tolist() == [2, 0, 1]
    dx = tensor(np.arange(3.0 * 7 * 3 * 16).reshape(3, 7, 3, 2, 8))
    ours = flash.as_ours(problem, {"y": tensor(np.zeros((3, 7, 2, 8))), "dx": dx, "dR": theirs})
    assert np.asarray(ours["dR"]).tolist() == [0, 1, 2]
    assert {name: array.shape for name, array in ours.items()} == {"y": (3, 7, 16), "dx": (3, 7, 3, 16), "dR": (3,)}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Fake installation of FlashRNN, with its builds in a folder of the test."""
    monkeypatch.setattr(flash, "is_installed", lambda _: True)
    monkeypatch.setattr(flash.metadata, "version", lambda _: "1")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return tmp_path


def build_program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


QUICK = dense_problems.problems_of("cells", quick=True)
FUSED, ALTERNATING = flash.BACKENDS


def test_builds_fail_hang_or_work(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed.is_dir()
    program = """
import json, pathlib, sys, time
baseline, model, *_, folder = sys.argv[1:]
if baseline.endswith("fused") and model == "slstm":
    print("RuntimeError: no kernel")
    sys.exit(1)
if model == "slstm":
    time.sleep(600)
pathlib.Path(folder).mkdir(parents=True)
library = pathlib.Path(folder, "library.so")
library.touch()
pathlib.Path(folder, "library.json").write_text(json.dumps({"library": str(library), "seconds": 1.5}))
"""
    monkeypatch.setattr(flash, "BUILD", build_program(program))
    problems = [*QUICK, *dense_problems.problems_of("sweep", quick=True)]
    seconds = math.ceil(within(3))
    refused = flash.refusals(FakeGpu(), [FUSED, ALTERNATING, torch_cells.NAME], problems, seconds)
    shape = f"1 x {QUICK[0].head_dim}, {QUICK[0].batch}"
    assert refused == {
        f"{FUSED} slstm {shape}": "RuntimeError: no kernel",
        f"{ALTERNATING} slstm {shape}": f"not built in {seconds} s",
    }
    build = flash.build_of(FUSED, QUICK[0], FakeGpu().name)
    assert build is not None and build.made is not None and build.made["seconds"] == 1.5
    # What is there is not built again.
    monkeypatch.setattr(flash, "BUILD", build_program("raise SystemExit(1)"))
    assert flash.refusals(FakeGpu(), [FUSED], QUICK[:1], 5) == {}
    assert flash.refusals(FakeGpu(), [FUSED], [problem_of("lstm")], 5) == {}, "a shape that no other table needs"


def test_without_flashrnn_its_rows_say_so() -> None:
    refused = flash.refusals(FakeGpu(), [FUSED, torch_cells.NAME], QUICK, 5)
    assert refused == {FUSED: "not installed"}
    entries = flash.contenders(QUICK[0], FakeGpu(), Inputs(QUICK[0], FakeGpu()), [FUSED], refused)
    assert [(entry.name, entry.refused) for entry in entries] == [(FUSED, "not installed")]


@pytest.mark.usefixtures("installed")
def test_gru_has_no_fused_kernel_there() -> None:
    problem = next(problem for problem in dense_problems.problems_of("cells") if problem.model == "gru")
    entries = flash.contenders(problem, FakeGpu(), Inputs(problem, FakeGpu()), list(flash.BACKENDS), {})
    assert [entry.refused for entry in entries] == [flash.NO_FUSED, None]


def test_a_build_says_in_a_line_why_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*_: Any) -> str:
        raise RuntimeError("ninja: stopped\n/a/b/kernel.cu(3): error: no member clockRate\nmany\nmore\nlines")

    arguments = [FUSED, "lstm", "1", "64", "16", "folder"]
    assert flash_build.main(arguments) == 1
    assert capsys.readouterr().out.startswith("ToolchainMissing: ")
    monkeypatch.setattr(flash_build, "open_gpu", FakeGpu)
    monkeypatch.setattr(flash_build, "built", refused)
    assert flash_build.main(arguments) == 1
    assert capsys.readouterr().out == "RuntimeError: kernel.cu(3): error: no member clockRate\n"


def test_every_trial_of_a_build_has_a_folder_and_the_last_is_loaded(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashRNN loads with some flags, then with others, and calls the last library."""
    asked: list[dict[str, Any]] = []

    def load(**options: Any) -> Any:
        asked.append(options)
        return SimpleNamespace(__file__=f"{options['build_directory']}/{options['name']}.so")

    compiling, choosing = SimpleNamespace(load=load, time=None), SimpleNamespace()

    def flashrnn(Wx: Any, R: Any, b: Any, **_: Any) -> tuple[Any, Any]:
        for flags in (["-DA=1"], ["-DA=2"]):
            choosing.load(name="lstm_f", sources=[], extra_cflags=flags)
        return flash_function("lstm")(Wx, R, b)

    modules = {"flashrnn.flashrnn.cuda_init": compiling, "flashrnn.flashrnn.cuda_init_parametric": choosing}
    monkeypatch.setattr(flash_build.importlib, "import_module", modules.__getitem__)
    monkeypatch.setattr(flash_build, "flashrnn_module", lambda: SimpleNamespace(flashrnn=flashrnn))
    monkeypatch.setattr(flash_build, "run_of", lambda problem, *more: flash.run_of(forward_of(problem), *more))
    monkeypatch.delenv("MAX_JOBS", raising=False)
    lock = installed / "old" / "lock"
    lock.parent.mkdir()
    lock.touch()
    library = flash_build.built(flash.Build(FUSED, "lstm", 1, 8, 2, "none"), FakeGpu(), installed)
    first, second = (options["build_directory"] for options in asked)
    assert first != second
    assert library == f"{second}/lstm_f.so"
    assert not lock.exists()
    compiling.time.sleep(10)


def forward_of(problem: Problem) -> Problem:
    return problem.model_copy(update={"task": "forward"})


@pytest.mark.usefixtures("installed")
def test_what_was_built_is_loaded_and_nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    build = flash.Build(FUSED, "lstm", 2, 8, 3, "none")
    with pytest.raises(ToolchainMissing, match="was not built"):
        flash.loaded(build)
    (tmp_path / "kernels.py").write_text("answer = 42")  # a module that Python loads by its path, as it does a library
    build.folder.mkdir(parents=True)
    made = {"library": str(tmp_path / "kernels.py"), "seconds": 30.0}
    (build.folder / flash.LIBRARY_FILE).write_text(json.dumps(made))
    module = SimpleNamespace()

    def flashrnn(*arrays: Any, function: str, backend: str, dtype: str) -> tuple[Any, Any]:
        assert (function, backend, dtype) == ("lstm", "cuda_fused", "bfloat16")
        assert module.load(name="any").answer == module.load_parametric_and_test_and_bisect(name="any").answer == 42
        return flash_function("lstm")(*arrays)

    module.flashrnn = flashrnn
    monkeypatch.setattr(flash, "flashrnn_module", lambda: module)
    problem = problem_of("lstm")
    results: Arrays = flash.run_of(problem, torch, Inputs(problem, FakeGpu()), flash.loaded(build))()
    assert results["y"].shape == (3, 7, 2, 8)


@pytest.mark.parametrize("quick", [False, True])
def test_problems_are_distinct_and_labels_tell_them_apart(quick: bool) -> None:
    for table in dense_problems.TABLES:
        problems = dense_problems.problems_of(table, quick)
        assert len({problem.label for problem in problems}) == len(problems) > 0
        assert {problem.table for problem in problems} == {table}
        assert {problem.heading for problem in problems} == {
            ("us a step: " if table == "waiting" else "") + "heads x head_dim, batch x time"
        }
        if quick:
            assert len(problems) <= 4
            # FlashRNN has none of the cells that wait.
            builds = [problem for problem in problems if table != "waiting"]
            assert all(map(dense_problems.is_of_cells, builds)), "one build for all tables"


def test_a_limit_is_that_of_the_shape_and_the_task() -> None:
    limits = {problem.label: problem.limit_ms for problem in dense_problems.problems_of("cells")}
    assert limits["lstm 12 x 64, 16 x 1024 bf16"] == 0.170
    assert limits["lstm 12 x 64, 16 x 1024 bf16 forward + backward"] == pytest.approx(0.170 + 0.245)
    assert limits["gru 12 x 64, 16 x 1024 bf16"] is None
    assert {problem.limit_ms for problem in dense_problems.problems_of("cells", quick=True)} == {None}


def test_the_suites_name_their_baselines() -> None:
    assert suites.RECURRENT.baselines == (FUSED, ALTERNATING, "torch.nn", *waiting_cells.NAMES)
    assert suites.SUITES == {
        "scan": suites.SCAN,
        "recurrent": suites.RECURRENT,
        "calls": suites.CALLS,
        "layers": suites.LAYERS,
        "jax": suites.JAX,
    }
    assert suites.CALLS.baselines == ("torch.nn",)
    assert suites.SCAN.tables == ("raw", "cells", "selective", "layers", "classic")
