"""Interactive charts and tables of a report: a point shows its text, a name hides its line, a heading sorts.

Without scripts they show the same, but do not react.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from minrnn_gen.report.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis

STYLE = """
figure { margin: 0; max-width: 46rem; } figcaption { font-size: 13px; color: var(--soft); }
@media (max-width: 36rem) { figure svg.wide { min-width: 0; } figure svg text { font-size: 21px; }
  figure svg.wide .dot { r: 6px; } }
.line { fill: none; stroke: var(--ink); stroke-width: 1.6; } .thick .line { stroke-width: 3; }
.dot { fill: var(--ink); } .dim { opacity: 0.15; } .gone { display: none; }
.legend { display: flex; flex-wrap: wrap; gap: 0.2rem 0.4rem; max-width: 60rem; }
.legend button { font: inherit; font-size: 13px; color: var(--text); background: none; border: 1px solid var(--line);
  border-radius: 4px; padding: 0.05rem 0.45rem; cursor: pointer; text-align: left; }
.legend button[aria-pressed="false"] { color: var(--soft); text-decoration: line-through; }
.legend svg { width: 1.8rem; height: 0.6rem; margin-right: 0.35rem; }
output { display: block; min-height: 1.5em; font-size: 14px; max-width: 60rem; overflow-wrap: anywhere; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(34rem, 100%), 1fr)); gap: 0 2rem; }
.panels > section { min-width: 0; }
table.sorted { font-size: 13px; white-space: nowrap; } table.sorted tr > * { border-top: 1px solid var(--line); }
table.sorted thead th { cursor: pointer; } table.sorted th[aria-sort="ascending"]::after { content: " ↑"; }
table.sorted th[aria-sort="descending"]::after { content: " ↓"; }
input { font: inherit; color: inherit; background: var(--code); border: 1px solid var(--line); border-radius: 4px;
  padding: 0.15rem 0.5rem; width: min(22rem, 100%); margin: 0.3rem 0; }
"""

SCRIPT = """
for (const figure of document.querySelectorAll("figure")) {
  const svg = figure.querySelector("svg.wide"), said = figure.querySelector("output");
  const lines = [...svg.querySelectorAll("[data-line]")], dots = [...svg.querySelectorAll("[data-says]")];
  const only = line => lines.forEach(other => other.classList.toggle("dim", line !== null && other !== line));
  svg.addEventListener("pointermove", event => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const far = dot => Math.hypot(dot.cx.baseVal.value - at.x, dot.cy.baseVal.value - at.y);
    const shown = dots.filter(dot => !dot.closest(".gone"));
    const nearest = shown.reduce((best, dot) => best && far(best) <= far(dot) ? best : dot, null);
    said.textContent = nearest && far(nearest) < 40 ? nearest.dataset.says : "";
    only(said.textContent ? nearest.closest("[data-line]") : null);
  });
  svg.addEventListener("pointerleave", () => only(null));
  for (const button of figure.querySelectorAll("button")) {
    const line = lines[Number(button.value)];
    button.addEventListener("click", () =>
      button.setAttribute("aria-pressed", !line.classList.toggle("gone")));
    button.addEventListener("pointerenter", () => only(line));
    button.addEventListener("pointerleave", () => only(null));
  }
}
for (const table of document.querySelectorAll("table.sorted")) {
  const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const value = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const order = (one, other) => isNaN(one) || isNaN(other) ? one.localeCompare(other) : one - other;
  heads.forEach((head, column) => head.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const empty = row => value(row, column) === "";
    rows.sort((one, other) => empty(one) - empty(other)
      || order(value(one, column), value(other, column)) * (down ? -1 : 1));
    body.append(...rows);
  }));
  table.parentElement.querySelector("input")?.addEventListener("input", event => {
    const words = event.target.value.toLowerCase().split(/ +/);
    rows.forEach(row => row.classList.toggle("gone", !words.every(word => row.textContent.toLowerCase().includes(word))));
  });
}
"""
# Colours that read well on white and on black, unlike black itself.
_INK = {"#000000": "var(--text)"}
_DASHES = {"-": "", "--": "6 4", ":": "1.5 4", "-.": "6 4 1.5 4"}


@dataclass(frozen=True)
class Line:
    """Points (x, y, text) of one name; `dash` is the line's pattern, None draws dots alone."""

    name: str
    points: Sequence[tuple[float, float, str]]
    color: str
    dash: str | None = "-"
    is_thick: bool = False


