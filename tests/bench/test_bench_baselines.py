"""Baselines that are missing, broken or slow cost their rows and no more."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest
from support.fake_gpu import FakeGpu, Tensor
from support.patience import within

from benchmarks.contenders import probe
from benchmarks.contenders.baselines import BASELINES, NOT_INSTALLED, Baseline, Layout, baseline_of, refusal, refusals
from minrnn_gen.errors import BadInput, ToolchainMissing


def baseline(distribution: str = "numpy") -> Baseline:
    def load() -> object:
        raise AssertionError("loaded in this process")

    return Baseline("a baseline", distribution, "B,T,C", load)  # type: ignore[arg-type]


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", text)


def test_a_missing_baseline_is_not_installed() -> None:
    missing = baseline("no-such-distribution-as-this")
    assert refusals([missing], 1) == {"a baseline": NOT_INSTALLED}
    assert refusals([], 1) == {}


def test_a_baseline_that_works_is_not_refused() -> None:
    assert refusal(baseline(), 60, program("import sys; print(sys.argv[1]); sys.exit(sys.argv[1] != 'a baseline')")) is None


def test_the_reason_is_the_last_line() -> None:
    assert (
        refusal(baseline(), 60, program("print('building'); print('RuntimeError: no'); raise SystemExit(1)"))
        == "RuntimeError: no"
    )


def test_a_crash_is_a_reason() -> None:
    assert refusal(baseline(), 60, program("import os; os.abort()")) == "its process ended with status -6"


def test_a_build_that_hangs_is_ended_with_what_it_started() -> None:
    hanging = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    began = time.monotonic()
    assert refusal(baseline(), 0.5, program(hanging)) == "not ready after 0.5 s"
    assert time.monotonic() - began < within(60)


def test_baselines_are_found_by_name() -> None:
    assert [baseline_of(baseline.name) for baseline in BASELINES] == list(BASELINES)
    with pytest.raises(
        BadInput, match=r"--baseline: 'accelerated_scan.wrap' is given \(did you mean 'accelerated_scan.warp'\?\)"
    ):
        baseline_of("accelerated_scan.wrap")


def test_names_need_no_quotes_in_a_shell() -> None:
    assert [baseline.name for baseline in BASELINES if not baseline.name.replace(".", "").replace("_", "").isalnum()] == []


@pytest.mark.parametrize(("layout", "takes_log_a"), [("B,T,C", False), ("B,C,T", True)])
def test_the_probe_tries_a_small_scan_as_the_baseline_wants_it(
    monkeypatch: pytest.MonkeyPatch, layout: Layout, takes_log_a: bool
) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    tried = Baseline("a baseline", "numpy", layout, lambda: lambda a, b: seen.append((a, b)), takes_log_a=takes_log_a)
    monkeypatch.setattr(probe, "open_gpu", FakeGpu)
    monkeypatch.setattr(probe, "baseline_of", lambda _: tried)
    assert probe.main("a baseline") == 0
    ((a, b),) = seen
    assert a.shape == b.shape == ((2, 128, 64) if layout == "B,T,C" else (2, 64, 128))
    assert bool((np.asarray(a) <= 0).all()) == takes_log_a


def test_the_probe_says_in_a_line_why_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nothing() -> FakeGpu:
        raise ToolchainMissing("no GPU\nhere")

    monkeypatch.setattr(probe, "open_gpu", nothing)
    assert probe.main("jax.associative_scan") == 1
    assert capsys.readouterr().out == "ToolchainMissing: no GPU here\n"
