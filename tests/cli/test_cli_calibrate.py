"""`minrnn-gen calibrate`: what it writes, says and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_runner import Command

from minrnn_gen.config.gpu_profile import MEASURED, load_profile
from minrnn_gen.gpu import device
from minrnn_gen.gpu.calibration import calibrated, calibration_path, with_rates
from minrnn_gen.gpu.device import LiveDevice
from minrnn_gen.tune import calibrate

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
