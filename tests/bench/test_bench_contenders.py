"""Contenders compute what they are judged by, in every layout: on NumPy arrays that pass for tensors on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.fake_gpu import FakeClock, FakeGpu, Tensor, tensor, torch

import minrnn_gen
from minrnn_gen.api import compile as compile_kernel
from minrnn_gen.bench.contenders import fused_cells, layers, raw_scans, single_sequence
from minrnn_gen.bench.contenders.baselines import Baseline, Layout
from minrnn_gen.bench.harness.rounds import Contender, Limits, run_rounds
from minrnn_gen.bench.problems.scan_problems import Problem, Task
from minrnn_gen.bench.reference import scan_reference
from minrnn_gen.bench.report.record import COPY, Row
from minrnn_gen.kernel import Kernel

ONCE = Limits(1, 1)
HALVES = (slice(0, 20), slice(20, None))


def scan_over(a: Any, b: Any, axis: int) -> Tensor:
    a, b = (np.moveaxis(np.asarray(array, np.float64), axis, 0) for array in (a, b))
    return tensor(np.moveaxis(scan_reference.scan(np, a, b), 0, axis).astype(np.float32))


def scan_backward_over(a: Any, y: Any, dy: Any, axis: int) -> tuple[Tensor, Tensor, None]:
    moved = [np.moveaxis(np.asarray(array, np.float64), axis, 0) for array in (a, y, dy)]
    da, db = (tensor(np.moveaxis(array, 0, axis).astype(np.float32)) for array in scan_reference.scan_gradients(np, *moved))
    return da, db, None


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minrnn_gen, "scan", lambda a, b, *, axis: (scan_over(a, b, axis), None), raising=False)
    monkeypatch.setattr(
        minrnn_gen, "scan_backward", lambda a, y, dy, *, axis: scan_backward_over(a, y, dy, axis), raising=False
    )


class KernelOnTensors:
    """Kernel whose results in host memory are tensors, as those on a GPU are."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.plans = self.kernel.plans

    def __call__(self, *arrays: Any, **named: Any) -> tuple[Tensor, Any]:
        y, state = self.kernel(*arrays, **named)
        return tensor(y), {name: tensor(values) for name, values in state.items()}

    def forward(self, *arrays: Any, **named: Any) -> tuple[Tensor, Any, Any]:
        y, state, saved = self.kernel.forward(*arrays, **named)
        return tensor(y), state, saved

    def backward(self, saved: Any, dy: Any) -> dict[str, Any]:
        gradients = self.kernel.backward(saved, dy)
        return {name: tensor(array) if isinstance(array, np.ndarray) else array for name, array in gradients.items()}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minrnn_gen, "compile", lambda spec: KernelOnTensors(compile_kernel(spec)))


def baseline(name: str, layout: Layout, function: Any, **more: Any) -> Baseline:
    return Baseline(name, "numpy", layout, lambda: function, **more)


def measured(problem: Problem, contenders: list[Contender]) -> dict[str, Row]:
    return {row.contender: row for row in run_rounds(problem, contenders, FakeClock(), ONCE)}


def raw_problem(task: Task = "forward") -> Problem:
    return Problem(table="raw", task=task, precision="fp32", batch=2, time=37, channels=6)


@pytest.mark.usefixtures("scans")
@pytest.mark.parametrize("task", ["forward", "forward + backward"])
def test_raw_scans_are_right_in_both_layouts(task: Task) -> None:
    rows = measured(raw_problem(task), raw_scans.contenders(raw_problem(task), FakeGpu(), (), {}))
    assert list(rows) == [COPY, *raw_scans.OURS]
    results = {"y"} if task == "forward" else {"y", "da", "db"}
    for name in raw_scans.OURS:
        assert set(rows[name].errors) == results
        assert rows[name].is_right, rows[name]


@pytest.mark.usefixtures("scans")
def test_baselines_are_judged_by_the_inputs_that_they_read() -> None:
    baselines = [
        baseline("by time", "B,T,C", lambda a, b: scan_over(a, b, 1)),
        baseline("by channel", "B,C,T", lambda a, b: scan_over(a, b, 2)),
        baseline("of logs", "B,T,C", lambda a, b: scan_over(np.exp(np.asarray(a, np.float64)), b, 1), takes_log_a=True),
        baseline("other axis", "B,C,T", lambda a, b: scan_over(a, b, 1)),
        baseline("no carry", "B,T,C", lambda a, b: torch.cat([scan_over(a[:, t], b[:, t], 1) for t in HALVES], 1)),
        baseline("gone", "B,T,C", None),
    ]  # fmt: skip
    rows = measured(raw_problem(), raw_scans.contenders(raw_problem(), FakeGpu(), baselines, {"gone": "not installed"}))
    assert {name for name, row in rows.items() if row.failure is None and row.is_right} == {
        COPY, *raw_scans.OURS, "by time", "by channel", "of logs",
    }  # fmt: skip
    assert rows["gone"].failure == "not installed"
    assert rows["no carry"].worst_error is not None
    assert rows["no carry"].worst_error > 0.01, "half of the channels remember for hundreds of steps"


