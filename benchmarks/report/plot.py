"""Plot of a record: scans over the length of the sequence, dense cells and layers over their sizes."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mode
from typing import Any

from benchmarks.problems.layer_problems import CENTRE
from benchmarks.problems.scan_problems import Problem
from benchmarks.report.record import COPY, Record, Row
from benchmarks.report.tables import OURS, best_alternative, by_problem, contenders
from minrnn_gen.errors import BadInput, needing

_PANEL_INCHES = (5.4, 3.8)
# One colour for each library in every figure (Okabe and Ito's, distinct to people with colour blindness too); ways of one
# library differ by their lines.
LIBRARY_COLORS = {
    "minrnn-gen": "#0072B2",
    "GPU": "#0072B2",
    "CPU": "#7F7F7F",
    "torch": "#CC3311",
    "flashrnn": "#E69F00",
    "accelerated_scan": "#009E73",
    "fla": "#CC79A7",
    "jax": "#56B4E9",
}
_OTHER_COLORS = ("#000000", "#999933", "#882255", "#44AA99", "#AA4499")
_LINE_STYLES = ("-", "--", ":", "-.")
# The names at the ends of lines: the least distance of two, as a share of the height of a panel.
_NAME_DISTANCE = 0.065
# How the names of our own curves begin.
OURS_BEGIN = ("minrnn-gen", "GPU")
BEST_OF_TORCH = "torch.nn, its fastest precision"


@dataclass(frozen=True)
class Curve:
    """Values of a contender over the sizes of the problem."""

    name: str
    sizes: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """Curves that share their axes: `size` below, `quantity` at the side.

    `is_log`: a logarithmic axis of values, which span orders of magnitude; `is_size_log`: a logarithmic axis of sizes.
    `is_scatter`: points instead of lines, with the diagonal where quantity and size are equal.
    """

    title: str
    quantity: str
    is_log: bool
    curves: tuple[Curve, ...]
    size: str = "time steps"
    is_size_log: bool = True
    is_scatter: bool = False


def panels_of(record: Record) -> tuple[Panel, ...]:
    """Return the panels of a record: rows that differ in one size alone, at least two of them."""
    raw = [row for row in record.of_table("raw") if row.problem.task == "forward" and row.problem.precision == "fp32"]
    panels = []
    for (batch, channels), rows in _grouped(raw, lambda row: (row.problem.batch, row.problem.channels)).items():
        title = f"raw scan, fp32, {batch} x time x {channels}"
        panels.append(Panel(title, "share of the speed of a copy", False, _curves(rows, _time, _share_of_copy)))
    for (model,), rows in _grouped(record.of_table("classic"), lambda row: (row.problem.model,)).items():
        panels.append(Panel(f"{model} layer, one sequence, fp32", "ms", True, _curves(rows, _time, _ms)))
    panels += _of_sweep(_with_best_of_torch(record))
    panels += _of_spread([row for row in record.of_table("spread") if row.problem.task == "forward + backward"])
    return tuple(panel for panel in panels if any(len(curve.sizes) > 1 for curve in panel.curves))


def library_of(name: str) -> str:
    """Return the library of a contender, which its name begins with."""
    return next((library for library in LIBRARY_COLORS if name.startswith(library)), name)


def _with_best_of_torch(record: Record) -> list[Row]:
    """Return the rows of the sweep in bf16, and torch.nn's fastest row at each of its shapes that has several.

    cuDNN's ways differ by precision: bf16 alone may take several times as long as fp16.
    """
    rows = [row for row in record.of_table("sweep") if row.problem.precision == "bf16"]
    shapes = {_shape(row.problem): row.problem for row in rows}
    of_torch = [row for row in record.rows if row.contender.startswith("torch.nn") and row.is_right and row.ms]
    for (shape,), ways in _grouped(of_torch, lambda row: (_shape(row.problem),)).items():
        if shape in shapes and len({row.contender for row in ways}) > 1:
            fastest = min(ways, key=lambda row: row.ms or 0)
            rows.append(fastest.model_copy(update={"contender": BEST_OF_TORCH, "problem": shapes[shape]}))
    return rows


def _shape(problem: Problem) -> tuple[object, ...]:
    """Return the sizes of a problem without its precision."""
    names = ("model", "task", "heads", "head_dim", "batch", "time")
    return tuple(getattr(problem, name, None) for name in names)


def _of_sweep(rows: Sequence[Row]) -> list[Panel]:
    """Return panels of dense cells over head_dim and over batch, with the other sizes fixed at their most common values."""
    if not rows:
        return []
    time, batch = (mode(getattr(row.problem, name) for row in rows) for name in ("time", "batch"))
    panels = []
    at_time = [row for row in rows if row.problem.time == time]
    over_head_dim = [row for row in at_time if row.problem.batch == batch]
    for (model, task), group in _grouped(over_head_dim, lambda row: (row.problem.model, row.problem.task)).items():
        title = f"{model}, {task}, batch {batch}, {time} steps, bf16"
        panels.append(Panel(title, "ms", True, _curves(group, lambda problem: problem.head_dim, _ms), "head_dim"))
    shapes = _grouped(
        at_time, lambda row: (row.problem.model, row.problem.task, f"{row.problem.heads} x {row.problem.head_dim}")
    )
    for (model, task, sizes), group in shapes.items():
        title = f"{model} {sizes}, {task}, {time} steps, bf16"
        panels.append(Panel(title, "ms", True, _curves(group, lambda problem: problem.batch, _ms), "batch"))
    return panels


def _of_spread(rows: Sequence[Row]) -> list[Panel]:
    """Return panels of a layer's training step over batch, time and units, against the best of the other ways."""
    panels = []
    single = [
        row for row in rows if row.problem.model == CENTRE.model and row.problem.layers == 1 and not row.problem.bidirectional
    ]
    for (arithmetic,), group in _grouped(single, lambda row: (row.problem.arithmetic,)).items():
        for size, (varied, *fixed) in _SPREAD_SIZES.items():
            line = [row for row in group if all(_sizes(row.problem)[name] == getattr(CENTRE, name) for name in fixed)]
            line = [row for by_name in by_problem(line).values() for row in _ours_and_best(by_name)]
            title = ", ".join(f"{getattr(CENTRE, name)} {name}" for name in fixed)
            curves = _curves(line, lambda problem, varied=varied: _sizes(problem)[varied], _ms)  # type: ignore[misc]
            panels.append(Panel(f"{CENTRE.model} layer, {arithmetic}, training step, {title}", "ms", True, curves, size))
    return panels


