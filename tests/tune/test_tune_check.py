"""A check of a GPU: what it runs, which faults it names, and what its report keeps to itself."""

from __future__ import annotations

import getpass
import json
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.fake_compiler import Compiler
from support.fake_measurer import FakeMeasurer

from minrnn_gen.build.store import Store
from minrnn_gen.build.target import Target
from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.config.gpu_profile import _ATTRIBUTE_OF, GpuProfile, load_profile, profile_bytes, profile_names
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.gpu.device import LiveDevice
from minrnn_gen.interpret.backend import EmulatedBackend
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.families import FAMILIES
from minrnn_gen.report.gpu_check import markdown_of
from minrnn_gen.tune import anonymous, check
from minrnn_gen.tune.check import DeviceCheck, check_here
from minrnn_gen.tune.check_problems import CheckedProblem, family_problems
from minrnn_gen.tune.check_results import GpuCheck
from minrnn_gen.tune.results import CandidateKey
from minrnn_gen.tune.workload import Workload, on_host

CheckOf = Callable[..., GpuCheck]
# Of a copy; what else is measured is measured as the profile has it.
COPIES = {"h100": 2.98e12, "h200": 4.26e12}
# The oldest and the newest.
EVERYDAY = {"t4", "rtx5090"}
# By how much a planted number differs: more than clocks, datasheets and runs do.
PLANTED = 1.4


def live_of(profile: GpuProfile) -> LiveDevice:
    """Return a device of which a profile is true in all that the driver says."""
    attributes = {attribute: int(getattr(profile, name)) for name, attribute in _ATTRIBUTE_OF.items()}
    attributes["ClockRate"] = int(profile.sm_clock_hz / 1e3)
    attributes["GlobalMemoryBusWidth"] = 5120
    attributes["MemoryClockRate"] = int(profile.memory_bandwidth_bytes_per_s * 8 / 5120 / 2e3)
    return LiveDevice(profile.device_names[0], profile.compute_capability, attributes, profile, True)


