"""The summary of README.md and the figures are what the committed records and scripts give."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.documentation import ROOT


def script(path: str) -> ModuleType:
    """Import a script of the checkout by its path."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # its dataclasses look for their module
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def summary() -> ModuleType:
    return script("benchmarks/summary.py")


def test_the_readme_has_the_table_of_the_records(summary: ModuleType) -> None:
    page = (ROOT / summary.PAGE).read_text(encoding="utf-8")
    assert f"<!-- measured: summary -->\n\n{summary.summary_text()}\n<!-- end of measured -->" in page, (
        "run: python benchmarks/write_pages.py"
    )


def test_the_figure_of_the_readme_is_that_of_the_records(summary: ModuleType) -> None:
    assert (ROOT / summary.FIGURE).read_text(encoding="utf-8") == summary.summary_svg(), "run: python benchmarks/write_pages.py"


def test_an_answer_compares_ours_with_a_correct_alternative(summary: ModuleType) -> None:
    for answer in summary.answers():
        assert answer.ours > 0 and answer.best > 0
        assert not answer.best_name.startswith(summary.NOT_ALTERNATIVES)


def test_the_summary_is_short(summary: ModuleType) -> None:
    page = (ROOT / summary.PAGE).read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 150
    assert len(summary.answers()) <= 8
    assert len(re.findall(r"!\[", page)) == 1


def test_the_timelines_are_those_of_the_script() -> None:
    timelines = script("docs/kernels/timelines.py")
    for name, timeline in timelines.timelines().items():
        assert (ROOT / "docs/kernels" / f"{name}.svg").read_text(encoding="utf-8") == timelines.svg_of(timeline), (
            "run: python docs/kernels/timelines.py"
        )
        assert f"({name}.svg)" in (ROOT / "docs/kernels" / f"{name}.md").read_text(encoding="utf-8")
