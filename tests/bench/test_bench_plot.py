"""Plots show the right results over the sizes of the problem."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.problems import dense_problems
from benchmarks.problems.scan_problems import problems_of
from benchmarks.report.plot import BEST_OF_TORCH, LIBRARY_COLORS, library_of, panels_of, spread, svg_of
from benchmarks.report.record import COPY, Record, Row
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
    return Record(command="python -m benchmarks scan", gpu="none", versions={}, method={}, rows=tuple(rows))


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


def test_the_best_precision_of_torch_is_drawn() -> None:
    """Whatever the precision of a sweep: what people would use."""
    problems = dense_problems.problems_of("sweep")
    by_precision = {"bf16": 13.7, "fp16": 2.16}
    rows = [
        Row(problem=problem, contender=f"torch.nn {problem.precision}", ms=by_precision[problem.precision])
        for problem in (*problems, *(one.model_copy(update={"precision": "fp16"}) for one in problems))
        if problem.precision in by_precision
    ]
    panels = panels_of(Record(command="", gpu="", versions={}, method={}, rows=tuple(rows)))
    assert panels
    for panel in panels:
        curves = {curve.name: curve.values for curve in panel.curves}
        assert set(curves[BEST_OF_TORCH]) == {2.16} and set(curves["torch.nn bf16"]) == {13.7}


def test_a_library_has_one_colour_everywhere() -> None:
    assert {library_of(name) for name in ("torch.nn bf16", "torch.associative_scan", BEST_OF_TORCH)} == {"torch"}
    assert library_of("flashrnn.cuda") == library_of("flashrnn.cuda_fused") == "flashrnn"
    assert len({color for library, color in LIBRARY_COLORS.items() if library != "GPU"}) == len(LIBRARY_COLORS) - 1


@given(st.lists(st.floats(0, 1), max_size=12).map(sorted), st.floats(0.01, 0.2))
def test_names_at_the_ends_of_lines_are_apart(places: list[float], distance: float) -> None:
    moved = spread(places, distance)
    assert len(moved) == len(places)
    assert all(after - before >= distance - 1e-9 for before, after in itertools.pairwise(moved))
    if all(after - before >= distance for before, after in itertools.pairwise(places)):
        assert moved == pytest.approx(places)
