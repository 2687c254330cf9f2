"""The page of a decision: complete, self-contained, readable in a browser, and safe whatever its texts say."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.command_runner import EXAMPLES

from minrnn_gen.api import builder_for
from minrnn_gen.assemble import target_of
from minrnn_gen.build import decision_page as module
from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.decision_page import decision_page
from minrnn_gen.build.drawing import Axis, memory_map
from minrnn_gen.cli.main import main
from minrnn_gen.config.gpu_profile import load_profile
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.solver import Solution
from minrnn_gen.run.ahead import plain_specialization

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "link", "br", "wbr", "img", "input", "hr"}


class Balanced(HTMLParser):
    """A parser that refuses an element that is not closed where it should be, and notes what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.loaded: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag


@pytest.fixture(scope="module", params=[("min_gru", "forward"), ("lstm", "backward"), ("lstm", "step")], ids="-".join)
def decided(request: pytest.FixtureRequest) -> tuple[BuiltKernel, Solution]:
    example, kernel_pass = request.param
    spec = load_spec(EXAMPLES / f"{example}.yaml", gpu="h200", hidden_size=96)
    builder = builder_for(spec, target_of(spec))
    key = builder.key_of(kernel_pass, plain_specialization(builder, kernel_pass, builder.hinted_sizes))
    solution = builder.solve(key)
    return builder.build(key), solution


def test_the_page_is_whole_and_needs_nothing_else(decided: tuple[BuiltKernel, Solution]) -> None:
    built, solution = decided
    page = decision_page(built, solution, load_profile("h200"))
    parser = Balanced()
    parser.feed(page)
    assert parser.opened == [] and parser.loaded == ["data:,"] and "script" not in parser.tags
    assert "http" not in page.partition("<pre>")[0] and "@import" not in page and "url(" not in page.partition("<pre>")[0]
    plan, text = built.plan, html.unescape(re.sub(r"<[^>]*>", "", page))
    assert all(name in text for name in (*plan.variables, *plan.shared_map, *(margin.constraint for margin in plan.margins)))
    assert page.count('<circle class="pick"') == 1 and f"{plan.candidate_count:,} candidates fit" in text
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
@pytest.mark.parametrize("decided", [("min_gru", "forward")], indirect=True)
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this system")
def test_a_browser_shows_it_without_a_word_on_its_console(decided: tuple[BuiltKernel, Solution], tmp_path: Path) -> None:
    built, solution = decided
    file = tmp_path / "page.html"
    file.write_text(decision_page(built, solution, load_profile("h200")), encoding="utf-8")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom")
    command = [str(BROWSER), *options, f"--user-data-dir={tmp_path}", file.as_uri()]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in answer.stderr and answer.stdout.count("<svg") > 10 and "The search space" in answer.stdout