@pytest.fixture
def check_of(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CheckOf:
    """Check a device that is none, which is as the shipped profile of `gpu` says, by a profile."""
    monkeypatch.setattr(check, "toolchain_version", lambda: "nvrtc 13.4")
    assert compiler.calls == 0

    def made(
        gpu: str = "h200",
        profile: GpuProfile | None = None,
        measurer: FakeMeasurer | None = None,
        rates: Mapping[str, float] | check.Rates | None = None,
        **changed: Any,
    ) -> GpuCheck:
        shipped = load_profile(gpu)
        rates = rates or {"copy_bandwidth_bytes_per_s": COPIES.get(gpu, shipped.bandwidth_bytes_per_s)}
        measured: check.Rates = rates if callable(rates) else lambda: rates
        measurer = measurer or FakeMeasurer(truth_us=lambda _: 10.0)
        store = Store(tmp_path / "kernels")
        whole = {"is_quick": True, "compilers": 1} | changed
        return DeviceCheck(profile or shipped, live_of(shipped), measured, measurer, store, **whole).run()

    return made


@pytest.fixture
def without_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of families alone are checked: of picks, hundreds of candidates are raced."""
    monkeypatch.setattr(check, "pick_problems", lambda *_: iter(()))


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch, without_picks: None) -> None:  # noqa: ARG001 - no picks either
    """Nothing is planned for what is judged by attributes and rates."""
    only = CheckedProblem({"model": "min_gru", "hidden_size": 64, "batch": 2, "time": 64}, "step", "fp32")
    monkeypatch.setattr(check, "family_problems", lambda *_: iter([only]))


@pytest.mark.parametrize("is_quick", [True, pytest.param(False, marks=pytest.mark.matrix_full)])
def test_every_family_is_run_once_and_a_sound_gpu_has_no_faults(check_of: CheckOf, is_quick: bool) -> None:
    found = check_of(is_quick=is_quick)
    assert found.faults == () and found.remarks == ()
    # Filters have no spec, and the first call of one is its check.
    assert {kernel.family for kernel in found.kernels} == {family.name for family in FAMILIES if family.strategy != "chained"}
    assert {kernel.outcome for kernel in found.kernels} == {"measured"}
    # What is checked is measured once, and of each problem the best few.
    assert len({(kernel.family, kernel.problem, kernel.kernel_pass) for kernel in found.kernels}) == len(found.kernels)
    assert all(pick.measured <= check.CANDIDATES and pick.regret for pick in found.picks) and len(found.picks) >= 4


@pytest.mark.parametrize(
    "gpu", [pytest.param(gpu, marks=() if gpu in EVERYDAY else pytest.mark.matrix_full) for gpu in profile_names()]
)
def test_every_shipped_profile_is_checked_on_a_device_like_it(check_of: CheckOf, gpu: str) -> None:
    found = check_of(gpu)
    assert found.faults == ()
    # At least the kernels that any GPU has, each pass of each class.
    assert {"scan_forward_channels", "stepwise_backward", "diagonal_step", "vector_forward", "dropout"} <= {
        kernel.family for kernel in found.kernels if kernel.outcome == "measured"
    }
    text = markdown_of(found.summary())
    assert (f"`{gpu}`, never run before" in text) == (load_profile(gpu).checked is None)


def planted(profile: GpuProfile, **changes: Any) -> GpuProfile:
    return profile.model_copy(update=changes)


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("name", [*_ATTRIBUTE_OF, "memory_bandwidth_bytes_per_s", "copy_bandwidth_bytes_per_s", "sm_clock_hz"])
@pytest.mark.parametrize("factor", [PLANTED, 1 / PLANTED])
def test_each_number_that_is_wrong_in_a_profile_is_named(check_of: CheckOf, name: str, factor: float) -> None:
    profile = load_profile("h200")
    value = getattr(profile, name)
    wrong = planted(profile, **{name: type(value)(value * factor)})
    faults = check_of(profile=wrong, rates={"copy_bandwidth_bytes_per_s": COPIES["h200"]}).faults
    assert any(fault.startswith(f"{name}: ") for fault in faults), faults


@pytest.mark.usefixtures("without_kernels")
def test_a_bandwidth_is_named_where_the_driver_says_none(check_of: CheckOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers that report no clocks leave the copy as the only witness."""
    real = live_of
    monkeypatch.setitem(globals(), "live_of", lambda profile: without_clocks(real(profile)))
    profile = load_profile("a100")
    assert check_of("a100").faults == ()
    for factor in (PLANTED, 1 / PLANTED):
        wrong = planted(profile, memory_bandwidth_bytes_per_s=profile.memory_bandwidth_bytes_per_s * factor)
        faults = check_of("a100", wrong, rates={"copy_bandwidth_bytes_per_s": profile.bandwidth_bytes_per_s}).faults
        assert any("memory_bandwidth_bytes_per_s: " in fault for fault in faults), faults


def without_clocks(live: LiveDevice) -> LiveDevice:
    for name in ("ClockRate", "MemoryClockRate"):
        live.attributes[name] = 0
    return live


def test_kernels_of_another_architecture_are_not_run(check_of: CheckOf) -> None:
    measurer = FakeMeasurer()
    found = check_of("h200", load_profile("a100"), measurer)
    assert not measurer.checked and not found.kernels
    assert any(fault.startswith("compute_capability: the profile has 8.0, the device 9.0") for fault in found.faults)
    assert any(fault.startswith("kernels: none were run") for fault in found.faults)


@pytest.mark.usefixtures("without_picks")
def test_kernels_that_are_wrong_or_fail_are_named_and_the_others_are_run(check_of: CheckOf, compiler: Compiler) -> None:
    secret = f"/home/{getpass.getuser()}/work/file.cu on {platform.node()}"
    sound = FakeMeasurer(truth_us=lambda _: 10.0)
    measurer = FakeMeasurer(
        truth_us=lambda _: 10.0,
        wrong=lambda candidate: candidate[0] == "scan_forward_time",
        failing=lambda candidate: candidate[0] == "vector_step",
    )
    times_us = measurer.times_us

    def failing(trial: Trial, repeats: int) -> Any:
        if trial.plan.name == "diagonal_step":
            raise check.CannotMeasure(f"no such file: {secret}")
        return times_us(trial, repeats)

    measurer.times_us = failing  # type: ignore[method-assign]
    found = check_of(measurer=measurer)
    assert {fault.partition(" for ")[0] for fault in found.faults} == {
        "scan_forward_time: wrong",
        "vector_step: failed",
        "diagonal_step: failed",
    }
    assert len(found.kernels) == len(check_of(measurer=sound).kernels)
    for text in (markdown_of(found.summary()), json.dumps(found.summary())):
        assert "no such file: (path) on (name)" in text and "/home" not in text
    compiler.breaks = lambda variables: "threads" in variables
    assert any("scan_step: broken" in fault for fault in check_of().faults)


@pytest.mark.usefixtures("without_kernels")
def test_rates_that_cannot_be_measured_are_a_fault(check_of: CheckOf) -> None:
    def refused() -> Mapping[str, float]:
        raise ToolchainMissing("measuring ended with status 1: out of memory in /tmp/rulers.py")

    found = check_of(rates=refused)
    assert found.faults == ("rates: measuring ended with status 1: out of memory in (path)",) and found.rates == ()


def test_slow_picks_and_rates_far_off_are_remarks(check_of: CheckOf) -> None:
    h200 = load_profile("h200")
    rates = {"copy_bandwidth_bytes_per_s": 4.26e12, "grid_exchange_ns": 2 * h200.grid_exchange_ns}  # type: ignore[operator]
    places: dict[CandidateKey, int] = {}

    def truth_us(one: CandidateKey) -> float:
        """Return a time that falls from one candidate to the next: the pick of a race is measured first."""
        return 1000 * 0.9 ** places.setdefault(one, len(places))

    found = check_of(rates=rates, measurer=FakeMeasurer(truth_us))
    assert found.faults == () and any(remark.startswith("grid_exchange_ns: ") for remark in found.remarks)
    assert any(remark.startswith("pick of min_gru") for remark in found.remarks)


def test_text_of_others_loses_paths_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anonymous.platform, "node", lambda: "workbench.example.org")
    monkeypatch.setattr(anonymous.getpass, "getuser", lambda: "gwen")
    anonymous._names.cache_clear()
    try:
        for text, clean in (
            ("cannot open '/tmp/a b/c.so'", "cannot open '(path) b/c.so'"),
            (r"in C:\Users\gwen\x.cu: line 3", "in (path): line 3"),
            ("gwen@workbench.example.org (workbench): 4.2 GB/s, 1/2", "(name)@(name) ((name)): 4.2 GB/s, 1/2"),
            ("CUDA_ERROR_INVALID_VALUE: invalid argument", "CUDA_ERROR_INVALID_VALUE: invalid argument"),
            ("~/cache/kernels", "(path)"),
        ):
            assert anonymous.anonymous(text) == clean
    finally:
        anonymous._names.cache_clear()


