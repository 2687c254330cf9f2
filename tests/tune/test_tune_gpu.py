"""The measurer of a GPU, run where there is none: NumPy in place of CuPy, the CPU target in place of kernels."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fake_compiler import BuilderOf

from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.gpu import device, timer
from minrnn_gen.gpu.device import LiveDevice
from minrnn_gen.gpu.timer import FLUSH_SECONDS, ColdClock, repeated
from minrnn_gen.tune import worker as gpu_module
from minrnn_gen.tune.tuner import kernels_of
from minrnn_gen.tune.worker import MEASUREMENT_US, GpuMeasurer


class HostArray(numpy.ndarray):
    """An array with the one thing that CuPy's have besides: memory that can be set."""

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(memset_async=self._set, ptr=self.ctypes.data)

    def _set(self, byte: int, size_bytes: int) -> None:
        self.view("u1")[:size_bytes] = byte


class FakeCupy:
    """NumPy under CuPy's name; `ms` are the times that events will have been apart, the last of them for ever."""

    def __init__(self, *ms: float) -> None:
        self.log: list[str] = []
        self._ms = itertools.chain(ms, itertools.repeat(ms[-1]))
        self.cuda = SimpleNamespace(Event=self._event, get_elapsed_time=lambda _began, _ended: next(self._ms))

    def empty(self, shape: Any, dtype: Any) -> HostArray:
        self.log.append(f"empty {shape}")
        return numpy.empty(shape, dtype).view(HostArray)

    def asarray(self, values: Any) -> HostArray:
        return numpy.asarray(values).view(HostArray)

    def get_default_memory_pool(self) -> Any:
        return SimpleNamespace(free_all_blocks=lambda: self.log.append("free"))

    def _event(self) -> Any:
        return SimpleNamespace(record=lambda: self.log.append("record"), synchronize=lambda: self.log.append("wait"))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    made = FakeCupy(0.25)
    monkeypatch.setattr(timer, "cupy_module", lambda: made)
    monkeypatch.setattr(device, "synchronize", lambda: None)
    # Calls take plain arrays.
    monkeypatch.setattr(gpu_module, "repeated", lambda *given: numpy.asarray(repeated(*given)))
    return made


@pytest.mark.matrix_full
@pytest.mark.usefixtures("compiler", "cupy")
@pytest.mark.parametrize(
    "case",
    [
        {"model": "min_lstm", "precision": "fp16"},
        pytest.param({"model": "gru", "precision": "bf16"}, marks=pytest.mark.matrix_full),
    ],
)
def test_every_kernel_of_a_spec_is_checked_and_timed(builder_of: BuilderOf, tmp_path: Path, case: dict[str, Any]) -> None:
    builder = builder_of(**{"hidden_size": 24, "training": True, "batch": 2, "time": 33, **case})
    live = LiveDevice("NVIDIA H200", "9.0", {}, load_profile("h200"), True)
    measurer = GpuMeasurer(live, tmp_path, ColdClock(1 << 10, 1e6))
    assert (measurer.gpu, measurer.device) == ("h200", "NVIDIA H200")
    for key in kernels_of(builder):
        solution = builder.solve(key)
        for rank in (0, len(solution.candidates) - 1):
            trial = Trial(builder.recipe, solution.problem.cell, solution.plan(rank), b"cubin")
            measurer.prepare(trial)
            subject = measurer._workload
            assert measurer.error_share(trial) <= 0.5
            assert measurer.times_us(trial, 3) == [250.0] * 3
            assert measurer._workload is subject
    measurer.close()
    assert measurer._workload is None


@pytest.mark.matrix_full
@pytest.mark.usefixtures("compiler")
def test_what_is_slow_is_run_once(builder_of: BuilderOf, cupy: FakeCupy, tmp_path: Path) -> None:
    builder = builder_of()
    solution = builder.solve(builder.key_of("forward", builder.hinted_specialization))
    trial = Trial(builder.recipe, solution.problem.cell, solution.plan(), b"cubin")
    live = LiveDevice("NVIDIA H200", "9.0", {}, load_profile("h200"), True)
    measurer = GpuMeasurer(live, tmp_path, ColdClock(1 << 10, 1e6))
    cupy._ms = itertools.repeat(MEASUREMENT_US / 1e3 + 1)
    assert len(measurer.times_us(trial, 3)) == 1
    measurer.close()


def test_the_cache_is_cold_and_the_device_busy_before_a_run_is_timed(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ColdClock(1000, 4e6)
    flushed: list[int] = []
    monkeypatch.setattr(HostArray, "_set", lambda _self, _byte, size_bytes: flushed.append(size_bytes))
    assert clock.time_us(lambda: cupy.log.append("run")) == 250.0
    assert cupy.log == ["empty 2000", "record", "run", "record", "wait"]
    # At half of the bandwidth, since nothing is read.
    assert flushed == [2000, 2000] and sum(flushed) >= FLUSH_SECONDS * 4e6 / 2


@pytest.mark.usefixtures("cupy")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 40),
    st.integers(0, 7),
    st.integers(0, 9),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from(["f2", "f8"]),
)
def test_values_are_repeated_as_aligned_as_asked(count: int, rows: int, columns: int, alignment: int, dtype: str) -> None:
    values = numpy.arange(count).astype(dtype)
    alignment_bytes = max(alignment, values.itemsize)
    found = repeated(values, (rows, columns), alignment_bytes)
    assert (found == numpy.resize(values, (rows, columns))).all() and found.dtype == values.dtype
    if found.size:
        assert found.ctypes.data % 16 == alignment_bytes % 16


def test_without_a_gpu_the_process_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_module.gpu_device, "live_device", lambda: None)
    with pytest.raises(Exception, match="needs a GPU"):
        gpu_module.gpu_measurer(Path())