@dataclass(frozen=True)
class Scales:
    """The axes of a chart: their names, and whether they are logarithmic; `has_diagonal` where both are alike."""

    below: str
    beside: str
    is_x_log: bool = False
    is_y_log: bool = False
    has_diagonal: bool = False


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, its sort key, and whether it is the best of its row."""

    text: str
    value: float | None = None
    is_pick: bool = False


def chart(lines: Sequence[Line], scales: Scales) -> str:
    """Return lines over positive sizes as a figure."""
    across = _axis([x for line in lines for x, _, _ in line.points], scales.is_x_log, LEFT, WIDTH - RIGHT)
    upward = _axis([y for line in lines for _, y, _ in line.points], scales.is_y_log, HEIGHT - BOTTOM, TOP)
    parts = [f'<svg class="wide" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(scales.beside)}">']
    for value in upward.ticks():
        y = upward.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.4g}</text>')
    for value in _sizes(lines) if scales.is_x_log and not scales.has_diagonal else across.ticks():
        x = across.at(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_short(value)}</text>')
    if scales.has_diagonal:
        low, high = max(across.low, upward.low), min(across.high, upward.high)
        ends = f'x1="{across.at(low):.1f}" y1="{upward.at(low):.1f}" x2="{across.at(high):.1f}" y2="{upward.at(high):.1f}"'
        parts.append(f'<line class="grid" stroke-dasharray="4 4" {ends}/>' if high > low else "")
    for number, line in enumerate(lines):
        places = [(across.at(x), upward.at(y), says) for x, y, says in line.points]
        parts.append(f'<g data-line="{number}"{_ink(line)}>')
        if line.dash is not None:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
            parts.append(f'<polyline class="line" points="{path}"{_dash(line)}/>')
        for x, y, says in places:
            text = escape(says)
            parts.append(
                f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3.4" data-says="{text}"><title>{text}</title></circle>'
            )
        parts.append("</g>")
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(scales.below)}</text>')
    caption = f"<figcaption>{escape(scales.beside)}</figcaption>"
    return f"<figure>{caption}{''.join(parts)}</svg><output></output>{_legend(lines)}</figure>"


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table that sorts by its headings, and a field that filters rows by words."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = []
    for cells in rows:
        lines.append("<tr>" + "".join(map(_cell, cells)) + "</tr>")
    field = '<input type="search" placeholder="rows with these words" aria-label="rows with these words">'
    return (
        f'<div class="scroll">{field}<table class="sorted"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(cell: Cell) -> str:
    kind = ' class="pick"' if cell.is_pick else ""
    value = "" if cell.value is None else f' data-value="{cell.value:.6g}"'
    return f"<td{kind}{value}>{escape(cell.text)}</td>"


def _axis(values: Sequence[float], is_log: bool, start: float, end: float) -> Axis:
    """Return an axis with room beyond the ends, which begins at 0 where it is not logarithmic."""
    low, high = min(values, default=1.0), max(values, default=1.0)
    return Axis(low / 1.1, high * 1.1, start, end, is_log=True) if is_log else Axis(0, high * 1.05, start, end)


def _sizes(lines: Sequence[Line]) -> list[float]:
    """Return the measured sizes, as ticks of an axis, no two too close to read."""
    chosen: list[float] = []
    for value in sorted({x for line in lines for x, _, _ in line.points}):
        if not chosen or value >= 1.4 * chosen[-1]:
            chosen.append(value)
    return chosen


def _short(value: float) -> str:
    """Return a size as text, powers of two with their units."""
    for unit, size in (("M", 1 << 20), ("k", 1 << 10)):
        if value >= size and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:,.4g}"


def _ink(line: Line) -> str:
    color = _INK.get(line.color, line.color)
    return f' style="--ink: {escape(color)}"' + (' class="thick"' if line.is_thick else "")


def _dash(line: Line) -> str:
    dashes = _DASHES.get(line.dash or "-", "")
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _legend(lines: Sequence[Line]) -> str:
    """Return a button for each line that hides and shows it."""
    buttons = []
    for number, line in enumerate(lines):
        mark = '<circle class="dot" cx="15" cy="5" r="4"/>'
        if line.dash is not None:
            mark = f'<line class="line" x1="0" x2="30" y1="5" y2="5"{_dash(line)}/>'
        key = f'<svg viewBox="0 0 30 10"{_ink(line)}>{mark}</svg>'
        buttons.append(f'<button type="button" value="{number}" aria-pressed="true">{key}{escape(line.name)}</button>')
    return f'<div class="legend">{"".join(buttons)}</div>'
