"""Measuring on the GPU: what is right is found right and has times, and what is wrong, faults or hangs costs itself alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import compile_source
from minrnn_gen.build.store import Store
from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.config.gpu_profile import MEASURED
from minrnn_gen.config.spec import load_spec
from minrnn_gen.errors import PromiseBroken
from minrnn_gen.gpu import device
from minrnn_gen.gpu.calibration import calibrated, calibration_path, write_calibration
from minrnn_gen.gpu.timer import ColdClock, poison, repeated
from minrnn_gen.run.target import target_of
from minrnn_gen.tune.calibrate import calibrate
from minrnn_gen.tune.device import CHILD
from minrnn_gen.tune.history import History
from minrnn_gen.tune.measurer import MeasurementFailed, MeasurementHung
from minrnn_gen.tune.session import tune_here
from minrnn_gen.tune.subprocess import ChildMeasurer
from minrnn_gen.tune.tuner import Limits, kernels_of
from minrnn_gen.tune.worker import MEASUREMENT_US, GpuMeasurer, gpu_measurer

# Times, and how long something takes that hangs, say little while others use the GPU.
pytestmark = [pytest.mark.gpu, pytest.mark.alone]

CASES: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 96, "precision": "bf16", "batch": 200, "time": 300},
    {"model": "min_lstm", "hidden_size": 256, "batch": 2, "time": 4096, "layout": "BDT"},
    {"model": "min_gru", "hidden_size": 33, "precision": "fp16", "batch": 3, "time": 70, "direction": "bidirectional"},
    {"model": "ind_rnn", "hidden_size": 128, "batch": 16, "time": 500},
    {"model": "lstm", "hidden_size": 128, "heads": 2, "precision": "bf16", "batch": 16, "time": 200},
    {"model": "gru", "hidden_size": 64, "batch": 4, "time": 150, "input_size": 32},
    {"model": "slstm", "hidden_size": 64, "precision": "fp16", "batch": 4, "time": 150},
)
SMALL: dict[str, Any] = {"model": "min_gru", "hidden_size": 64, "batch": 8, "time": 256, "training": False}
# Ranks of each family's candidates, from the best predicted to the last.
SHARES = (0.0, 0.5, 1.0)
# A candidate of these sizes takes microseconds; a process that is new loads libraries, too.
SOON_SECONDS = 10.0


@pytest.fixture(scope="module")
def measurer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuMeasurer]:
    made = gpu_measurer(tmp_path_factory.mktemp("kernels"))
    yield made
    made.close()


def builder_of(store: Store, **spec: Any) -> Builder:
    loaded = load_spec(spec)
    return Builder(loaded, target_of(loaded), store)


def trial_of(builder: Builder, built: BuiltKernel, cubin: bytes | None = None) -> Trial:
    return Trial(builder.recipe, built.cell, built.plan, cubin or built.cubin or b"")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']} {case.get('precision', 'fp32')}")
def test_candidates_are_right_and_have_times(measurer: GpuMeasurer, shared_store: Store, case: dict[str, Any]) -> None:
    builder, measured = builder_of(shared_store, **case), 0
    for key in kernels_of(builder):
        for solution in builder.solutions(key):
            for rank in {int(share * (len(solution.candidates) - 1)) for share in SHARES}:
                try:
                    built = builder.build_candidate(solution, rank)
                except PromiseBroken:
                    continue
                trial = trial_of(builder, built)
                measurer.prepare(trial)
                assert measurer.error_share(trial) <= 1, (key.kernel_pass, dict(built.plan.variables))
                times_us = measurer.times_us(trial, 3)
                # Of a slow one fewer times.
                assert len(times_us) == 3 or sum(times_us) >= MEASUREMENT_US
                assert all(0.5 < us < 1e6 for us in times_us)
                measured += 1
    assert measured >= 2


def test_another_cells_kernel_is_wrong(measurer: GpuMeasurer, shared_store: Store) -> None:
    """The same arrays, other equations."""
    builder, other = (builder_of(shared_store, **SMALL | {"model": model}) for model in ("min_gru", "min_gru_tanh"))
    trial = trial_of(builder, builder.build(builder.key_of("forward", builder.hinted_specialization)))
    assert measurer.error_share(trial) <= 1
    assert not measurer.error_share(replace(trial, recipe=other.recipe)) <= 1


def compiled(source: str, like: BuiltKernel) -> bytes:
    return compile_source(source, like.plan).cubin


def spoilt(built: BuiltKernel, first: str) -> bytes:
    """The same kernel, which does something else first."""
    text, count = re.subn(r'(extern "C" __global__ .*?\) \{\n)', rf"\g<1>    {first}\n", built.source, count=1, flags=re.S)
    assert count == 1
    return compiled(text, built)


def test_what_faults_or_hangs_costs_itself_alone(shared_store: Store) -> None:
    builder = builder_of(shared_store, **SMALL)
    built = builder.build(builder.key_of("forward", builder.hinted_specialization))
    right = trial_of(builder, built)
    child = ChildMeasurer(CHILD, reply_seconds=SOON_SECONDS)
    try:
        assert child.device == device.live_device().name  # type: ignore[union-attr]
        assert child.error_share(right) <= 1
        faulty = trial_of(builder, built, spoilt(built, "*reinterpret_cast<volatile int*>(8) = 1;"))
        with pytest.raises(MeasurementFailed):
            child.error_share(faulty)
        assert len(child.times_us(right, 3)) == 3
        endless = trial_of(builder, built, spoilt(built, "while (clock64() != 0) {}"))
        with pytest.raises(MeasurementHung):
            child.error_share(endless)
        assert child.error_share(right) <= 1
    finally:
        child.close()


def test_a_spec_is_tuned_and_what_won_is_taken(tmp_path: Path) -> None:
    store = Store(tmp_path)
    builder = builder_of(store, **SMALL)
    tuned = list(tune_here(builder, Limits(20.0, 4)))
    assert [one.setting.kernel_pass for one in tuned] == ["forward", "step"]
    for one, key in zip(tuned, kernels_of(builder), strict=True):
        assert one.winner is not None and one.best_us is not None and one.outcomes["measured"] >= 2
        assert set(one.outcomes) <= {"measured", "broken"}, one.outcomes
        assert one.first_us is None or one.best_us <= one.first_us
        found = builder_of(store, **SMALL).build(key)
        assert found.cached and found.plan == one.winner.plan and "measured" in found.chosen
    written = len(History(store).results(builder.target.profile.name))
    again = list(tune_here(builder_of(store, **SMALL), Limits(0.0, 4)))
    assert [one.best_us for one in again] == [one.best_us for one in tuned]
    assert len(History(store).results(builder.target.profile.name)) == written


def test_the_clock_sees_a_copy_from_memory(cupy: ModuleType) -> None:
    live = device.live_device()
    assert live is not None
    clock = ColdClock(live.profile.l2_bytes, live.profile.bandwidth_bytes_per_s)
    source = cupy.zeros(1 << 30, "u1")  # of which the cache holds next to nothing
    target = cupy.empty_like(source)
    us = sorted(clock.time_us(lambda: target.data.copy_from_device_async(source.data, source.nbytes)) for _ in range(5))[2]
    floor_us = 2e6 * source.nbytes / live.profile.memory_bandwidth_bytes_per_s
    assert 0.9 * floor_us < us < 3 * floor_us


def test_memory_is_poisoned_and_arrays_are_as_aligned_as_asked(cupy: ModuleType) -> None:
    import ml_dtypes
    import numpy

    poison([4096])
    assert bool(cupy.isnan(cupy.empty(1024, "f4")).all())
    values = numpy.arange(7).astype(ml_dtypes.bfloat16)
    for alignment_bytes in (2, 4, 8, 16):
        array = repeated(values, (3, 5), alignment_bytes)
        assert array.data.ptr % 16 == alignment_bytes % 16 and array.dtype == values.dtype
        assert (cupy.asnumpy(array) == numpy.resize(values, (3, 5))).all()


def test_what_calibrate_measures_is_plausible_and_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    live = device.live_device()
    assert live is not None
    profile, before = calibrate(), live.profile
    found = {field: getattr(profile, field) for field in MEASURED}
    assert profile.assumed == (), found
    assert 0.5 < profile.copy_bandwidth_bytes_per_s / before.memory_bandwidth_bytes_per_s <= 1, found  # type: ignore[operator]
    assert 0.5 < profile.memory_latency_ns / before.memory_latency_ns < 2, found
    # From an empty kernel to the slowest launch; a barrier within an SM, over some of them, over all.
    assert 0.5 < profile.launch_us < 20, found  # type: ignore[operator]
    assert 5 < profile.block_exchange_ns < 200, found  # type: ignore[operator]
    assert profile.block_exchange_ns < profile.grid_exchange_ns < 5000, found  # type: ignore[operator]
    if profile.cluster_exchange_ns:
        assert profile.block_exchange_ns < profile.cluster_exchange_ns < profile.grid_exchange_ns, found  # type: ignore[operator]
    # 16 by the programming guide, of 8 in some generations; no GPU makes more products than twice those of Hopper.
    assert 4 <= profile.transcendentals_per_sm_cycle <= 40, found  # type: ignore[operator]
    if profile.products_per_sm_cycle:
        assert 64 <= profile.products_per_sm_cycle <= 4096, found
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path))
    write_calibration(profile, calibration_path(profile.name))
    assert calibrated(before) == profile
