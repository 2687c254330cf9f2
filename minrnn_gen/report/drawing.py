"""Inline SVG and HTML of a decision's page: small figures whose colours follow the reader's light or dark scheme."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Units of a figure's own coordinates; a page scales it.
WIDTH, HEIGHT = 680, 340
LEFT, RIGHT, TOP, BOTTOM = 66, 16, 14, 44
PARTS = 8  # colours of the parts of a block's memory, used in turn
NEARLY_FULL = 0.95


@dataclass(frozen=True)
class Point:
    """A candidate in the search space: its predicted time, its shared memory, and how many candidates lie here."""

    us: float
    shared_bytes: int
    count: int = 1


@dataclass(frozen=True)
class Axis:
    """A scale from values to a figure's coordinates; `is_log` for values that span powers of ten."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Return the coordinate of `value`."""
        low, high, place = self.low, self.high, value
        if self.is_log:
            low, high, place = math.log10(low), math.log10(high), math.log10(value)
        share = (place - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values within the scale."""
        if self.is_log and self.high >= 3 * self.low:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            values = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
            return [value for value in values if self.low <= value <= self.high]
        step = 10 ** math.floor(math.log10(max(self.high - self.low, 1e-9)))
        step = next((step * part for part in (0.2, 0.5, 1, 2) if (self.high - self.low) / (step * part) <= 6), step)
        first = math.ceil(self.low / step)
        return [number * step for number in range(first, math.floor(self.high / step) + 1)]


def search_space(points: Sequence[Point], pick: Point) -> str:
    """Return the candidates by shared memory and predicted time, the pick among them."""
    every = (*points, pick)
    times, bytes_ = [point.us for point in every], [point.shared_bytes for point in every]
    across = Axis(0, max(*bytes_, 1024), LEFT, WIDTH - RIGHT)
    upward = Axis(min(times) / 1.1, max(times) * 1.1, HEIGHT - BOTTOM, TOP, is_log=True)
    parts = [f'<svg class="wide" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="search space">']
    for value in upward.ticks():
        y = upward.at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:,.4g}</text>')
    for kib in _kib_ticks(across.high):
        x = across.at(kib * 1024)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{kib:,}</text>')
    for point in points:
        radius = min(2.6 + 0.8 * math.log2(point.count), 7.0)
        title = f"{point.us:,.2f} us, {point.shared_bytes:,} bytes" + (f", {point.count} candidates" if point.count > 1 else "")
        x, y = across.at(point.shared_bytes), upward.at(point.us)
        parts.append(f'<circle class="other" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{title}</title></circle>')
    x, y = across.at(pick.shared_bytes), upward.at(pick.us)
    anchor, shift = ("end", -14) if x > WIDTH / 2 else ("start", 14)
    parts.append(f'<circle class="pick" cx="{x:.1f}" cy="{y:.1f}" r="7"/>')
    parts.append(
        f'<text class="pick" x="{x + shift:.1f}" y="{y + 5:.1f}" text-anchor="{anchor}">the pick, {pick.us:,.4g} us</text>'
    )
    parts.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">shared memory of a block, KiB</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">predicted time, us (logarithmic)</text>'
        "</svg>"
    )
    return "".join(parts)


def values_of_variables(best: Mapping[str, Mapping[int, float]], chosen: Mapping[str, int]) -> str:
    """Return, for each variable, a bar for the best predicted time with each of its values, the chosen one marked."""
    slowest = max(us for times in best.values() for us in times.values())
    rows = []
    for name, times in best.items():
        for number, (value, us) in enumerate(sorted(times.items())):
            mark = ' class="pick"' if chosen.get(name) == value else ""
            label = breakable(name) if number == 0 else ""
            kind = "value" if mark else "other"
            rows.append(f"<tr{mark}><th>{label}</th><td>{value}</td><td>{bar(us, slowest, kind)}</td><td>{us:,.2f}</td></tr>")
    head = "<tr><th>variable</th><th>value</th><th></th><th>best, us</th></tr>"
    return f'<table class="bars">{head}{"".join(rows)}</table>'


def memory_map(parts_bytes: Mapping[str, int], limit_bytes: int) -> str:
    """Return the shared memory of a block from its first byte on, its parts to scale within a block's limit."""
    height, top = 54, 18
    across = Axis(0, max(limit_bytes, sum(parts_bytes.values())), 4, WIDTH - 4)
    drawn = [f'<svg class="wide" viewBox="0 0 {WIDTH} {height + 46}" role="img" aria-label="shared memory of a block">']
    drawn.append(f'<rect class="free" x="4" y="{top}" width="{WIDTH - 8}" height="{height}"/>')
    legend = []
    offset = 0
    for number, (name, size) in enumerate(parts_bytes.items()):
        x, end = across.at(offset), across.at(offset + size)
        title = f"{escape(name)}: bytes {offset:,} to {offset + size:,}"
        drawn.append(
            f'<rect class="part{number % PARTS}" x="{x:.1f}" y="{top}" width="{max(end - x, 1.0):.1f}" height="{height}">'
            f"<title>{title}</title></rect>"
        )
        key = f'<svg class="key" viewBox="0 0 10 10"><rect class="part{number % PARTS}" width="10" height="10"/></svg>'
        legend.append(
            f"<tr><td>{key}</td><th>{breakable(name)}</th><td>{offset:,}</td><td>{offset + size:,}</td><td>{size:,}</td></tr>"
        )
        offset += size
    drawn.append(f'<text x="4" y="{top + height + 18}">0</text>')
    drawn.append(
        f'<text x="{WIDTH - 4}" y="{top + height + 18}" text-anchor="end">{limit_bytes:,} bytes, the most of a block</text>'
    )
    drawn.append("</svg>")
    head = "<tr><th></th><th>part</th><th>from</th><th>to</th><th>bytes</th></tr>"
    return "".join(drawn) + f'<table class="bars">{head}{"".join(legend)}</table>'


def bar(value: float, limit: float, kind: str = "value") -> str:
    """Return a bar with the length `value` / `limit`; `kind` is the class of its colour."""
    share = 0.0 if limit <= 0 else min(max(value / limit, 0.0), 1.0)
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none"><rect class="free" width="100" height="10"/>'
        f'<rect class="{kind}" width="{100 * share:.1f}" height="10"/></svg>'
    )


def bars(rows: Iterable[tuple[str, float, float, str]], *columns: str, warns: bool = False) -> str:
    """Return a table of labels with bars: each row is a label, a value, its limit, and both in words.

    `warns`: nearly full bars get another colour.
    """
    lines = []
    for label, value, limit, text in rows:
        kind = "full" if warns and value > NEARLY_FULL * limit else "value"
        lines.append(f"<tr><th>{breakable(label)}</th><td>{bar(value, limit, kind)}</td><td>{escape(text)}</td></tr>")
    head = f"<tr><th>{escape(columns[0])}</th><th></th><th>{escape(columns[1])}</th></tr>"
    return f'<table class="bars">{head}{"".join(lines)}</table>'


def breakable(name: str) -> str:
    """Return a name that may break after an underscore."""
    return escape(name).replace("_", "_<wbr>")


def _kib_ticks(high_bytes: float) -> range:
    kib = high_bytes / 1024
    step = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 1 << 20) if kib / step <= 8)
    return range(0, int(kib) + 1, step)