def test_a_library_that_overwrites_shared_inputs_is_reported_as_failing() -> None:
    def careless(a: Any, b: Any) -> Tensor:
        y = scan_over(a, b, 2)
        a[0, 0, 0] = np.nan
        return y

    baselines = [baseline("careless", "B,C,T", careless), baseline("careful", "B,C,T", lambda a, b: scan_over(a, b, 2))]
    rows = measured(raw_problem(), raw_scans.contenders(raw_problem(), FakeGpu(), baselines, {}))
    assert rows["careless"].failure is not None and raw_scans.OVERWRITES in rows["careless"].failure
    assert rows["careful"].is_right


def test_a_baseline_without_gradients_says_so() -> None:
    problem = raw_problem("forward + backward")
    rows = measured(
        problem, raw_scans.contenders(problem, FakeGpu(), [baseline("one way", "B,T,C", None, has_gradients=False)], {})
    )
    assert rows["one way"].failure == raw_scans.NO_GRADIENTS


def test_of_very_many_elements_some_of_every_kind_are_checked() -> None:
    shape = {"batch": 8, "time": 65536, "channels": 1536}
    stride = raw_scans.Inputs(raw_problem().model_copy(update=shape), FakeGpu()).channels.step
    assert np.prod(list(shape.values())) / stride <= raw_scans.CHECKED_ELEMENTS
    # Every remainder by 32 lanes, and both kinds of channels.
    assert len({channel % 32 for channel in range(0, 1536, stride)}) == 32


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("task", ["forward", "backward"])
@pytest.mark.parametrize("model", ["min_gru", "min_lstm"])
def test_cells_are_right_in_both_layouts(model: str, task: Task) -> None:
    problem = Problem(table="cells", task=task, model=model, precision="fp32", batch=2, time=19, channels=8)
    rows = measured(problem, fused_cells.contenders(problem, FakeGpu()))
    assert list(rows) == [COPY, "BTD", "BDT"]
    for name in ("BTD", "BDT"):
        assert set(rows[name].errors) == {"y" if task == "forward" else "dx"}, rows[name].failure
        assert rows[name].is_right, rows[name]


def layer_problem(task: Task = "forward") -> Problem:
    return Problem(table="layers", task=task, model="min_gru_log", precision="fp32", batch=2, time=23, channels=8, inputs=5)


def test_the_published_form_of_the_layer_is_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    # In float64 throughout, so that the formula is what is compared and not log-space arithmetic in float32.
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    inputs = layers.Inputs(layer_problem(), FakeGpu())
    y = layers.log_space_layer(torch, *(inputs.array(name).double() for name in ("x", "weight")))
    assert inputs.judged({"y": y})["y"] < 1e-12


@pytest.mark.usefixtures("kernels")
def test_the_kernel_is_right_with_its_projection() -> None:
    problem = layer_problem()
    (row,) = run_rounds(problem, layers.contenders(problem, FakeGpu())[-1:], FakeClock(), ONCE)
    assert row.is_right, row
    assert set(row.errors) == {"y"}, row


def test_gradients_of_the_layer_are_judged_by_differences() -> None:
    problem, step = layer_problem("forward + backward"), 1e-6
    inputs = layers.Inputs(problem, FakeGpu())
    expected = inputs.expected()
    x, weight, dy = (np.asarray(inputs.array(name), np.float64) for name in ("x", "weight", "dy"))

    def loss(x: Any, weight: Any) -> float:
        return float((dy * single_sequence.layer_reference(problem, x, weight)).sum())

    direction = np.random.default_rng(1).standard_normal(x.shape)
    difference = (loss(x + step * direction, weight) - loss(x - step * direction, weight)) / (2 * step)
    assert difference == pytest.approx((np.asarray(expected["dx"]) * direction).sum(), rel=1e-5)
    direction = np.random.default_rng(2).standard_normal(weight.shape)
    difference = (loss(x, weight + step * direction) - loss(x, weight - step * direction)) / (2 * step)
    assert difference == pytest.approx((np.asarray(expected["dweight"]) * direction).sum(), rel=1e-5)


@pytest.mark.parametrize("model", ["min_gru", "min_lstm"])
def test_the_cpu_computes_the_layer_by_both_methods(model: str) -> None:
    problem = Problem(table="classic", task="forward", model=model, precision="fp32", batch=1, time=300, channels=16, inputs=4)
    rows = measured(problem, [contender for contender in single_sequence.contenders(problem, FakeGpu()) if contender.on_host])
    assert list(rows) == list(single_sequence.ON_CPU)
    for row in rows.values():
        assert row.clock == "host"
        assert row.errors, row.failure
        assert row.is_right, row