# {axis: the field of a shape that varies, and those that are fixed}
_SPREAD_SIZES = {
    "batch": ("batch", "time", "units"),
    "time steps": ("time", "batch", "units"),
    "units": ("units", "batch", "time"),
}


def _sizes(problem: Problem) -> dict[str, int]:
    return {"batch": problem.batch, "time": problem.time, "units": problem.channels}


def _ours_and_best(rows: Mapping[str, Row]) -> list[Row]:
    best = best_alternative(rows)
    alternatives = [] if best is None else [best.model_copy(update={"contender": "torch, the best of its ways"})]
    return [*(row for name, row in rows.items() if name == OURS), *alternatives]


def need_matplotlib() -> None:
    """Raise ToolchainMissing where there is no matplotlib, before a measurement whose plot could not be drawn."""
    with needing("matplotlib", "--plot", "pip install matplotlib"):
        import matplotlib.figure  # noqa: F401


def svg_of(record: Record) -> str:
    """Return a record as SVG, the same text for the same record and the same matplotlib.

    Raises BadInput where nothing in it can be drawn, ToolchainMissing without matplotlib.
    """
    panels = panels_of(record)
    if not panels:
        raise BadInput(
            "--plot: nothing was measured at two lengths or sizes; "
            "measure the table raw, classic, sweep or spread, without --quick"
        )
    need_matplotlib()
    return svg_text(panels, record.gpu)


