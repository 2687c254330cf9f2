"""Layers beside torch's in the benchmark: the promised problems, contenders on torch's CPU, their errors, and their table."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_gpu import FakeClock, OnHost

from benchmarks.contenders import layers, torch_layers
from benchmarks.contenders.torch_layers import COMPILED, LOG_SPACE, OURS, TORCH_NN
from benchmarks.harness.rounds import Arrays, Contender, Limits, run_rounds
from benchmarks.pages import filled
from benchmarks.problems import layer_problems
from benchmarks.problems.layer_problems import GOAL, SIZES_GOAL, Shape
from benchmarks.problems.scan_problems import Problem, Task
from benchmarks.reference.layer_inputs import LayerInputs
from benchmarks.report.plot import panels_of
from benchmarks.report.record import Record, Row
from benchmarks.report.tables import layers_text, share_of_best, whole_text
from benchmarks.suites import LAYERS

KINDS = (*layer_problems.AT_DEFAULTS, *layer_problems.WEIGHTS)
# Layers of one size, so that few kernels are planned.
LSTM, GRU = Shape("lstm", 2, 4, 8, 8), Shape("gru", 2, 4, 8, 8)
# Errors of a small layer against float64, by the kind of arithmetic.
ALLOWED = {"fp32": 2e-6, "fp16": 2e-3, "bf16": 1e-2}


@pytest.fixture(scope="module")
def gpu() -> OnHost:
    return OnHost(pytest.importorskip("torch", exc_type=ImportError))


def problem_of(shape: Shape, kind: layer_problems.Kind = KINDS[0], task: Task = "forward", table: Any = "headline") -> Problem:
    return layer_problems._problem(table, shape, kind, task)


def measured(problem: Problem, gpu: OnHost, chosen: tuple[str, ...] = (TORCH_NN, LOG_SPACE)) -> dict[str, Row]:
    contenders = torch_layers.contenders(problem, gpu, chosen, {})
    return {row.contender: row for row in run_rounds(problem, contenders, FakeClock(), Limits(1, 1))}


def problems(table: Any) -> tuple[Problem, ...]:
    return layer_problems.problems_of(table)


def test_the_headline_is_the_twelve_layers_that_people_replace() -> None:
    layers = {(p.model, p.batch, p.time, p.inputs, p.channels, p.layers) for p in problems("headline") if not p.bidirectional}
    assert layers == {
        ("lstm", 32, 100, 64, 128, 1),
        ("lstm", 64, 256, 256, 256, 2),
        ("lstm", 64, 512, 512, 512, 1),
        ("lstm", 128, 128, 512, 512, 2),
        ("lstm", 256, 256, 512, 512, 1),
        ("lstm", 64, 256, 1024, 1024, 2),
        ("lstm", 16, 1024, 768, 768, 4),
        ("lstm", 1024, 64, 128, 256, 1),
        ("lstm", 32, 256, 2048, 2048, 1),
        ("lstm", 256, 128, 1024, 1024, 1),
        ("gru", 128, 256, 512, 512, 1),
        ("gru", 64, 256, 1024, 1024, 1),
    }
    kinds = {p.arithmetic for p in problems("headline") if (p.batch, p.time) != (256, 128)}
    assert kinds == {"fp32", "bf16 autocast", "fp16 autocast"}
    assert {p.arithmetic for p in problems("headline")} - kinds == {"bf16 weights", "fp16 weights"}
    assert {p.task for p in problems("headline")} == {"forward", "forward + backward"}


def test_every_layer_has_its_kinds_and_the_spread_reaches_its_ends() -> None:
    trained, served = {"fp32", "bf16 autocast"}, {"fp32", "bf16 weights", "fp16 weights"}
    for table, kinds in (("spread", trained), ("scans", trained), ("token", served)):
        by_layer: dict[Problem, set[str]] = {}
        for problem in problems(table):
            bare = problem.model_copy(update={"precision": "fp32", "autocast": False, "task": "forward", "mark": None})
            by_layer.setdefault(bare, set()).add(problem.arithmetic)
        assert all(of_layer == kinds for of_layer in by_layer.values())
    spread = problems("spread")
    for name, least, most in (("batch", 1, 4096), ("time", 1, 4096), ("channels", 64, 2048), ("layers", 1, 4)):
        values = {getattr(problem, name) for problem in spread}
        assert (min(values), max(values)) == (least, most)
    assert {problem.bidirectional for problem in spread} == {False, True}
    assert {(p.model, p.batch, p.is_cell) for p in problems("token")} == {
        (model, batch, is_cell) for model in ("lstm", "gru") for batch in (1, 16) for is_cell in (False, True)
    }
    assert {problem.time for problem in problems("token")} == {1}


@pytest.mark.parametrize("quick", [False, True])
def test_problems_are_distinct_and_labels_tell_them_apart(quick: bool) -> None:
    for table in layer_problems.TABLES:
        problems = layer_problems.problems_of(table, quick)
        assert len({problem.label for problem in problems}) == len(problems) > 0
        assert {problem.table for problem in problems} == {table}
        assert {problem.goal for problem in problems} == {
            SIZES_GOAL if problem.table == "sizes" else GOAL for problem in problems
        }


@pytest.mark.parametrize(
    ("shape", "kind"),
    [*((LSTM, kind) for kind in KINDS), (Shape("gru", 2, 3, 16, 8, 2, bidirectional=True), KINDS[0])],
    ids=str,
)
def test_a_training_step_is_judged_by_everything_that_it_returns(gpu: OnHost, shape: Shape, kind: layer_problems.Kind) -> None:
    rows = measured(problem_of(shape, kind, "forward + backward"), gpu)
    assert list(rows) == [OURS, TORCH_NN]
    for name, row in rows.items():
        if name == TORCH_NN and "primitive" in (row.failure or ""):
            assert shape.model == "lstm" and kind[0] != "fp32"
            continue  # oneDNN has none of 16 bits on some processors
        assert set(row.errors) == {"y", "states", "dx", "dweights"}, row.failure
        assert row.worst_error is not None and row.worst_error < ALLOWED[kind[0]] * (1 if name == OURS else 2), row
        assert row.is_right and (row.clock, row.rounds) == ("host", 1)
    if rows[TORCH_NN].failure is None:
        assert rows[OURS].facts == rows[TORCH_NN].facts, "both return the same dtype"


@pytest.mark.parametrize("shape", [replace(LSTM, layers=2), replace(GRU, time=1)], ids=str)
def test_a_forward_has_no_gradients_and_a_single_step_begins_at_given_states(gpu: OnHost, shape: Shape) -> None:
    problem = problem_of(shape)
    for contender in torch_layers.contenders(problem, gpu, (TORCH_NN,), {}):
        results = contender.prepare()()
        assert set(results) == ({"y", "h", "c"} if shape.model == "lstm" else {"y", "h"})
        assert all(array.grad_fn is None and not array.requires_grad for array in results.values())
        assert contender.judge is not None and max(contender.judge(results).values()) < ALLOWED["fp32"]
        assert contender.on_host and contender.warms_up


@pytest.mark.parametrize(("model", "kind"), [("lstm", KINDS[1]), ("gru", KINDS[0])], ids=str)
def test_cells_take_a_step_beside_torch_s_and_a_compiled_one(
    gpu: OnHost, monkeypatch: pytest.MonkeyPatch, model: str, kind: layer_problems.Kind
) -> None:
    asked: list[Any] = []

    def compiled(layer: Any, *, dynamic: bool) -> Any:
        asked.append(dynamic)
        return layer

    monkeypatch.setattr(gpu.torch, "compile", compiled)
    problem = problem_of(Shape(model, 2, 1, 8, 8, is_cell=True), kind, table="token")
    rows = measured(problem, gpu, (TORCH_NN, COMPILED))
    assert list(rows) == [OURS, TORCH_NN, COMPILED]
    for row in rows.values():
        assert set(row.errors) == {"states"}, row.failure
        assert row.worst_error is not None and row.worst_error < ALLOWED[kind[0]]
    assert asked == [False]


@pytest.mark.parametrize(
    ("model", "kind", "task"),
    [("min_gru_log", KINDS[0], "forward + backward"), ("min_gru_log", KINDS[1], "forward + backward"),
     ("min_gru_log", KINDS[4], "forward"), ("min_lstm_log", KINDS[0], "forward + backward")],
)  # fmt: skip
def test_scans_are_layers_beside_the_log_space_forms(
    gpu: OnHost, monkeypatch: pytest.MonkeyPatch, model: str, kind: layer_problems.Kind, task: Task
) -> None:
    monkeypatch.setattr(gpu.torch, "compile", lambda layer, **_: layer)
    rows = measured(problem_of(Shape(model, 2, 7, 4, 8), kind, task, "scans"), gpu, torch_layers.NAMES)
    assert list(rows) == [OURS, LOG_SPACE, COMPILED]
    for row in rows.values():
        assert set(row.errors) == ({"y"} if task == "forward" else {"y", "dx", "dweight"}), row.failure
        assert row.worst_error is not None and row.worst_error < ALLOWED[kind[0]]


def test_problems_of_one_shape_share_inputs_and_gradients_are_gone_after_a_step(gpu: OnHost) -> None:
    shape = LSTM
    first, second = (
        torch_layers._shared_inputs(torch_layers._stored(problem_of(shape, kind, task)), gpu)
        for kind, task in ((KINDS[0], "forward"), (KINDS[2], "forward + backward"))
    )
    assert first is second
    assert torch_layers._shared_inputs(torch_layers._stored(problem_of(shape, KINDS[3])), gpu) is not first
    run = torch_layers.contenders(problem_of(shape, task="forward + backward"), gpu, (), {})[0].prepare()
    once, again = run(), run()
    for name, gradient in once.items():
        assert gpu.torch.equal(gradient, again[name]), f"{name} is not that of a single step"


def test_a_wrong_gradient_shows(gpu: OnHost) -> None:
    inputs = LayerInputs(problem_of(Shape("gru", 2, 3, 4, 8), task="forward + backward"), gpu)
    expected = dict(inputs.expected())
    assert set(inputs.judged(expected).values()) == {0.0}
    wrong = {**expected, "dbias_hh_l0": expected["dbias_hh_l0"] * 1.5}
    errors = inputs.judged(wrong)
    assert errors["dweights"] == pytest.approx(0.5) and errors["y"] == 0.0
    assert inputs.judged({**expected, "h": expected["h"] * float("nan")})["states"] != errors["states"]


def test_the_reference_is_computed_without_cudnn(gpu: OnHost, monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(enabled=True)
    monkeypatch.setattr(gpu.torch.backends, "cudnn", library)
    seen: list[bool] = []

    class Watched(gpu.torch.nn.GRU):  # type: ignore[misc, name-defined]
        def forward(self, *arguments: Any) -> Any:
            seen.append(library.enabled)
            return super().forward(*arguments)

    monkeypatch.setattr(gpu.torch.nn, "GRU", Watched)
    LayerInputs(problem_of(Shape("gru", 2, 3, 4, 8)), gpu).expected()
    assert (seen, library.enabled) == ([False], True)


def test_an_untimed_run_goes_before_each_timed_one() -> None:
    calls: list[str] = []

    def run() -> Arrays:
        calls.append("run")
        return {}

    clock = FakeClock()
    warm = Contender("warm", lambda: run, on_host=True, warms_up=True)
    problem = problem_of(Shape("lstm", 1, 2, 3, 4))
    run_rounds(problem, [warm], clock, Limits(3, 3))
    assert (len(calls), len(clock.timed), clock.poisoned) == (1 + 2 * 4, 4, 4)
    calls.clear()
    run_rounds(problem, [replace(warm, warms_up=False)], clock, Limits(3, 3))
    assert len(calls) == 1 + 4


def rows_of(problem: Problem, ms: dict[str, float], **more: Any) -> list[Row]:
    return [Row(problem=problem, contender=name, ms=value, **more) for name, value in ms.items()]


def test_a_layer_is_a_line_with_both_tasks_the_share_of_the_best() -> None:
    shape, kind = Shape("lstm", 64, 256, 1024, 1024, 2), ("bf16", True)
    forward, step = (problem_of(shape, kind, task) for task in layer_problems.TRAINING)
    cell = Shape("gru", 16, 8, 4, 64)
    rows = [
        *rows_of(forward, {OURS: 1.0, TORCH_NN: 2.0}, errors={"y": 4e-4}, error_allowed=0.03),
        *rows_of(step, {OURS: 3.0, TORCH_NN: 4.0}, errors={"y": 4e-4, "dx": 5e-4}, error_allowed=0.03),
        *rows_of(problem_of(cell), {OURS: 0.1, TORCH_NN: 0.5}),
        Row(problem=problem_of(cell, task="forward + backward"), contender=OURS, ms=0.3),
    ]
    text = whole_text(rows)
    assert text == layers_text(rows)
    lines = text.splitlines()
    assert lines[0] == (
        "| batch x time, inputs to units: forward / training step | minrnn-gen | torch.nn | of the best | goal |"
    )
    assert lines[2] == (
        "| lstm 64 x 256, 1024 to 1024, 2 layers, bf16 autocast | 1.00 (4e-04) / 3.00 (5e-04) | 2.00 (4e-04) / 4.00 (5e-04) "
        "| 0.50 / 0.75 | 0.7 |"
    )
    assert lines[3] == "| gru 16 x 8, 4 to 64, fp32 | 0.100 / 0.300 | 0.500 | 0.20 / - | 0.7 |"
    assert lines[-1] == "Within the goal: 2 of 3 times."


def test_the_memory_of_a_layer_is_a_line_with_both_tasks() -> None:
    shape = Shape("lstm", 32, 100, 64, 128)
    forward, step = (problem_of(shape, task=task) for task in layer_problems.TRAINING)
    rows = [
        *rows_of(forward, {OURS: 1.0, TORCH_NN: 2.0}, facts={"peak_mib": 1.625}),
        *rows_of(step, {OURS: 3.0, TORCH_NN: 4.0}, facts={"peak_mib": 12.0}),
    ]
    text = layers_text(rows)
    assert text.endswith(
        "| peak memory, MiB: batch x time, inputs to units: forward / training step | minrnn-gen | torch.nn |\n|---|---|---|\n"
        "| lstm 32 x 100, 64 to 128, fp32 | 1.62 / 12 | 1.62 / 12 |\n"
    )
    assert layers_text(rows[:1]).endswith(" | minrnn-gen |\n|---|---|\n| lstm 32 x 100, 64 to 128, fp32 | 1.62 |\n")


def test_layers_over_batch_and_units_are_a_table_of_shares() -> None:
    def row(batch: int, task: Task, contender: str, ms: float) -> Row:
        shape = Shape("gru", batch, 256, 64, 64)
        (problem,) = (
            problem
            for problem in layer_problems.problems_of("sizes")
            if (problem.batch, problem.channels) == (shape.batch, shape.units)
            and (problem.model, problem.precision, problem.task) == (shape.model, "fp32", task)
        )
        return Row(problem=problem, contender=contender, ms=ms)

    times = ((1, "forward", 1.0, 2.0), (1, "forward + backward", 3.0, 4.0), (64, "forward", 5.0, 4.0))
    rows = [
        row(batch, task, name, ms)
        for batch, task, *both in times
        for name, ms in zip(("minrnn-gen", "torch.nn"), both, strict=True)
    ]
    text = whole_text(rows)
    assert "| units, precision | batch 1 | batch 64 |" in text
    assert "| gru 64 fp32 | 0.50 / 0.75 | 1.25 |" in text
    assert "Within the goal: 2 of 3 times." in text
    assert "Slower than the best of the others: gru 64 x 256, 64 to 64, fp32 (1.25)." in text


@given(st.floats(0.01, 100), st.lists(st.floats(0.01, 100), min_size=1, max_size=3))
def test_the_share_is_of_the_fastest_correct_way(ours: float, others: list[float]) -> None:
    problem = problem_of(Shape("lstm", 1, 2, 3, 4))
    rows = {row.contender: row for row in rows_of(problem, {OURS: ours, **{f"torch.{n}": ms for n, ms in enumerate(others)}})}
    assert share_of_best(rows) == ours / min(others)
    rows["wrong"] = Row(problem=problem, contender="wrong", ms=1e-3, errors={"y": None}, error_allowed=1.0)
    rows["failed"] = Row(problem=problem, contender="failed", failure="not installed")
    assert share_of_best(rows) == ours / min(others)
    rows[OURS] = rows["wrong"].model_copy(update={"contender": OURS})
    assert share_of_best(rows) is None


def test_a_step_is_shown_in_microseconds_on_the_page() -> None:
    problem = problem_of(Shape("lstm", 1, 1, 512, 512, is_cell=True), table="token")
    record = Record(command="python -m benchmarks layers", gpu="none", versions={}, method={})
    record = record.with_rows(rows_of(problem, {OURS: 0.012, TORCH_NN: 0.048}))
    text = filled("<!-- measured: layers spread token -->\n<!-- end of measured -->\n", {"layers spread": record}, "page.md")
    assert "| us: batch x time, inputs to units | minrnn-gen | torch.nn | of the best | goal |" in text
    assert "| lstm cell 1, 512 to 512, fp32 | 12.0 | 48.0 | 0.25 | 0.7 |" in text


def test_the_spread_is_drawn_over_each_size_beside_the_best_of_torch() -> None:
    rows = []
    for problem in problems("spread"):
        rows += rows_of(problem, {OURS: 1.0, TORCH_NN: 4.0, LOG_SPACE: 3.0})
    panels = panels_of(Record(command="", gpu="", versions={}, method={}, rows=tuple(rows)))
    assert {(panel.size, panel.curves[0].sizes) for panel in panels} == {
        ("batch", (1, 16, 256, 4096)),
        ("time steps", (1, 64, 256, 4096)),
        ("units", (64, 256, 1024, 2048)),
    }
    assert len({panel.title for panel in panels}) == len(panels) == 6
    for panel in panels:
        assert [(curve.name, set(curve.values)) for curve in panel.curves] == [
            (OURS, {1.0}),
            ("torch, the best of its ways", {3.0}),
        ]


def test_the_log_space_forms_are_the_cells_in_float64(gpu: OnHost) -> None:
    torch = gpu.torch
    with pytest.MonkeyPatch.context() as patch:
        # The formula is what is compared, not log-space arithmetic in float32.
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        for model, form in (("min_gru_log", layers.log_space_layer), ("min_lstm_log", layers.log_space_lstm)):
            inputs = layers.Inputs(problem_of(Shape(model, 2, 9, 4, 8), table="scans"), gpu)
            y = form(torch, *(inputs.array(name).double() for name in ("x", "weight")))
            assert inputs.judged({"y": y})["y"] < 1e-12


def test_every_way_of_torch_is_a_baseline() -> None:
    assert LAYERS.baselines == (TORCH_NN, LOG_SPACE, COMPILED)
