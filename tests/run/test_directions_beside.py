"""Both directions beside each other compute what they do one after the other by the same kernels, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.built_kernels import build_nothing
from support.emulated_code import HAS_COMPILER, loading
from support.fake_device import GivenKernels, as_if_on_a_device, executor_on
from support.fake_torch import as_arrays, as_tensors, torch_on_host
from support.small_problems import (
    BF16,
    CLUSTER,
    DENSE,
    FP16,
    GRID,
    LARGE,
    LEAKY,
    LSTM,
    WantedBuilder,
)
from support.uncompiled_kernels import compiled_for_host

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.call.directions import runs_of
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.cases import Case, inputs_of
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.interpret.verify import leaves
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.run import gpu
from minrnn_gen.run.dense import runs as dense
from minrnn_gen.run.dense.direction_choice import DirectionsChoice
from minrnn_gen.run.executor import Executor
from minrnn_gen.run.kernels import CompiledKernels
from minrnn_gen.run.recording import operations
from minrnn_gen.run.target import target_of

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none"
)

BATCH, TIME = 3, 5

# What is asked for, the variables of the kernels, the layout, and whether there are resets and sequences that end early.
WAYS: dict[str, tuple[dict[str, Any], dict[str, int], str, bool]] = {
    "grid": (LSTM, DENSE | GRID, "BTD", True),
    "gru": (BF16 | {"model": "gru", "hidden_size": 16}, DENSE, "BTD", True),
    "lstm": (LSTM, DENSE, "TBD", False),
    "heads": (FP16 | {"model": "slstm", "hidden_size": 32, "heads": 2}, DENSE, "BTD", True),
    "parameters": (LEAKY | BF16, DENSE, "TBD", True),
    "cluster": (LSTM, DENSE | CLUSTER, "BTD", False),
    "large batch": (LSTM, LARGE, "BTD", False),
}


@pytest.fixture
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions run beside each other, whatever is expected to be faster."""
    monkeypatch.setattr(dense, "choose_directions", lambda *_: DirectionsChoice(1, 1.0, 2.0))
    monkeypatch.setenv("MINRNN_WAVEFRONT", "auto")


def builder_of(asked: dict[str, Any], wanted: dict[str, int], layout: str, folder: Path) -> WantedBuilder:
    of_grid = wanted.get("grid_blocks", 1) > 1
    asked = {"layout": layout, "batch": BATCH, "gpu": "a100" if of_grid else "h200", "input_size": 3} | asked
    spec = load_spec(asked | {"direction": "bidirectional"})
    return WantedBuilder(spec, target_of(spec), Store(folder), wanted=tuple(wanted.items()))