def svg_text(panels: Sequence[Panel], title: str) -> str:
    """Return panels as SVG, side by side and in rows; it needs matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    # Text stays text, and identifiers do not change from run to run.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "minrnn-gen", "font.size": 9}):
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        figure = Figure(figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows), layout="constrained")
        for index, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, index + 1)
            if panel.is_scatter:
                _scatter(axes, panel)
            for curve, color, style in styled(() if panel.is_scatter else panel.curves):
                (line,) = axes.plot(curve.sizes, curve.values, marker="o", markersize=3, color=color, linestyle=style)
                line.set(linewidth=2.2 if curve.name.startswith(OURS_BEGIN) else 1.1)
            axes.set(title=panel.title, xlabel=panel.size, ylabel=panel.quantity)
            if panel.is_size_log:
                axes.set_xscale("log", base=10 if panel.is_scatter else 2)
            if panel.is_log:
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
            if panel.is_scatter:
                axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
            else:
                _name_lines(axes, panel)
        figure.suptitle(title)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    # matplotlib leaves blanks at the ends of lines.
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def styled(curves: Sequence[Curve]) -> list[tuple[Curve, str, str]]:
    """Return curves with the colour of their library and the line of their way."""
    ways: dict[str, int] = {}
    others: dict[str, str] = {}
    styled = []
    for curve in curves:
        library = library_of(curve.name)
        color = LIBRARY_COLORS.get(library) or others.setdefault(library, _OTHER_COLORS[len(others) % len(_OTHER_COLORS)])
        # Layouts of ours share a colour, and so do GPU and minrnn-gen, which are one library.
        way = ways.get(color, 0)
        ways[color] = way + 1
        styled.append((curve, color, _LINE_STYLES[way % len(_LINE_STYLES)]))
    return styled


def _name_lines(axes: Any, panel: Panel) -> None:
    """Write the name of each line next to its end, outside the panel, no two closer than can be read."""
    named = []
    for curve, color, _ in styled(panel.curves):
        end = (curve.sizes[-1], curve.values[-1])
        x, y = axes.transLimits.transform(axes.transScale.transform(end))
        named.append((float(y), float(x), curve.name, color))
    named.sort()
    places = spread([end[0] for end in named], _NAME_DISTANCE)
    for (y, x, name, color), place in zip(named, places, strict=True):
        axes.plot([x, 1.015], [y, place], transform=axes.transAxes, color=color, linewidth=0.6, alpha=0.5, clip_on=False)
        axes.text(1.02, place, name, transform=axes.transAxes, color=color, fontsize=8.5, va="center")


def spread(places: Sequence[float], distance: float) -> list[float]:
    """Return ascending places, moved apart to at least `distance` and kept about their middle."""
    apart: list[float] = []
    for place in places:
        apart.append(max(place, apart[-1] + distance) if apart else place)
    shift = sum(new - old for new, old in zip(apart, places, strict=True)) / max(len(apart), 1)
    return [place - shift for place in apart]


def _scatter(axes: Any, panel: Panel) -> None:
    """Draw the points of a panel, and the diagonal where quantity and size are equal."""
    for curve in panel.curves:
        axes.plot(curve.sizes, curve.values, ".", markersize=3, alpha=0.6, label=curve.name)
    ends = [bound(bound(curve.sizes) for curve in panel.curves) for bound in (min, max)]
    axes.plot(ends, ends, color="black", linewidth=0.8)


def _grouped(rows: Sequence[Row], key: Callable[[Row], tuple[object, ...]]) -> dict[tuple[object, ...], list[Row]]:
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _curves(
    rows: Sequence[Row], size: Callable[[Problem], int], value: Callable[[Row, Row | None], float | None]
) -> tuple[Curve, ...]:
    """Return the curves of all contenders, without the points that are wrong or missing."""
    problems = by_problem(rows)
    curves = []
    for name in contenders(rows):
        points = []
        for problem, by_name in sorted(problems.items(), key=lambda item: size(item[0])):
            row = by_name.get(name)
            if row is None or not row.is_right:
                continue
            number = value(row, by_name.get(COPY))
            if number is not None:
                points.append((size(problem), number))
        if points:
            sizes, values = zip(*points, strict=True)
            curves.append(Curve(name, sizes, values))
    return tuple(curves)


def _time(problem: Problem) -> int:
    return problem.time


def _ms(row: Row, _: Row | None) -> float | None:
    return row.ms


def _share_of_copy(row: Row, copied: Row | None) -> float | None:
    if row.contender == COPY or not row.ms or copied is None or not copied.ms:
        return None
    return copied.ms / row.ms
