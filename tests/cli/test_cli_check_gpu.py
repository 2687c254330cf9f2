"""`minrnn-gen check-gpu`: what it prints, writes and answers with."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.command_runner import Command

from minrnn_gen.tune import check
from minrnn_gen.tune.check_results import GpuCheck, KernelCheck, PickCheck, RateCheck

SOUND = GpuCheck(
    profile="l4",
    profile_arch="sm_89",
    checked_before="",
    device="NVIDIA L4",
    compute_capability="8.9",
    versions={"minrnn-gen": "0.1.0", "date": "2026-11-26"},
    mismatches=(),
    copy_assumed=2.64e11,
    datasheet_bandwidth=3e11,
    rates=(RateCheck("copy_bandwidth_bytes_per_s", None, 2.7e11), RateCheck("memory_latency_ns", 254.0, 260.0)),
    why_no_rates="",
    is_quick=True,
    kernels=(KernelCheck("scan_step", "min_gru 4 x 1024 x 512 bf16", "step", "measured", 0.25, 4.5),),
    picks=(PickCheck("gru 8 x 512 x 512 bf16", "forward", "a", 9.0, 12.0, "b", 10.0, 8),),
)
FAULTY = replace(SOUND, mismatches=("sm_count: the profile has 58, the device 57",))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[GpuCheck]:
    """Fixed findings of a check."""
    answers = [SOUND]
    monkeypatch.setattr(check, "check_here", lambda *_: answers[0])
    return answers


def test_the_report_is_printed_or_written(command: Command, found: list[GpuCheck], tmp_path: Path) -> None:
    printed = command("check-gpu", "--quick")
    assert printed.status == 0 and printed.out.startswith("# minrnn-gen check-gpu: NVIDIA L4\n")
    assert "| scan_step | min_gru 4 x 1024 x 512 bf16 | step | right | 25.0% | 4.5 us |" in printed.out
    assert "| copy_bandwidth_bytes_per_s | not measured | 2.7e+11 | - |" in printed.out
    path = tmp_path / "report.md"
    said = command("check-gpu", "--report", path)
    assert said.status == 0 and path.read_text(encoding="utf-8") == printed.out
    assert "remark: pick of gru 8 x 512 x 512 bf16, forward: takes 1.20 times as long" in said.out
    assert "0 faults, 1 remarks" in said.out
    found[0] = FAULTY
    for arguments in ((), ("--json",), ("--report", path)):
        assert command("check-gpu", *arguments).status == 1
    assert "- sm_count: the profile has 58, the device 57" in path.read_text(encoding="utf-8")


def test_json_has_all_that_was_found(command: Command, found: list[GpuCheck]) -> None:
    data = command("check-gpu", "--json").json
    assert data["faults"] == [] and len(data["remarks"]) == 1 and data["picks"][0].pop("regret") == 1.2
    assert [rate.pop("ratio") for rate in data["rates"]] == [None, 260 / 254]
    assert data == json.loads(json.dumps(asdict(found[0]))) | {"faults": [], "remarks": data["remarks"]}


@pytest.mark.usefixtures("found")
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(check, "check_here", lambda *_: pytest.fail("measured"))
    refused = command("check-gpu", "--report", tmp_path / "none" / "report.md")
    assert refused.status == 2 and "--report" in refused.error


def test_without_a_gpu_it_is_one_sentence(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(check.device, "live_device", lambda: None)
    (tmp_path / "report.md").write_text("an earlier report")
    said = command("check-gpu", "--report", tmp_path / "report.md")
    assert (tmp_path / "report.md").read_text() == "an earlier report"
    assert (said.status, said.out) == (1, "") and said.error.startswith("error: check-gpu runs kernels on a GPU, but ")
    assert said.error.count("\n") == 1
