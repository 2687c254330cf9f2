"""Page of a record: its curves and its tables in one HTML file that answers a reader and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.problems.scan_problems import Problem, TableName
from benchmarks.report.plot import OURS_BEGIN, Panel, panels_of, styled
from benchmarks.report.record import COPY, Record, Row
from benchmarks.report.tables import OURS, by_problem, cell_text, contenders, milliseconds, provenance, share_of_best
from minrnn_gen.report import chart
from minrnn_gen.report.chart import Cell, Line, Scales
from minrnn_gen.report.page import facts, page, section


def html_of(record: Record, titles: Mapping[TableName, str]) -> str:
    """Return a record as a page; `titles` of its tables."""
    panels = "".join(section(panel.title, "", _chart(panel)) for panel in panels_of(record))
    sections = [
        f"<p>{_as_html(provenance(record))}</p>",
        f'<div class="panels">{panels}</div>' if panels else "",
        *(_table(title, record.of_table(name)) for name, title in titles.items() if record.of_table(name)),
        section("How it was measured", "", facts(list(record.method.items()))),
    ]
    return page(f"{_short(record.command)}, {record.gpu}", sections, chart.STYLE, chart.SCRIPT)


def _short(command: str) -> str:
    """Return a command without its options, which the provenance has: a heading that fits a phone."""
    return command.partition(" --")[0].removeprefix("python -m ")


def _as_html(markdown: str) -> str:
    from html import escape

    return escape(markdown.replace("`", ""))


def _chart(panel: Panel) -> str:
    lines = []
    for curve, color, dash in styled(panel.curves):
        points = [
            (size, value, f"{curve.name}: {_quantity(value, panel.quantity)} at {size:,g} {panel.size}")
            for size, value in zip(curve.sizes, curve.values, strict=True)
            if value > 0
        ]
        lines.append(Line(curve.name, points, color, dash, curve.name.startswith(OURS_BEGIN)))
    return chart.chart(lines, Scales(panel.size, panel.quantity, panel.is_size_log, panel.is_log))


def _quantity(value: float, quantity: str) -> str:
    return f"{milliseconds(value)} ms" if quantity == "ms" else f"{value:.2f} ({quantity})"


def _table(title: str, rows: Sequence[Row]) -> str:
    """Return a line for every problem with a cell for every contender, the fastest correct one marked."""
    names, notes = contenders(rows), dict[str, int]()
    problems = by_problem(rows)
    shares = {problem: share_of_best(by_name) for problem, by_name in problems.items()}
    has_shares = any(share is not None for share in shares.values())
    lines = []
    for problem, by_name in problems.items():
        fastest = min((row.ms for row in by_name.values() if row.ms and _counts(row)), default=None)
        cells = [Cell(problem.label)]
        for name in names:
            row = by_name.get(name)
            text = "" if row is None else cell_text(row, by_name.get(COPY), notes)
            is_fastest = row is not None and _counts(row) and row.ms == fastest
            cells.append(Cell(text, row.ms if row else None, is_fastest))
        lines.append(cells + ([_share(shares[problem])] if has_shares else []))
    last = [f"{OURS}, share of the best other"] if has_shares else []
    below = "".join(f"<p>[{number}] {_as_html(sentence)}</p>" for sentence, number in notes.items())
    brackets = "in brackets the fraction of copy bandwidth and the largest relative error"
    words = f"{_unit(rows[0].problem)}; {brackets}. Blue is the fastest."
    return section(title, words, chart.table([rows[0].problem.size_names, *names, *last], lines) + below)


def _counts(row: Row) -> bool:
    return row.ms is not None and row.is_right and row.contender != COPY


def _share(share: float | None) -> Cell:
    return Cell("") if share is None else Cell(f"{share:.2f}", share)


def _unit(problem: Problem) -> str:
    return f"Medians in {problem.heading.partition(':')[0]}" if problem.units_per_ms != 1.0 else "Medians in ms"
