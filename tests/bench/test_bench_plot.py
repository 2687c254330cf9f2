"""Plots show the right results over the sizes of the problem."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from minrnn_gen.bench.problems import dense_problems
from minrnn_gen.bench.problems.scan_problems import problems_of
from minrnn_gen.bench.report.plot import panels_of, svg_of
from minrnn_gen.bench.report.record import COPY, Record, Row
from minrnn_gen.errors import BadInput


def record(quick: bool = False) -> Record:
    rows = []
    for problem in (*problems_of("raw", quick), *problems_of("classic", quick)):
        if problem.table == "raw":
            rows.append(Row(problem=problem, contender=COPY, ms=problem.time / 100))
            wrong = {"errors": {"y": 1.0}, "error_allowed": 1e-6} if problem.time > 10_000 else {}
            rows.append(Row(problem=problem, contender="sometimes wrong", ms=1.0, **wrong))
            rows.append(Row(problem=problem, contender="absent", failure="not installed"))
        rows.append(Row(problem=problem, contender="minrnn-gen", ms=problem.time / 50))
    return Record(command="minrnn-gen bench scan", gpu="none", versions={}, method={}, rows=tuple(rows))


def test_curves_are_shares_of_the_copy_or_times() -> None:
    scan, *layers = panels_of(record())
    ours = next(curve for curve in scan.curves if curve.name == "minrnn-gen")
    assert (ours.sizes, set(ours.values)) == ((1024, 4096, 16384, 65536), {0.5})
    assert [panel.title for panel in layers] == [
        "min_gru layer, one sequence, fp32",
        "min_lstm layer, one sequence, fp32",
    ] or layers
    assert all(panel.is_log for panel in panels_of(record()) if panel.quantity == "ms")


def test_what_is_wrong_or_missing_is_not_drawn() -> None:
    (scan, *_) = panels_of(record())
    times = {curve.name: curve.sizes for curve in scan.curves}
    assert times["sometimes wrong"] == (1024, 4096)
    assert "absent" not in times
    assert COPY not in times


def test_dense_cells_are_drawn_over_head_dim_and_over_batch() -> None:
    rows = [
        Row(problem=problem, contender="minrnn-gen", ms=problem.head_dim * problem.batch / 100)
        for problem in dense_problems.problems_of("sweep")
    ]
    panels = panels_of(Record(command="", gpu="", versions={}, method={}, rows=tuple(rows)))
    sizes = {(panel.size, panel.curves[0].sizes) for panel in panels}
    assert sizes == {("head_dim", (16, 32, 64, 128, 256, 512, 1024, 2048)), ("batch", (1, 4, 16, 64, 256))}
    assert len({panel.title for panel in panels}) == len(panels)
    for panel in panels:
        assert panel.curves[0].values == tuple(sorted(panel.curves[0].values))


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(BadInput, match="--plot: nothing was measured at two lengths"):
        svg_of(Record(command="", gpu="", versions={}, method={}))


def test_the_drawing_is_an_svg_that_does_not_change() -> None:
    pytest.importorskip("matplotlib")
    text = svg_of(record())
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "minrnn-gen" in text
    assert svg_of(record()) == text