def test_without_a_gpu_or_nvrtc_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check.device, "live_device", lambda: None)
    with pytest.raises(ToolchainMissing, match="check-gpu runs kernels on a GPU, but"):
        check_here()
    monkeypatch.setattr(check.device, "live_device", lambda: live_of(load_profile("h200")))
    monkeypatch.setattr(check, "toolchain_version", lambda: None)
    with pytest.raises(ToolchainMissing, match="NVRTC"):
        check_here()
    with pytest.raises(BadInput, match="no GPU profile is called"):
        check_here("h201")
    monkeypatch.setattr(check, "toolchain_version", lambda: "nvrtc 13.4")
    monkeypatch.setenv("MINRNN_DEBUG", "1")
    with pytest.raises(BadInput, match="MINRNN_DEBUG"):
        check_here()


def workload_of(problem: CheckedProblem, folder: Path) -> Workload:
    target = Target(load_profile("h200"), profile_bytes("h200"), "spec")
    builder = problem.builder(target, Store(folder))
    solution = builder.solve(problem.key(builder))
    return Workload(Trial(builder.recipe, solution.problem.cell, solution.plan(), b"cubin"), target, Store(folder), on_host)


@pytest.mark.usefixtures("compiler", "cache")
def test_a_projection_is_checked_next_to_the_reference(tmp_path: Path) -> None:
    (problem,) = (one for one in family_problems(load_profile("h200"), True) if "input_size" in one.spec)
    workload = workload_of(problem, tmp_path)
    assert workload.plan.name == "scan_forward_projected"
    results = dict(workload.checked_run(workload.kernel_of(workload.trial))())
    assert workload.error_share(results) <= 0.5
    results["y"] = results["y"].copy()
    results["y"][-1, -1, -1] += results["y"].dtype.type(1)
    assert workload.error_share(results) > 1


@pytest.mark.usefixtures("compiler", "cache")
def test_arguments_of_products_are_checked_by_a_backward(tmp_path: Path) -> None:
    spec = {"model": "gru_reset_before", "hidden_size": 16, "batch": 3, "time": 20}
    workload = workload_of(CheckedProblem(spec, "arguments", "bf16"), tmp_path)
    assert workload.plan.name == "backward_arguments"
    results = dict(workload.checked_run(workload.kernel_of(workload.trial))())
    assert workload.error_share(results) <= 0.5 and {"x", "R", "state h"} <= results.keys()


@pytest.mark.skipif(not has_compiler(), reason="the kernel's text is compiled by a host C++ compiler, and there is none")
@pytest.mark.usefixtures("compiler", "cache")
def test_dropout_is_checked_next_to_the_reference(tmp_path: Path) -> None:
    """By its emulated kernel."""
    spec = {"model": "lstm", "hidden_size": 64, "batch": 2, "time": 40}
    workload = workload_of(CheckedProblem(spec, "dropout", "bf16"), tmp_path)
    assert workload.plan.name == "dropout"
    builder = EmulatedBuilder(workload.builder.spec, workload.target, Store(tmp_path / "emulated"))
    kernel = Kernel(builder, (), EmulatedBackend(builder, ()))
    results = dict(workload.checked_run(kernel)())
    assert workload.error_share(results) == 0
    results["y"].reshape(-1)[0] += results["y"].dtype.type(1)
    assert workload.error_share(results) > 1
