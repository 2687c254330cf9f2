"""Draw the timelines of the kernels' pages: `python docs/kernels/timelines.py` writes an SVG beside each page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LEFT, UNIT, LANE, TOP = 150, 56, 34, 40  # pixels: of the labels, of a unit of time, of a lane, above the first lane


@dataclass(frozen=True)
class Bar:
    """Work of one lane from `start` to `end`; `kind` chooses its colour."""

    lane: int
    start: float
    end: float
    kind: str
    text: str = ""


@dataclass(frozen=True)
class Timeline:
    """Lanes below each other, work in them, and arrows (lane, time, lane, time) from a result to the work that needs it.

    Arrows join neighbouring lanes, so that none crosses a word.
    """

    title: str
    lanes: Sequence[str]
    bars: Sequence[Bar]
    arrows: Sequence[tuple[int, float, int, float]] = ()


def _scan() -> Timeline:
    """Four neighbouring tiles of one column on four blocks, the group's state at hand."""
    bars = []
    for tile in range(4):
        late = 0.25 * tile
        reduced, folded = 4.0 + late, 4.0 + late + (0.0 if tile == 0 else 1.5)
        bars += [
            Bar(tile, late, 2.4 + late, "memory", "copy the gates"),
            Bar(tile, 2.4 + late, reduced, "compute", "reduce the tile"),
        ]
        if tile:
            bars.append(Bar(tile, reduced, folded, "wait", f"look at {', '.join(str(earlier) for earlier in range(tile))}"))
        bars.append(Bar(tile, folded, folded + 2.4, "compute", "scan the tile, store y"))
    return Timeline(
        "Decoupled look-back: aggregates are published before the state is known",
        [f"tile {tile}" for tile in range(4)],
        bars,
    )


def _dense() -> Timeline:
    """Two blocks of a cluster over one step and the beginning of the next."""
    bars, arrows = [], []
    for block in range(2):
        work, memory = 1 + block, 3 * block
        bars += [
            Bar(work, 0.0, 1.8, "compute", "product with R"),
            Bar(work, 1.8, 2.6, "compute", "split-K"),
            Bar(work, 2.6, 4.2, "compute", "cell"),
            Bar(work, 4.2, 5.0, "exchange", "send h"),
            Bar(work, 5.0, 6.2, "wait", "wait"),
            Bar(work, 6.2, 8.0, "compute", "product with R"),
            Bar(memory, 0.0, 5.0, "memory", "gates of the next steps arrive (cp.async)"),
            Bar(memory, 5.0, 6.2, "memory", "store y"),
            Bar(memory, 6.2, 8.0, "memory", "gates …"),
        ]
        arrows.append((work, 5.0, 3 - work, 6.2))
    lanes = ["block 0, memory", "block 0, math", "block 1, math", "block 1, memory"]
    return Timeline("A persistent kernel: R stays, h travels, loads and stores overlap", lanes, bars, arrows)


def _diagonal() -> Timeline:
    """A thread over three tiles of steps."""
    bars = [Bar(0, 0.0, 2.0, "memory", "load tile 0")]
    for tile in range(3):
        start = 2.0 * (tile + 1)
        if tile < 2:
            bars.append(Bar(0, start, start + 2.0, "memory", f"load tile {tile + 1}"))
        bars += [
            Bar(1, start, start + 2.0, "compute", f"steps of tile {tile}"),
            Bar(2, start + 0.4, start + 2.2, "exchange", f"store tile {tile}"),
        ]
    arrows = [(0, 2.0 * (tile + 1), 1, 2.0 * (tile + 1)) for tile in range(3)]
    return Timeline(
        "A thread of a diagonal kernel: one tile is loaded while another is computed",
        ["loads", "registers", "stores"],
        bars,
        arrows,
    )


def timelines() -> dict[str, Timeline]:
    """Return the timelines by the names of their pages."""
    return {"scan": _scan(), "dense": _dense(), "diagonal": _diagonal()}


def svg_of(timeline: Timeline) -> str:
    """Return a timeline as SVG, readable on light and on dark pages."""
    last = max(bar.end for bar in timeline.bars)
    width, height = round(LEFT + UNIT * last + 20), TOP + LANE * len(timeline.lanes) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        _STYLE,
        f'<text class="text" x="8" y="20" font-size="14" font-weight="bold">{escape(timeline.title)}</text>',
    ]
    for number, lane in enumerate(timeline.lanes):
        parts.append(f'<text class="text" x="8" y="{TOP + LANE * number + 20}">{escape(lane)}</text>')
    places = [(LEFT + UNIT * bar.start, TOP + LANE * bar.lane + 5, bar) for bar in timeline.bars]
    for x, y, bar in places:
        width_of_bar = UNIT * (bar.end - bar.start) - 1
        parts.append(f'<rect class="{bar.kind}" x="{x:.1f}" y="{y}" width="{width_of_bar:.1f}" height="22" rx="2"/>')
    for from_lane, from_time, to_lane, to_time in timeline.arrows:
        x1, y1 = LEFT + UNIT * from_time, TOP + LANE * from_lane + 27
        x2, y2 = LEFT + UNIT * to_time, TOP + LANE * to_lane + 5
        if to_lane < from_lane:
            y1, y2 = y1 - 22, y2 + 22
        parts.append(f'<line class="arrow" x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}"/>')
        parts.append(f'<circle class="head" cx="{x2:.1f}" cy="{y2}" r="3"/>')
    for x, y, bar in places:
        parts.append(f'<text class="on" x="{x + 5:.1f}" y="{y + 15}" font-size="11">{escape(bar.text)}</text>')
    parts.append(f'<text class="faint" x="{LEFT}" y="{height - 8}" font-size="11">time →</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


_STYLE = """<style>
.text, .on { fill: #1f2328 } .faint { fill: #59636e } .arrow { stroke: #59636e } .head { fill: #59636e }
.memory { fill: #b6d4fe } .compute { fill: #aceebb } .exchange { fill: #ffd8b5 } .wait { fill: #e6e8eb }
@media (prefers-color-scheme: dark) {
.text, .on { fill: #f0f6fc } .faint { fill: #9198a1 } .arrow { stroke: #9198a1 } .head { fill: #9198a1 }
.memory { fill: #1f4a80 } .compute { fill: #1a5a2c } .exchange { fill: #7a4310 } .wait { fill: #373e47 }
}
</style>"""


def main() -> None:
    for name, timeline in timelines().items():
        (FOLDER / f"{name}.svg").write_text(svg_of(timeline), encoding="utf-8")


if __name__ == "__main__":
    main()
