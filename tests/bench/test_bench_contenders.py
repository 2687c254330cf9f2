"""Contenders compute what they are judged by, in every layout: on NumPy arrays that pass for tensors on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.fake_gpu import FakeClock, FakeGpu, Tensor, tensor, torch

import minrnn_gen
from benchmarks.contenders import fused_cells, layers, raw_scans, selective_scans, single_sequence
from benchmarks.contenders.baselines import Baseline, Layout
from benchmarks.harness.rounds import Contender, Limits, run_rounds
from benchmarks.problems.scan_problems import Problem, Task
from benchmarks.reference import scan_reference
from benchmarks.report.record import COPY, Row
from minrnn_gen.api import compile as compile_kernel
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import PrecisionName

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


def on_tensors(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: on_tensors(part) for name, part in found.items()}
    return tensor(found) if isinstance(found, np.ndarray) else found


class KernelOnTensors:
    """Kernel whose results in host memory are tensors, as those on a GPU are."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.plans = self.kernel.plans

    def __call__(self, *arrays: Any, **named: Any) -> tuple[Tensor, Any]:
        y, state = self.kernel(*arrays, **named)
        return tensor(y), {name: tensor(values) for name, values in state.items()}

    def step(self, *arrays: Any, **named: Any) -> tuple[Tensor, Any]:
        y, state = self.kernel.step(*arrays, **named)
        return tensor(y), {name: tensor(values) for name, values in state.items()}

    def forward(self, *arrays: Any, **named: Any) -> tuple[Tensor, Any, Any]:
        y, state, saved = self.kernel.forward(*arrays, **named)
        return tensor(y), state, saved

    def backward(self, saved: Any, dy: Any) -> dict[str, Any]:
        gradients = self.kernel.backward(saved, dy)
        return on_tensors(gradients)


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
@pytest.mark.parametrize(
    ("model", "task"),
    one_in(3, [("min_gru", "forward"), ("min_gru", "backward"), ("min_lstm", "forward"), ("min_lstm", "backward")]),
)
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


def selective_problem(task: Task = "forward", precision: PrecisionName = "fp32") -> Problem:
    sizes = {"batch": 2, "time": 19, "channels": 8, "state_size": 3}
    return Problem(table="selective", task=task, model="selective", precision=precision, **sizes)


@pytest.mark.matrix_full
@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("task", ["forward", "forward + backward"])
def test_selective_scans_are_right_in_both_layouts(task: Task) -> None:
    problem = selective_problem(task)
    rows = measured(problem, selective_scans.contenders(problem, FakeGpu(), (), {}))
    assert list(rows) == [COPY, "minrnn-gen BTD", "minrnn-gen BDT"]
    gradients = set() if task == "forward" else {"du", "ddt", "dz", "dB", "dC", "dD", "da"}
    for name in list(rows)[1:]:
        assert set(rows[name].errors) == {"y", *gradients}, rows[name].failure
        assert rows[name].is_right, rows[name]


@pytest.mark.usefixtures("kernels")
def test_a_selective_step_is_right_and_scans_without_one_say_so() -> None:
    problem = selective_problem("step").model_copy(update={"time": 1})
    no_step = selective_scans.SelectiveBaseline("theirs", "torch", lambda: None)
    rows = measured(problem, selective_scans.contenders(problem, FakeGpu(), [no_step], {}))
    assert list(rows) == [COPY, "minrnn-gen BTD", "theirs"]
    assert set(rows["minrnn-gen BTD"].errors) == {"y", "h"}, rows["minrnn-gen BTD"].failure
    assert rows["minrnn-gen BTD"].is_right
    assert rows["theirs"].failure == "no single step"


def test_selective_baselines_that_are_not_installed_have_rows() -> None:
    theirs = selective_scans.SelectiveBaseline("theirs", "no-such-distribution", lambda: None)
    refused = {"theirs": "not installed"}
    rows = measured(selective_problem(), selective_scans.contenders(selective_problem(), FakeGpu(), [theirs], refused)[-1:])
    assert rows["theirs"].failure == "not installed"


def test_a_loop_has_no_gradients_over_many_steps() -> None:
    problem = selective_problem("forward + backward")
    loop = selective_scans.SelectiveBaseline("loop", "torch", lambda: None, gradient_steps_max=problem.time - 1)
    rows = measured(problem, selective_scans.contenders(problem, FakeGpu(), [loop], {})[-1:])
    assert rows["loop"].failure == "its gradients take time quadratic in the steps"


@pytest.mark.parametrize("name", ["transformers", "torch.associative_scan"])
def test_selective_scans_of_others_are_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors of torch, eager; gradients of the reference by autograd through the loop."""
    own = pytest.importorskip("torch")
    baseline = {entry.name: entry for entry in selective_scans.BASELINES}[name]
    pytest.importorskip(baseline.distribution)
    monkeypatch.setattr(own, "compile", lambda function, **_: function)

    def in_order(array: Any) -> Any:
        return array.permute(2, 0, 1) if array.dim() == 3 else array

    generator = own.Generator().manual_seed(0)
    shapes = {"u": (2, 4, 7), "dt": (2, 4, 7), "A": (4, 3), "B": (2, 3, 7), "C": (2, 3, 7), "D": (4,), "z": (2, 4, 7)}
    leaves = {key: own.randn(shape, generator=generator).requires_grad_() for key, shape in shapes.items()}
    with own.no_grad():
        leaves["A"].abs_().neg_()
    y = baseline.load()(*leaves.values())
    by_time = {key: in_order(leaf).detach().double().numpy() for key, leaf in leaves.items()}
    expected = scan_reference.selective_scan(np, **by_time)
    np.testing.assert_allclose(y.detach().permute(2, 0, 1), expected, rtol=1e-5, atol=1e-5)
    if baseline.has_gradients:
        dy = own.randn(y.shape, generator=generator)
        found = own.autograd.grad(y, [*leaves.values()], dy)
        wanted = scan_reference.selective_scan_gradients(np, dy.permute(2, 0, 1).double().numpy(), **by_time)
        for key, gradient in zip(leaves, found, strict=True):
            np.testing.assert_allclose(in_order(gradient), wanted[f"d{key}"], rtol=1e-4, atol=1e-4, err_msg=key)
