"""The page of a decision: complete, self-contained, readable in a browser, and safe whatever its texts say."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.browser import assert_is_readable, assert_is_whole, needs_browser
from support.command_runner import EXAMPLES

from minrnn_gen.api import builder_for
from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.cli.main import main
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.kernel_plan import SEQUENTIAL_TERMS, total_us
from minrnn_gen.plan.solver import Solution
from minrnn_gen.plan.summary import term_in_words
from minrnn_gen.report import decision as module
from minrnn_gen.report.decision import decision_page
from minrnn_gen.report.drawing import Axis, memory_map
from minrnn_gen.report.timeline import _spans, html_of, timeline_of
from minrnn_gen.run.ahead import plain_specialization
from minrnn_gen.run.target import target_of

DECIDED = [("min_gru", "forward", 96), ("lstm", "backward", 96), ("lstm", "step", 96), ("lstm", "forward", 8192)]


@pytest.fixture(scope="module", params=DECIDED, ids=lambda decided: f"{decided[0]}-{decided[1]}-{decided[2]}")
def decided(request: pytest.FixtureRequest) -> tuple[BuiltKernel, Solution]:
    example, kernel_pass, hidden_size = request.param
    heads = 1 if hidden_size == 8192 else load_spec(EXAMPLES / f"{example}.yaml").heads
    spec = load_spec(EXAMPLES / f"{example}.yaml", gpu="h200", hidden_size=hidden_size, heads=heads)
    builder = builder_for(spec, target_of(spec))
    key = builder.key_of(kernel_pass, plain_specialization(builder, kernel_pass, builder.hinted_sizes))
    solution = builder.solve(key)
    return builder.build(key), solution


def test_the_page_is_whole_and_needs_nothing_else(decided: tuple[BuiltKernel, Solution]) -> None:
    built, solution = decided
    page = decision_page(built, solution, load_profile("h200"))
    assert_is_whole(page)
    assert "<script" not in page and "script-src 'none'" in page
    assert "http:" not in page.partition("<pre>")[0] and "https:" not in page.partition("<pre>")[0]
    plan, text = built.plan, html.unescape(re.sub(r"<[^>]*>", "", page))
    assert all(
        name in text
        for name in (*plan.variables, *plan.budget.shared_map, *(margin.constraint for margin in plan.prediction.margins))
    )
    assert page.count('<circle class="pick"') == 1 and f"{plan.prediction.candidate_count:,} candidates fit" in text
    shown = page.partition("<pre>")[2].partition("</pre>")[0]
    assert html.unescape(re.sub(r"</?[ib]>", "", shown)) == built.source


def test_every_candidate_is_in_the_picture(decided: tuple[BuiltKernel, Solution]) -> None:
    _, solution = decided
    assert sum(point.count for point in module._points(solution)) == len(solution.candidates)


def test_texts_are_text(decided: tuple[BuiltKernel, Solution]) -> None:
    built, solution = decided
    hostile = "</pre><script>alert(1)</script>"
    page = decision_page(
        replace(built, chosen=hostile, dropped=(hostile,), source=f"// {hostile}\nint a = b < c;"),
        solution,
        load_profile("h200"),
        hostile,
    )
    assert "<script" not in page and page.count(html.escape(hostile, quote=False)) == 4


numbers = st.floats(0.001, 1e7, allow_nan=False)


@given(numbers, numbers, st.booleans())
def test_an_axis_has_a_few_round_values_within_it(one: float, other: float, is_log: bool) -> None:
    low, high = sorted((one, other))
    axis = Axis(low, high, 0, 100, is_log)
    ticks = axis.ticks()
    assert len(ticks) <= 36 and ticks == sorted(ticks)
    assert all(-1e-6 <= axis.at(tick) <= 100 + 1e-6 for tick in ticks)


def test_a_block_is_drawn_to_scale() -> None:
    drawn = memory_map({"stages": 600, "sums": 200}, 1000)
    widths = [float(width) for width in re.findall(r'class="part\d" x="[\d.]+" y="18" width="([\d.]+)"', drawn)]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.01)


def test_the_command_writes_the_page_and_takes_one_form_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "page.html"
    spec = str(EXAMPLES / "min_gru.yaml")
    assert main(["explain", spec, "--gpu", "h200", "--html", str(file)]) == 0
    assert file.read_text(encoding="utf-8").startswith("<!DOCTYPE html>") and capsys.readouterr().out == ""
    assert main(["explain", spec, "--html", str(file), "--json"]) == 2
    assert "--json and --html are given together" in capsys.readouterr().out
    assert main(["explain", spec, "--gpu", "h200", "--html", str(tmp_path)]) == 2


# A browser takes seconds: one page is enough.
@pytest.mark.parametrize("decided", [("min_gru", "forward", 96)], indirect=True)
@needs_browser
def test_a_browser_shows_it_without_a_word_on_its_console(decided: tuple[BuiltKernel, Solution], tmp_path: Path) -> None:
    built, solution = decided
    assert_is_readable(decision_page(built, solution, load_profile("h200")), tmp_path)


def test_a_timeline_has_every_term_and_takes_the_predicted_time(decided: tuple[BuiltKernel, Solution]) -> None:
    plan = decided[0].plan
    timeline = timeline_of(plan)
    is_of_step = plan.family == "dense" and plan.strategy != "decode"
    assert timeline.title == ("Timeline of a step" if is_of_step else "Timeline of a call")
    per_unit = (plan.problem.time if is_of_step else 1) * {"ns": 1e-3, "us": 1.0}[timeline.unit]
    us = {span.term: (span.end - span.start) * per_unit for span in timeline.spans}
    terms = {name: us for name, us in plan.prediction.predicted_us.items() if us > 0 and not (is_of_step and name == "launch")}
    assert us == pytest.approx(terms)
    last_us = max(span.end for span in timeline.spans) * per_unit
    most_us = plan.predicted_total_us - (plan.prediction.predicted_us["launch"] if is_of_step else 0)
    assert last_us <= most_us * (1 + 1e-9)
    drawn = html_of(timeline)
    assert all(term_in_words(span.term) in drawn for span in timeline.spans)


@given(
    st.dictionaries(st.sampled_from(sorted(SEQUENTIAL_TERMS | {"memory", "issue", "chain"})), st.floats(1e-3, 1e6), min_size=1)
)
def test_what_adds_up_never_overlaps(terms: dict[str, float]) -> None:
    spans = [span for span in _spans(terms) if span.term in SEQUENTIAL_TERMS]
    assert all(one.end <= other.start + 1e-9 * other.start for one, other in pairwise(spans))
    assert max(span.end for span in _spans(terms)) <= total_us(terms) * (1 + 1e-9)
