"""`minrnn-gen check-gpu` on the GPU at hand: it is sound by its own profile, and planted faults are named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from minrnn_gen.cli.main import main
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.gpu import device
from minrnn_gen.gpu.calibration import profile_text
from minrnn_gen.tune import check
from minrnn_gen.tune.check_problems import CheckedProblem

# Bandwidths are measured, and picks raced.
pytestmark = [pytest.mark.gpu, pytest.mark.alone]


def test_the_gpu_here_is_sound_by_its_own_profile(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    live = device.live_device()
    assert live is not None
    status = main(["check-gpu", "--quick", "--json", "--report", str(tmp_path / "report.md")])
    found = json.loads(capsys.readouterr().out)
    assert (found["faults"], status) == ([], 0)
    assert found["device"] == live.name and found["profile"] == live.profile.name
    assert {kernel["outcome"] for kernel in found["kernels"]} <= {"measured", "none"}
    assert all(kernel["error_share"] <= 1 for kernel in found["kernels"] if kernel["outcome"] == "measured")
    assert all(1 <= pick["regret"] < 2 and 2 <= pick["measured"] <= 8 for pick in found["picks"])
    if live.compute_capability == "9.0":
        assert {"scan_forward_projected", "large_batch_backward", "dropout"} <= {one["family"] for one in found["kernels"]}
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith(f"# minrnn-gen check-gpu: {live.name}\n") and str(tmp_path) not in text


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("memory_bandwidth_bytes_per_s", lambda value: 2 * value),
        ("copy_bandwidth_bytes_per_s", lambda value: value / 2),
        ("sm_count", lambda value: value + 12),
        ("shared_bytes_per_sm", lambda value: value + 8192),
        ("compute_capability", lambda value: "10.0" if value != "10.0" else "12.0"),
    ],
)
def test_planted_faults_are_named(
    name: str, change: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    live = device.live_device()
    assert live is not None and callable(change)
    only = CheckedProblem({"model": "min_gru", "hidden_size": 64, "batch": 2, "time": 64}, "step", "fp32")
    monkeypatch.setattr(check, "family_problems", lambda *_: iter([only]))
    monkeypatch.setattr(check, "pick_problems", lambda *_: iter(()))
    profile = load_profile(live.profile.name) if live.profile_is_shipped else live.profile
    value = getattr(profile, name)
    if value is None:
        pytest.skip(f"{name} is not measured in the profile of this GPU")
    planted = re.sub(rf"(?m)^{name}: .*$", f"{name}: {json.dumps(change(value))}", profile_text(profile), count=1)
    path = tmp_path / "planted.yaml"
    path.write_text(planted, encoding="utf-8")
    assert main(["check-gpu", "--gpu", str(path), "--json"]) == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert any(fault.startswith(f"{name}: ") for fault in faults), faults
