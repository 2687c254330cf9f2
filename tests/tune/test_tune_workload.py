"""Workloads of candidates: the CPU target in a candidate's place is right, and any wrong result is found."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from support.emulated_code import HAS_COMPILER
from support.everyday import one_in
from support.exported_launches import PlannedRun, SeenLaunch, Way, planned_call
from support.fake_compiler import BuilderOf

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.builder import Builder
from minrnn_gen.build.store import Store
from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.plan.kernel_plan import KernelPlan, Specialization
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, Sizes, alignment_of
from minrnn_gen.plan.scan.projected import TILE_STEPS
from minrnn_gen.run.gpu import GpuRun
from minrnn_gen.tune.measurer import CannotMeasure
from minrnn_gen.tune.tuner import kernels_of
from minrnn_gen.tune.workload import (
    CHECKED_ELEMENTS,
    FILLING_CHANNELS_PER_SM,
    SHORT_STEPS,
    Workload,
    checked_sizes,
    demand_specialization,
    on_host,
)

CASES = (
    {"model": "min_gru", "precision": "bf16", "layout": "BDT"},
    {"model": "min_lstm", "direction": "bidirectional", "input_size": 24},
    {"model": "min_gru_log", "scan_arithmetic": "log", "training": False},
    {"model": "ind_rnn", "precision": "fp16"},
    {"model": "lstm", "precision": "bf16", "heads": 2, "direction": "reverse"},
    {"model": "gru", "recurrent_bias": True},
    {"model": "slstm", "precision": "fp16", "layout": "TBD"},
    {"model": "lstm", "fp32_product": "fma", "functions": "fast", "recurrent_gradient_clip": 0.5},
)


@pytest.fixture
def subjects_of(builder_of: BuilderOf, tmp_path: Any) -> Callable[..., list[Workload]]:
    """One for each kernel of a spec that is tuned, run on the host."""

    def made(**spec: Any) -> list[Workload]:
        builder = builder_of(gpu="h200", **{"hidden_size": 32, "training": True, "batch": 3, "time": 37, **spec})
        found = []
        for key in kernels_of(builder):
            solution = builder.solve(key)
            trial = Trial(builder.recipe, solution.problem.cell, solution.plan(), b"cubin")
            found.append(Workload(trial, builder.target, Store(tmp_path), on_host))
        return found

    return made


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("case", one_in(2, CASES), ids=lambda case: f"{case['model']} {case.get('precision', 'fp32')}")
def test_what_is_right_is_within_the_tolerance_and_one_wrong_element_is_not(
    subjects_of: Callable[..., list[Workload]], case: dict[str, Any]
) -> None:
    for subject in subjects_of(**case):
        results = dict(subject.checked_run(subject.kernel_of(subject.trial))())
        assert subject.error_share(results) <= 0.5, subject.plan.problem.kernel_pass
        assert results.keys() == subject.expected.keys()
        for name, one in results.items():
            largest = float(abs(one.astype(numpy.float64)).max())
            for wrong in (largest / 2, numpy.nan, -numpy.inf):
                spoilt = numpy.array(one)
                spoilt.flat[spoilt.size // 3] = spoilt.flat[spoilt.size // 3].astype(numpy.float64) + wrong
                assert not subject.error_share({**results, name: spoilt}) <= 1, name


@pytest.mark.usefixtures("compiler")
def test_gradients_of_everything_given_are_among_the_results(subjects_of: Callable[..., list[Workload]]) -> None:
    *_, backward = (one for one in subjects_of(model="gru", recurrent_bias=True) if one.plan.problem.kernel_pass == "backward")
    assert set(backward.expected) == {"x", "R", "bias", "recurrent_bias", "state h"}
    timed = backward.timed_run(backward.kernel_of(backward.trial))()
    assert timed["x"].shape == (3, 37, 3, 32)


def projecting(builder: Builder, emulated: EmulatedBuilder, folder: Path) -> tuple[Workload, BuiltKernel]:
    """Return calls of a scan that multiplies x itself, and its kernel to be emulated."""
    specialization = Specialization(WIDEST_COPY_BYTES, input_size=builder.spec.input_size or 0)
    built = emulated.build(emulated.key_of("forward", specialization, Sizes(1, 2 * TILE_STEPS)))
    trial = Trial(builder.recipe, built.cell, built.plan, bytes(64))
    return Workload(trial, builder.target, Store(folder), on_host), built


PROJECTED = {"hidden_size": 128, "input_size": 64, "precision": "bf16", "training": True}


@pytest.mark.usefixtures("compiler")
def test_a_scan_that_multiplies_x_itself_is_run_on_x_and_its_weight(builder_of: BuilderOf, tmp_path: Path) -> None:
    builder = builder_of(**PROJECTED)
    subject, built = projecting(builder, EmulatedBuilder(builder.spec, builder.target, Store(tmp_path)), tmp_path)
    interface, run = subject.kernel_of(subject.trial).interface, PlannedRun(subject.builder)
    call = planned_call(interface, 1, 2 * TILE_STEPS, Way())
    GpuRun(interface, subject.builder, run).forward(call, "none", saves=False)
    assert [one.entry for one in run.seen if isinstance(one, SeenLaunch)] == [built.plan.symbol]
    results = dict(subject.checked_run(subject.kernel_of(subject.trial))())
    assert results["y"].shape == (1, 2 * TILE_STEPS, 128) and subject.error_share(results) <= 0.5
    assert subject.timed_run(subject.kernel_of(subject.trial))()["y"].shape == results["y"].shape


@pytest.mark.matrix_full
@pytest.mark.usefixtures("compiler")
@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C++ compiler")
def test_a_scan_that_multiplies_x_itself_is_right_where_it_is_checked(
    builder_of: BuilderOf, emulated_kernels: Path, tmp_path: Path
) -> None:
    builder = builder_of(**PROJECTED)
    emulated = EmulatedBuilder(builder.spec, builder.target, Store(emulated_kernels), projects=True)
    subject, built = projecting(builder, emulated, tmp_path)
    kernel = InterpretedKernel(emulated, (built,))
    results = dict(subject.checked_run(kernel)())
    demand_specialization(kernel, subject.plan)
    assert subject.error_share(results) <= 0.5


def test_a_scan_that_multiplies_x_itself_is_checked_at_whole_tiles(builder_of: BuilderOf) -> None:
    builder = builder_of(hidden_size=512, input_size=512, precision="bf16")
    specialization = Specialization(WIDEST_COPY_BYTES, input_size=512)
    for batch, time in ((1, 2048), (64, 512), (300, 128), (4096, 1024), (8, 1 << 18)):
        plan = builder.solve(builder.key_of("forward", specialization, Sizes(batch, time))).plan()
        found = checked_sizes(plan, False, builder.target.profile.sm_count)
        assert 0 < found.batch <= batch and found.time % TILE_STEPS == 0
        assert min(2 * TILE_STEPS, time) <= found.time <= time
        assert found.batch * found.time * 512 <= 2 * CHECKED_ELEMENTS


def test_checked_sizes_are_of_the_specialization_and_few() -> None:
    profile = load_profile("h200")
    shapes = itertools.product((1, 8, 64, 4096), (1, 100, 129, 1000, 16384, 10**6), (5, 512, 1536), (True, False))
    for batch, time, hidden_size, is_dense in shapes:
        planned = Sizes(batch, time)
        found = checked_sizes(plan(batch, time, hidden_size), is_dense, profile.sm_count)
        assert found.batch <= batch and found.time <= time
        assert (found.time <= SHORT_STEPS) == (planned.time <= SHORT_STEPS)
        filling = FILLING_CHANNELS_PER_SM * profile.sm_count
        assert (found.batch * hidden_size < filling) == (planned.batch * hidden_size < filling)
        # As aligned where time is contiguous.
        assert alignment_of(2 * found.time) == alignment_of(2 * time)
        assert found.batch * found.time * hidden_size <= max(2 * CHECKED_ELEMENTS, 160 * (hidden_size + 64 * 132))


def plan(batch: int, time: int, hidden_size: int) -> KernelPlan:
    """Sizes alone."""
    made = object.__new__(KernelPlan)
    object.__setattr__(made, "problem", SimpleNamespace(batch=batch, time=time, hidden_size=hidden_size))
    object.__setattr__(made, "strategy", "channels")
    return made


@pytest.mark.usefixtures("compiler")
def test_a_call_of_another_specialization_says_nothing(subjects_of: Callable[..., list[Workload]]) -> None:
    subject = subjects_of(model="min_gru", training=False)[0]
    kernel = subject.kernel_of(subject.trial)
    demand_specialization(kernel, subject.plan)
    with pytest.raises(Exception, match="and the candidate is of"):
        other = replace(subject.plan.problem, specialization=replace(subject.plan.problem.specialization, resets=True))
        demand_specialization(kernel, replace(subject.plan, problem=other))


def test_a_reference_that_is_nan_everywhere_measures_nothing(subjects_of: Callable[..., list[Workload]]) -> None:
    """No candidate is to blame, and none is right."""
    nowhere = {"name": "nowhere", "equations": "h[t] = sigmoid(W.z) * h[t-1] + log(-exp(W.h))"}
    subject = subjects_of(model=nowhere, training=False)[0]
    with pytest.raises(CannotMeasure, match="NaN everywhere"):
        subject.prepare()
