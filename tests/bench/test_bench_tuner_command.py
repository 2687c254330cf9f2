"""`python -m benchmarks tuner`: what it judges, says and refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.command_runner import Command
from support.fake_measurer import FakeMeasurer

from benchmarks.cost_model.sweep import ResultsFile, kernels_of
from benchmarks.problems.tuner_problems import PROBLEMS
from minrnn_gen.tune.candidates import CandidatePool
from minrnn_gen.tune.results import Result


def test_without_results_nothing_is_judged_and_no_gpu_needed(command: Command, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    text = command("tuner", results, "--seconds", 0, "--gpu", "h200", "--only", "ind_rnn")
    assert (text.status, text.out) == (0, "2 of 2 kernels are unfinished; the same command goes on with them\n")
    wrong = command("tuner", results, "--seconds", 0, "--only", "colour")
    assert wrong.status == 2 and "'colour'" in wrong.error


def test_what_was_measured_is_judged(command: Command, tmp_path: Path) -> None:
    """The first half of the candidates, in the order of the cost model, with times in the opposite one."""
    file = ResultsFile(tmp_path / "results.jsonl")
    kernel = next(one for one in kernels_of(PROBLEMS, "h200") if one.label.startswith("ind_rnn"))
    pool: CandidatePool = kernel.pool(FakeMeasurer(), file)
    half = list(pool.ranked)[: len(pool.ranked) // 2]
    for number, (family, variables) in enumerate(half):
        result = Result(pool.setting, family, dict(variables), "measured", (100.0 - number,))
        file.add([replace(result, predicted_us=1.0)])
    answer = command("tuner", file.path, "--seconds", 0, "--gpu", "h200", "--only", "ind_rnn", "--json").json
    (judged,) = answer["kernels"]
    assert not judged["is_complete"] and judged["measured_count"] == len(half)
    assert judged["best_us"] == 101.0 - len(half) and judged["top_1"] == pytest.approx(100 / judged["best_us"])
    assert judged["tau"] < 0
    text = command("tuner", file.path, "--seconds", 0, "--gpu", "h200", "--only", "ind_rnn").out
    assert "Held out" in text and "unfinished" in text
