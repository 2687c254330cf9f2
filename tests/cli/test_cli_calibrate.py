"""`minrnn-gen calibrate` and `minrnn-gen bench tuner`: what they write, say and refuse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.command_runner import Command

from minrnn_gen.calibrate import calibrate
from minrnn_gen.config.gpu_profile import MEASURED, load_profile
from minrnn_gen.gpu import device
from minrnn_gen.gpu.calibration import calibrated, calibration_path, with_rates
from minrnn_gen.gpu.device import LiveDevice
from minrnn_gen.tune.candidates import CandidatePool
from minrnn_gen.tune.results import Result

RATES = {"copy_bandwidth_bytes_per_s": 4.2e12, "launch_us": 2.25}


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LiveDevice:
    """An H200 that is none, and what is measured of it."""
    made = LiveDevice("NVIDIA H200", "9.0", {}, load_profile("h200"), True)
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(device, "live_device", lambda: made)
    measured = with_rates(made.profile, RATES, dict.fromkeys(RATES, "measured: here"))
    monkeypatch.setattr(calibrate, "calibrate", lambda: measured)
    return made


def test_what_is_measured_is_printed_written_and_taken(command: Command, live: LiveDevice, tmp_path: Path) -> None:
    elsewhere = tmp_path / "profiles" / "mine.yaml"
    said = command("calibrate", "--out", elsewhere, "--json").json
    # What was not measured this time stays as it was.
    assert said["rates"] == {field: getattr(live.profile, field) for field in MEASURED} | RATES
    assert said["file"] == str(elsewhere)
    assert load_profile(str(elsewhere)).launch_us == 2.25 and calibrated(live.profile) == live.profile
    text = command("calibrate")
    assert text.status == 0 and "2.25" in text.out and str(calibration_path("h200")) in text.out
    assert calibrated(live.profile).launch_us == 2.25


def test_without_results_nothing_is_judged_and_no_gpu_needed(command: Command, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    text = command("bench", "tuner", results, "--seconds", 0, "--gpu", "h200", "--only", "ind_rnn")
    assert (text.status, text.out) == (0, "2 of 2 kernels are unfinished; the same command goes on with them\n")
    wrong = command("bench", "tuner", results, "--seconds", 0, "--only", "colour")
    assert wrong.status == 2 and "'colour'" in wrong.error


def test_what_was_measured_is_judged(command: Command, tmp_path: Path) -> None:
    """The first half of the candidates, in the order of the cost model, with times in the opposite one."""
    from support.fake_measurer import FakeMeasurer

    from minrnn_gen.bench.cost_model.sweep import ResultsFile, kernels_of
    from minrnn_gen.bench.problems.tuner_problems import PROBLEMS

    file = ResultsFile(tmp_path / "results.jsonl")
    kernel = next(one for one in kernels_of(PROBLEMS, "h200") if one.label.startswith("ind_rnn"))
    pool: CandidatePool = kernel.pool(FakeMeasurer(), file)
    half = list(pool.ranked)[: len(pool.ranked) // 2]
    for number, (family, variables) in enumerate(half):
        result = Result(pool.setting, family, dict(variables), "measured", (100.0 - number,))
        file.add([replace(result, predicted_us=1.0)])
    answer = command("bench", "tuner", file.path, "--seconds", 0, "--gpu", "h200", "--only", "ind_rnn", "--json").json
    (judged,) = answer["kernels"]
    assert not judged["is_complete"] and judged["measured_count"] == len(half)
    assert judged["best_us"] == 101.0 - len(half) and judged["top_1"] == pytest.approx(100 / judged["best_us"])
    assert judged["tau"] < 0
    text = command("bench", "tuner", file.path, "--seconds", 0, "--gpu", "h200", "--only", "ind_rnn").out
    assert "Held out" in text and "unfinished" in text
