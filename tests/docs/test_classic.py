"""The page that compares minGRU and minLSTM with GRU and LSTM: its notebook runs, and it says what the records say."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from support import notebook
from support.documentation import ROOT
from support.patience import within
from support.uncompiled_kernels import nothing_compiled

from benchmarks import classic
from benchmarks.pages import filled_sections
from benchmarks.report.record import Record

NOTEBOOK = ROOT / "examples" / "classic.ipynb"
SHORT_SECONDS = 5


def test_the_notebook_runs_in_a_short_form(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    monkeypatch.setenv("CLASSIC", "short")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    threads, started = torch.get_num_threads(), time.process_time()
    with nothing_compiled():
        names = notebook.run(NOTEBOOK)
    torch.set_num_threads(threads)
    assert time.process_time() - started < within(SHORT_SECONDS)
    record = names["record"]
    assert isinstance(record, Record) and len(record.rows) == 2 * 6 * 2 == capsys.readouterr().out.count(" ms")
    assert all(row.ms and (row.problem.task == "forward" or int(row.facts["kept_bytes"]) > 0) for row in record.rows)


def test_the_notebook_is_committed_without_what_it_printed() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_the_page_has_the_tables_of_the_records() -> None:
    page = (ROOT / classic.PAGE).read_text(encoding="utf-8")
    assert page.count("<!-- measured: ") == len(classic.sections())
    assert filled_sections(page, classic.PAGE, classic.sections()) == page, "run: python -m benchmarks.write_pages"
    figure = (ROOT / classic.FIGURE).read_text(encoding="utf-8")
    assert all(name in figure for name in ("minrnn-gen MinGRU", "minrnn-gen LSTM", "torch.nn GRU", "torch.nn LSTM"))


def test_the_page_says_in_words_what_was_measured() -> None:
    times: dict[Any, dict[Any, float]] = {}
    for row in classic.record_of("cpu").rows:
        times.setdefault((row.problem.task, row.problem.time), {})[row.contender, row.problem.model] = row.ms
    # minGRU is the fastest of all at every length.
    assert all(min(of_size, key=of_size.__getitem__) == ("minrnn-gen", "min_gru") for of_size in times.values())
    for device, gru, lstm, torch_lstm in (("cpu", 7, 11, 16), ("cuda", 4, 7, 6)):
        ours = {"min_gru": 3, "min_lstm": 4, "gru": gru, "lstm": lstm}
        expected = {("minrnn-gen", model): count for model, count in ours.items()}
        kept = {
            (row.contender, row.problem.model): round(
                int(row.facts["kept_bytes"]) / (row.problem.time * row.problem.channels * 4)
            )
            for row in classic.record_of(device).rows
            if "kept_bytes" in row.facts
        }
        assert kept == expected | {("torch.nn", "gru"): 7, ("torch.nn", "lstm"): torch_lstm}
    on_gpu = classic._panel_of_scans()
    for curve in on_gpu.curves:
        points = dict(zip(curve.sizes, curve.values, strict=True))
        assert 1.5 < points[4096] / points[256] < 2.5, "sixteen times the steps take about twice the time"
