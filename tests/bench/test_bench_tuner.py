"""Benchmark of the cost model's picks: its statistics, its problems, and a sweep in several sessions."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_measurer import FakeMeasurer

from benchmarks.cost_model.regret import FEW, Ranked, kendall_tau, quality_of, table_of, table_of_families
from benchmarks.cost_model.regret_record import (
    DRAWN_POINTS,
    PUBLISHED_REGRETS,
    REGRETS_PAGE,
    RegretRecord,
    drawn_points,
    read_regrets,
    regret_sections,
)
from benchmarks.cost_model.sweep import (
    BEST_PREDICTED,
    CANDIDATES_MOST,
    FEW_BEST,
    ResultsFile,
    drawn,
    few_of,
    kernels_of,
    qualities,
    sweep,
)
from benchmarks.pages import filled_sections
from benchmarks.problems.drawn_problems import drawn_problems
from benchmarks.problems.tuner_problems import PROBLEMS, TunerProblem
from minrnn_gen.build import builder
from minrnn_gen.build.nvrtc import CompiledSource, KernelResources
from minrnn_gen.build.tuned_choice import Trial
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.tune import candidates as pool

RECORDS = Path(__file__).parents[2] / "benchmarks"
PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=12)
FOREVER = 1e9


@given(PAIRS)
def test_tau_is_that_of_its_definition(pairs: list[tuple[int, int]]) -> None:
    """Kendall (1945): pairs in order less pairs out of order, over the geometric mean of those untied in either."""
    tau = kendall_tau([predicted for predicted, _ in pairs], [measured for _, measured in pairs])
    both = [((a - c), (b - d)) for (a, b), (c, d) in itertools.combinations(pairs, 2)]
    score = sum((x * y > 0) - (x * y < 0) for x, y in both)
    untied = math.sqrt(sum(x != 0 for x, _ in both) * sum(y != 0 for _, y in both))
    assert math.isclose(tau, score / untied if untied else 0.0, abs_tol=1e-12)


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=30))
def test_regrets_are_those_of_the_picks(times_us: list[float]) -> None:
    """Candidates in the order of the prediction, which is perfect where the times ascend."""
    ranked = [Ranked(us, float(place), len(times_us) - place, place) for place, us in enumerate(times_us)]
    quality = quality_of("a kernel", ranked, is_fitted=False, feasible_count=40, is_complete=True)
    assert quality is not None
    best = min(times_us)
    assert quality.top_1 == times_us[0] / best and quality.top_few == min(times_us[:FEW]) / best
    assert quality.first == quality.occupancy == times_us[-1] / best
    assert 1 <= quality.top_few <= quality.top_1 <= quality.slowest and quality.random <= quality.slowest * (1 + 1e-9)
    perfect = quality_of(
        "another",
        [Ranked(us, us, 0, 0) for us in sorted(times_us)],
        is_fitted=False,
        feasible_count=40,
        is_complete=True,
    )
    assert perfect and perfect.top_1 == 1 and perfect.tau in (0, 1)
    assert table_of([quality, perfect]).count("\n") == 6


def test_the_page_shows_what_the_committed_sweep_says() -> None:
    root = RECORDS.parent
    record = read_regrets(root / PUBLISHED_REGRETS)
    page = (root / REGRETS_PAGE).read_text(encoding="utf-8")
    assert filled_sections(page, REGRETS_PAGE, regret_sections(record)) == page, "run: python -m benchmarks.write_pages"
    assert [quality.label for quality in record.qualities] == [kernel.label for kernel in kernels_of(PROBLEMS)]
    assert all(quality.is_complete and len(quality.points) == quality.measured_count for quality in record.qualities)
    assert "Not measured yet" in filled_sections(page, REGRETS_PAGE, regret_sections(None))


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=1, max_size=90))
def test_a_record_comes_back_and_its_fastest_and_slowest_are_drawn(points: list[tuple[float, float]]) -> None:
    ranked = [Ranked(us, predicted_us, 0, 0) for predicted_us, us in points]
    quality = quality_of("lstm", ranked, is_fitted=False, feasible_count=90, is_complete=True)
    assert quality is not None
    record = RegretRecord(device="a GPU", driver="1", toolchain="nvrtc", qualities=(quality,))
    assert RegretRecord.model_validate_json(record.model_dump_json()) == record
    drawn_us = [us for _, us in drawn_points(quality.points)]
    measured_us = sorted(us for _, us in quality.points)
    assert len(drawn_us) == min(len(points), DRAWN_POINTS) and drawn_us[0] == measured_us[0]
    assert len(points) == 1 or drawn_us[-1] == measured_us[-1]


def test_held_out_problems_are_on_no_record_that_was_fitted_to() -> None:
    keys = ("batch", "time", "hidden_size", "precision", "heads", "layout")
    fitted: set[tuple[Any, ...]] = set()
    for path in RECORDS.glob("*candidates_h200.json"):
        for candidate in filter(lambda row: row.get("is_fitted", True), json.loads(path.read_text())):
            fitted.add((candidate["model"], *(({"heads": 1} | candidate)[name] for name in keys)))
    assert len(fitted) > 40
    for problem in PROBLEMS:
        shape = (problem.model, *(getattr(problem, name) for name in keys))
        assert (shape in fitted) == problem.is_fitted, problem.label
    assert len(PROBLEMS) >= 24 and len({problem.label for problem in PROBLEMS}) == len(PROBLEMS)
    assert sum(not problem.is_fitted for problem in PROBLEMS) >= 12


@given(st.integers(1, 5000))
def test_a_draw_is_the_best_predicted_and_some_of_all_others(count: int) -> None:
    candidates = [("family", (("tile", number),)) for number in range(count)]
    tiles = sorted(candidate[1][0][1] for candidate in drawn(candidates))
    assert len(tiles) == min(count, CANDIDATES_MOST) and tiles[:BEST_PREDICTED] == list(range(min(count, BEST_PREDICTED)))
    assert max(b - a for a, b in itertools.pairwise([*tiles, count])) <= 1 + count // (CANDIDATES_MOST - BEST_PREDICTED)


@given(st.integers(1, 200), st.integers(0, 9))
def test_few_candidates_are_the_best_predicted_and_others(count: int, seed: int) -> None:
    candidates = [("family", (("tile", number),)) for number in range(count)]
    tiles = sorted(candidate[1][0][1] for candidate in few_of(candidates, str(seed)))
    assert len(tiles) == min(count, 2 * FEW_BEST) and tiles[:FEW_BEST] == list(range(min(count, FEW_BEST)))
    assert few_of(candidates, str(seed)) == few_of(candidates, str(seed))


@pytest.mark.parametrize("seed", [0, 57])
def test_drawn_problems_have_candidates_in_every_family(seed: int) -> None:
    problems = drawn_problems(2, seed)
    assert problems == drawn_problems(2, seed) != drawn_problems(2, seed + 1)
    for drawn_of_family in problems.values():
        for kernel in kernels_of(drawn_of_family[:1], "h200", seed):
            assert next(iter(kernel.builder.solutions(kernel.key))).candidates


def test_a_family_is_judged_by_its_median_and_its_worst() -> None:
    qualities_of_family = [
        quality_of(name, [Ranked(us, 1.0, 0, 0), Ranked(1.0, 2.0, 1, 0)], is_fitted=False, feasible_count=2, is_complete=True)
        for name, us in (("a", 1.0), ("b", 1.5), ("c", 1.1))
    ]
    table = table_of_families({"scans": [quality for quality in qualities_of_family if quality], "none": []})
    assert table.splitlines()[2:] == ["| scans | 3 | 1.100 | 1.500 | 1.500 | 1.000 | 1.000 | b |"]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Fake compiler; returns the variables of the plans that it compiled."""
    seen: list[str] = []

    def compile_source(text: str, plan: KernelPlan) -> CompiledSource:
        seen.append(repr(sorted(plan.variables.items())))
        return CompiledSource(text[:9].encode(), (KernelResources(plan.entry, 1, plan.budget.shared_bytes, 0, 0),))

    monkeypatch.setenv("MINRNN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(builder, "compile_source", compile_source)
    for module in (builder, pool):
        monkeypatch.setattr(module, "toolchain_version", lambda: "nvrtc 13.4")
    return seen


class Cut(Exception):
    """End of a session."""


class CutMeasurer(FakeMeasurer):
    """Measurer that raises after `left` candidates."""

    left = 10**9

    def error_share(self, trial: Trial) -> float:
        if not self.left:
            raise Cut
        self.left -= 1
        return super().error_share(trial)


@pytest.mark.matrix_full
def test_a_sweep_goes_on_where_it_was_cut_and_measures_nothing_twice(compiled: list[str], tmp_path: Path) -> None:
    kernels = kernels_of([TunerProblem("min_gru", 2, 100, 8, "fp32"), TunerProblem("elman", 2, 40, 16, "bf16")], "h200")
    path, measurer = tmp_path / "folder" / "results.jsonl", CutMeasurer()
    measurer.wrong = lambda candidate: dict(candidate[1]).get("steps_per_lane") == 8
    assert not sweep(kernels, measurer, ResultsFile(path), 0.0)
    for left in (40, 400):
        measurer.left = left
        with pytest.raises(Cut):
            sweep(kernels, measurer, ResultsFile(path), FOREVER)
        partly = list(qualities(kernels, ResultsFile(path)))
        assert partly and not all(quality.is_complete for quality in partly)
    measurer.left = 10**9
    file = ResultsFile(path)
    assert sweep(kernels, measurer, file, FOREVER)
    seen = [(result.setting, result.candidate) for result in file.results]
    assert len(seen) == len(set(seen)) and ResultsFile(path).results == file.results
    whole = list(qualities(kernels, ResultsFile(path)))
    assert [quality.label for quality in whole] == [kernel.label for kernel in kernels]
    assert all(quality.is_complete for quality in whole)
    assert [quality.feasible_count for quality in whole] == [len(kernel.pool(measurer, file).ranked) for kernel in kernels]
    # No candidate with wrong results is chosen.
    right = [result for result in file.results if result.outcome == "measured"]
    assert sum(quality.measured_count for quality in whole) == len(right) < len(file.results)
    calls = len(compiled)
    assert sweep(kernels, measurer, file, FOREVER) and len(compiled) == calls