def outcome(kernel: Kernel, has_sequences: bool) -> dict[str, Any]:
    inputs = inputs_of(kernel.interface, Case(BATCH, TIME, has_sequences))
    y, final, saved = kernel.forward(**inputs.forward)
    gradients = kernel.backward(saved, inputs.dy, inputs.dstate or None)
    return {"y": y, **final, **dict(leaves(gradients, "d"))}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.matrix_full if number else ()) for number, way in enumerate(WAYS)]
)
@pytest.mark.usefixtures("_beside")
def test_lanes_change_no_bit(way: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, wanted, layout, has_sequences = WAYS[way]
    builder = builder_of(asked, wanted, layout, folder)
    kernel = InterpretedKernel(builder, ())
    found = outcome(kernel, has_sequences)
    # By kernels for half of the GPU, and by no others.
    assert not kernel.backend.built
    built = kernel.backend.half.built
    assert {plan.plan.problem.kernel_pass for plan in built.values()} == {"forward", "backward"}
    assert {key.specialization.reverse for key in built} == {False, True}

    def last_first(*given: Any) -> Iterator[Any]:
        return reversed([*runs_of(*given)])

    with monkeypatch.context() as patch:
        # None reads what the other writes, whichever comes first.
        patch.setattr(gpu, "runs_of", last_first)
        patch.setattr(dense, "runs_of", last_first)
        assert_same(outcome(kernel, has_sequences), found)
    monkeypatch.setenv("MINRNN_WAVEFRONT", "never")
    assert_same(outcome(InterpretedKernel(builder.half, ()), has_sequences), found)


class LoggedLanes:
    """Lanes on one stream, that of the call, which note what is asked of them."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def fork(self, _stream: int, lanes: int) -> None:
        self.log.append(("fork", lanes))

    def begin(self, lane: int, waits: Sequence[int]) -> int:
        self.log.append(("begin", lane, *waits))
        return 0

    def end(self, _lane: int, _step: int) -> None: ...

    def join(self, _stream: int, lanes: int) -> None:
        self.log.append(("join", lanes))


class LoggedKernel:
    """A kernel on the host that notes its launches: for how many SMs it is, and its pass."""

    def __init__(self, code: Any, name: tuple[int, str], log: list[Any]) -> None:
        self.code, self.name, self.log = code, name, log

    def launch(self, *given: Any) -> None:
        self.log.append(self.name)
        self.code.launch(*given)


class LoggedKernels(GivenKernels):
    """Kernels of a builder on the host, one log for those of all halves."""

    def __init__(self, builder: Builder, folder: Path, log: list[Any]) -> None:
        super().__init__(loading(builder, folder, cluster_blocks=1, batch_tile=2))
        self.builder, self.folder, self.log = builder, folder, log

    @cached_property
    def half(self) -> LoggedKernels:
        return LoggedKernels(self.builder.half, self.folder, self.log)

    def load(self, kernel: Any, part: str = "") -> tuple[Any, Any]:
        code, plan = super().load(kernel, part)
        return LoggedKernel(code, (self.builder.target.profile.sm_count, plan.problem.kernel_pass), self.log), plan


@contextmanager
def on_a_device(kernel: Kernel, log: list[Any], executor: Executor) -> Iterator[None]:
    """Run calls of a kernel by what records and replays them on a GPU."""
    with torch_on_host(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "lanes_of", lambda _: LoggedLanes(log))
        with as_if_on_a_device(kernel, executor=executor):
            yield


@pytest.fixture(scope="module")
def elman() -> Kernel:
    return compiled_for_host({"model": "elman", "hidden_size": 8, "precision": "fp64", "direction": "bidirectional"})


def drawn(kernel: Kernel, seed: int) -> dict[str, Any]:
    random, interface = np.random.default_rng(seed), kernel.interface
    x = random.normal(size=interface.shape(interface.x_axes, BATCH, TIME))
    return {"x": x, "R": random.normal(size=interface.R_shape) / 4}


def results_of(kernel: Kernel, arguments: dict[str, Any], trains: bool, to: Any = lambda value: value) -> dict[str, Any]:
    if not trains:
        y, final = kernel(**to(arguments))
        return {"y": y, **final}
    y, final, saved = kernel.forward(**to(arguments))
    return {"y": y, **final, **dict(leaves(kernel.backward(saved, to(arguments["x"][:, :, :, 0].reshape(y.shape))), "d"))}


def assert_close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, values in expected.items():
        np.testing.assert_allclose(as_arrays(found[name]), values, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.usefixtures("_beside")
@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.matrix_full)])
def test_lanes_are_recorded_and_replayed(elman: Kernel, folder: Path, trains: bool) -> None:
    kernels = LoggedKernels(elman.builder, folder, [])
    executor = executor_on(elman, kernels)
    half_sms = elman.builder.target.profile.sm_count // 2
    of_pass = {
        name: [("fork", 2), ("begin", 0), (half_sms, name), ("begin", 1), (half_sms, name), ("join", 2)]
        for name in ("forward", "backward")
    }
    for seed in range(3):  # recorded, and then replayed
        arguments = drawn(elman, seed)
        expected = results_of(elman, arguments, trains)
        with on_a_device(elman, kernels.log, executor):
            found = results_of(elman, arguments, trains, as_tensors)
        assert_close(found, expected)
        assert kernels.log == [*of_pass["forward"], *(of_pass["backward"] if trains else ())]
        assert len(executor.gpu.forwards) == 1
        kernels.log.clear()


@pytest.mark.usefixtures("_beside")
def test_what_takes_steps_one_by_one_stays_in_turn(elman: Kernel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = LoggedKernels(elman.builder, folder, [])
    stepwise = SimpleNamespace(is_persistent=False)
    monkeypatch.setattr(kernels.half, "plan", lambda _: stepwise)
    executor, arguments = executor_on(elman, kernels), drawn(elman, 0)
    expected = results_of(elman, arguments, trains=False)
    with on_a_device(elman, kernels.log, executor):
        found = results_of(elman, arguments, False, as_tensors)
    assert_close(found, expected)
    assert kernels.log == [(elman.builder.target.profile.sm_count, "forward")] * 2


def test_where_it_is_forbidden_nothing_is_asked(elman: Kernel, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRNN_WAVEFRONT", "never")
    monkeypatch.setattr(dense, "choose_directions", lambda *_: pytest.fail("it was asked"))
    kernels = LoggedKernels(elman.builder, folder, [])
    executor, arguments = executor_on(elman, kernels), drawn(elman, 0)
    with on_a_device(elman, kernels.log, executor):
        results_of(elman, arguments, False, as_tensors)
    assert kernels.log == [(elman.builder.target.profile.sm_count, "forward")] * 2


@pytest.mark.usefixtures("_beside")
def test_what_is_prepared_is_all_that_lanes_take(elman: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build_nothing(monkeypatch)
    executor = executor_on(elman, CompiledKernels(elman.builder, ()))
    arguments, log = drawn(elman, 0), []
    with on_a_device(elman, log, executor), np.errstate(all="ignore"):
        elman.prepare([(BATCH, TIME)])
        assert built
        built.clear()
        results_of(elman, arguments, trains=True, to=as_tensors)
    assert log == [("fork", 2), ("begin", 0), ("begin", 1), ("join", 2)] * 2 and built == []
    choice = executor.gpu.directions_beside("forward", elman.builder.hinted_sizes)
    assert choice is not None and choice.in_words in elman.explain()


@pytest.mark.usefixtures("_beside")
def test_what_others_replay_has_no_lanes(elman: Kernel, folder: Path) -> None:
    executor = executor_on(elman, LoggedKernels(elman.builder, folder, []))
    sizes = Sizes(BATCH, TIME)
    assert executor.gpu.directions_beside("forward", sizes)
    assert executor.recorded.directions_beside("forward", sizes) is None
