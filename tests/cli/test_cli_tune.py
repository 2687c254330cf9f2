"""`minrnn-gen tune`: what it measures, says, writes and reads."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.browser import assert_is_readable, assert_is_whole, needs_browser
from support.command_runner import Command
from support.fake_measurer import FakeMeasurer

from minrnn_gen.build import builder
from minrnn_gen.build.nvrtc import CompiledSource, KernelResources
from minrnn_gen.cli.tune import INTERRUPTED, seconds_of
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.tune import candidates, lookup, pool, session, tuner


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMeasurer:
    """An H200 that is none, with a compiler that is none, and a cache of their own."""
    fake = FakeMeasurer()

    def compiled(text: str, plan: KernelPlan) -> CompiledSource:
        return CompiledSource(text[:9].encode(), (KernelResources(plan.entry, 1, plan.budget.shared_bytes, 0, 0),))

    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MINRNN_DEBUG", raising=False)
    monkeypatch.setattr(builder, "compile_source", compiled)
    for module in (builder, candidates, tuner, lookup):
        monkeypatch.setattr(module, "toolchain_version", lambda: "nvrtc 13.4")
    monkeypatch.setattr(session, "open_measurer", lambda: fake)
    return fake


def test_a_spec_is_tuned_and_compile_takes_what_won(command: Command, gpu: FakeMeasurer, min_gru: Path) -> None:
    said = command("tune", min_gru, "--gpu", "h200", "--top", 3, "--json").json
    kernels = said["kernels"]
    assert [one["pass"] for one in kernels] and {one["ended"] for one in kernels} == {"decided"}
    assert all(one["candidates"]["measured"] <= 3 and one["best_us"] <= one["first_us"] for one in kernels)
    assert command("compile", min_gru, "--gpu", "h200", "--json").json["plan"]["variables"] == kernels[0]["variables"]
    timed = len(gpu.timed)
    text = command("tune", min_gru, "--gpu", "h200", "--top", 3)
    # For people, and without measuring anything anew.
    assert text.status == 0 and "decided" in text.out and "forward" in text.out and len(gpu.timed) == timed


def test_an_interruption_prints_what_is_known(command: Command, gpu: FakeMeasurer, min_gru: Path) -> None:
    gpu.interrupt_at = 2
    answer = command("tune", min_gru, "--gpu", "h200", "--json")
    assert answer.status == INTERRUPTED and answer.json["interrupted"] is True
    assert answer.json["kernels"][0]["candidates"] == {"measured": 2}


def test_specs_are_tuned_at_once_on_all_gpus(
    command: Command, gpu: FakeMeasurer, min_gru: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "device_count", lambda: 2)
    monkeypatch.setattr(pool, "executor_of_gpus", lambda gpus: ThreadPoolExecutor(len(gpus)))
    said = command("tune", min_gru, "--devices", "all", "--top", 2, "--set", "gpu=h200", "--json").json
    assert {one["ended"] for one in said["kernels"]} == {"decided"} and gpu.timed
    assert {one["spec"] for one in said["kernels"]} == {str(min_gru)}
    wrong = command("tune", min_gru, "--devices", "2")
    assert wrong.status == 2 and "from 0 to 1" in wrong.error
    assert command("tune", min_gru, "--devices", "all", "--gpu", "h200").status == 2


@pytest.mark.usefixtures("gpu")
def test_results_go_out_and_come_in(command: Command, min_gru: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, t4 = tmp_path / "results.jsonl", tmp_path / "t4.json"
    won = command("tune", min_gru, "--gpu", "h200", "--top", 3, "--export", lines, "--json").json
    assert won["exported"] == len(lines.read_text().splitlines())
    assert command("tune", "--export", t4, "--format", "t4").out == f"exported {won['exported']} results, {t4}\n"
    assert json.loads(t4.read_text())["schema_version"] == "1.0.0"
    fastest = tmp_path / "fastest.jsonl"
    command("tune", "--export", fastest, "--format", "fastest")
    assert [json.loads(line)["variables"] for line in fastest.read_text().splitlines()] == [
        kernel["variables"] for kernel in won["kernels"]
    ]
    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "elsewhere"))
    command("compile", min_gru, "--gpu", "h200")
    assert command("tune", "--import", lines, "--json").json == {"imported": won["exported"]}
    there = command("compile", min_gru, "--gpu", "h200", "--json").json
    assert there["plan"]["variables"] == won["kernels"][0]["variables"]


def test_the_page_has_every_candidate_that_was_tried(
    command: Command, gpu: FakeMeasurer, min_gru: Path, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.html"
    kernels = command("tune", min_gru, "--gpu", "h200", "--top", 5, "--html", file, "--json").json["kernels"]
    page = file.read_text(encoding="utf-8")
    assert_is_whole(page)
    for kernel in kernels:
        raced = kernel["raced"]
        assert Counter(one["outcome"] for one in raced) == kernel["candidates"]
        assert min(one["median_us"] for one in raced if one["median_us"]) == kernel["best_us"]
        assert any((one["family"], one["variables"]) == (kernel["family"], kernel["variables"]) for one in raced)
    tried = sum(len(kernel["raced"]) for kernel in kernels)
    assert page.count("data-says=") == page.count("<tr><td") == tried
    # What cannot be written is refused before a measurement, and a page without one is none.
    timed = len(gpu.timed)
    assert command("tune", min_gru, "--html", tmp_path).status == 2 and len(gpu.timed) == timed
    assert "give a spec" in command("tune", "--html", file, "--export", tmp_path / "known").error


@needs_browser
def test_a_browser_shows_the_page(command: Command, gpu: FakeMeasurer, min_gru: Path, tmp_path: Path) -> None:
    gpu.wrong = lambda key: dict(key[1]).get("stages") == 3
    file = tmp_path / "tuned.html"
    command("tune", min_gru, "--gpu", "h200", "--top", 6, "--html", file)
    assert_is_readable(file.read_text(encoding="utf-8"), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "nothing is given to tune"),
        (("--import", "nowhere.jsonl"), "--import: 'nowhere.jsonl' is no file"),
        (("--export", "out.jsonl"), "--export: there are no results"),
        (("--budget", "soon", "SPEC"), "--budget: 'soon' is given; allowed: a number and ms, s, min or h"),
        (("--gpu", "t4", "SPEC"), "the spec is for t4, but the GPU here is h200"),
    ],
)
@pytest.mark.usefixtures("gpu")
def test_what_cannot_be_done_is_one_sentence(command: Command, min_gru: Path, arguments: tuple[str, ...], says: str) -> None:
    answer = command("tune", *(str(min_gru) if one == "SPEC" else one for one in arguments))
    assert answer.status == 2 and says in answer.error and answer.out == "" and answer.error.count("\n") == 1


def test_durations() -> None:
    assert [seconds_of(text) for text in ("30s", "250ms", "2min", "1.5 m", "1h", "7")] == [30, 0.25, 120, 90, 3600, 7]
    with pytest.raises(BadInput):
        seconds_of("1 d")
