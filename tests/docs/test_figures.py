"""The summary of README.md and the figures are what the committed records and scripts give."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.documentation import ROOT

from benchmarks import summary
from benchmarks.pages import PUBLISHED_RECORDS
from benchmarks.problems import layer_problems
from benchmarks.report.record import Record, Row, write_record


def script(path: str) -> ModuleType:
    """Import a script of the checkout by its path."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # its dataclasses look for their module
        spec.loader.exec_module(module)
    return module


def test_the_readme_has_the_table_of_the_records() -> None:
    page = (ROOT / summary.PAGE).read_text(encoding="utf-8")
    assert f"<!-- measured: summary -->\n\n{summary.summary_text()}\n<!-- end of measured -->" in page, (
        "run: python -m benchmarks.write_pages"
    )


def test_the_figure_of_the_readme_is_that_of_the_records() -> None:
    assert (ROOT / summary.FIGURE).read_text(encoding="utf-8") == summary.summary_svg(), "run: python -m benchmarks.write_pages"


def test_an_answer_compares_ours_with_a_correct_alternative() -> None:
    for answer in summary.answers():
        assert answer.ours > 0 and answer.best > 0
        assert not answer.best_name.startswith(summary.NOT_ALTERNATIVES)


def test_the_summary_is_short() -> None:
    page = (ROOT / summary.PAGE).read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 150
    assert len(summary.answers()) <= 8
    assert len(re.findall(r"!\[", page)) == 1


def test_measured_layers_are_rows_of_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        Row(problem=problem, contender=name, ms=ms, errors={"y": 1e-4}, error_allowed=1e-2)
        for problem in layer_problems.problems_of("headline")
        for name, ms in (("minrnn-gen", 2.0), ("torch.nn", 8.0))
    ]
    record = Record(command="python -m benchmarks layers", gpu="none", versions={}, method={}, rows=tuple(rows))
    for path in summary.RECORDS.glob("*.json"):
        (tmp_path / path.name).symlink_to(path)
    of_layers = tmp_path / Path(PUBLISHED_RECORDS["layers"]).name
    of_layers.unlink(missing_ok=True)
    monkeypatch.setattr(summary, "RECORDS", tmp_path)
    labels = {answer.label for answer in summary.answers()}
    write_record(record, of_layers)
    layers = [answer for answer in summary.answers() if answer.label not in labels]
    assert [(answer.ours, answer.best, answer.best_name) for answer in layers] == [(2.0, 8.0, "torch.nn")] * 3
    assert len(summary.answers()) <= 8
    assert "| LSTM, 4 layers, 16 x 1024, 768 to 768, bf16 autocast, training | 2.00 ms | 8.00 ms, torch.nn | 4.00 |" in (
        summary.summary_text()
    )
    assert "768 to 768, bf16 autocast, training" in summary.summary_svg()


def test_the_timelines_are_those_of_the_script() -> None:
    timelines = script("docs/kernels/timelines.py")
    for name, timeline in timelines.timelines().items():
        assert (ROOT / "docs/kernels" / f"{name}.svg").read_text(encoding="utf-8") == timelines.svg_of(timeline), (
            "run: python docs/kernels/timelines.py"
        )
        assert f"({name}.svg)" in (ROOT / "docs/kernels" / f"{name}.md").read_text(encoding="utf-8")
        # An arrow over a lane in between would cross its words.
        assert all(abs(begin - end) == 1 for begin, _, end, _ in timeline.arrows), name
