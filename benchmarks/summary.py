"""Summary of README.md: a table and a figure of eight problems at most, computed from the committed records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.pages import PUBLISHED_RECORDS

PAGE = "README.md"
FIGURE = "docs/summary.svg"
RECORDS = Path(__file__).resolve().parent / "results"
# Rows of a record that are no alternatives: a yardstick, a part of the work, our own other paths.
NOT_ALTERNATIVES = ("minrnn-gen", "copy", "projection alone", "CPU")
# Contenders whose names in a record are clear only in their table.
NAMES = {"torch, log-space": "torch, log-space form", "torch.compile of it": "torch.compile, log-space form"}


@dataclass(frozen=True)
class Question:
    """Problem of the summary: its record, the fields of its rows there, and the measure that is compared."""

    label: str
    record: str
    problem: Mapping[str, Any]
    ours: str = "minrnn-gen"
    measure: str = "ms"  # or "us per token", or "s of the first call"


@dataclass(frozen=True)
class Answer:
    """Times of ours and of the fastest correct alternative at one problem, in the unit of `measure`."""

    label: str
    measure: str
    ours: float
    best: float
    best_name: str

    @property
    def times_faster(self) -> float:
        return self.best / self.ours


_DENSE = {"table": "cells", "task": "forward + backward", "precision": "bf16", "batch": 16, "time": 1024}
LAYERS = "layers"


def _layer(label: str, **problem: Any) -> Question:
    return Question(f"{label}, training", LAYERS, {"table": "headline", "task": "forward + backward", **problem})


_SCANS_AND_HEADS = (
    Question(
        "scan h = a h + b, 8 x 16384 x 1536 fp32, training",
        "scan",
        {"table": "raw", "task": "forward + backward", "precision": "fp32", "batch": 8, "time": 16384, "channels": 1536},
        ours="minrnn-gen B,C,T",
    ),
    Question(
        "minGRU layer, 8 x 4096 x 1024 bf16, training",
        "scan",
        {"table": "layers", "task": "forward + backward", "precision": "bf16", "batch": 8, "time": 4096, "channels": 1024},
    ),
    Question("lstm 12 x 64, training", "recurrent", {**_DENSE, "model": "lstm", "heads": 12, "channels": 768}),
)
# What people replace is a layer. Where layers are not measured, cells stand for them.
_OF_LAYERS = (
    _layer(
        "LSTM, 2 layers, 64 x 256, 256 to 256, fp32",
        model="lstm", precision="fp32", batch=64, time=256, inputs=256, channels=256, layers=2,
    ),
    _layer(
        "LSTM, 4 layers, 16 x 1024, 768 to 768, bf16 autocast",
        model="lstm", precision="bf16", batch=16, time=1024, inputs=768, channels=768, layers=4, autocast=True,
    ),
    _layer(
        "GRU, 128 x 256, 512 to 512, bf16 autocast",
        model="gru", precision="bf16", batch=128, time=256, inputs=512, channels=512, layers=1, autocast=True,
    ),
)  # fmt: skip
_OF_CELLS = (
    Question("lstm 1 x 768, training", "recurrent", {**_DENSE, "model": "lstm", "channels": 768}),
    Question("gru 12 x 64, training", "recurrent", {**_DENSE, "model": "gru", "heads": 12, "channels": 768}),
    Question("gru 1 x 768, training", "recurrent", {**_DENSE, "model": "gru", "channels": 768}),
)
_CALLS = (
    Question(
        "lstm 1 x 512, one token, projection included",
        "calls",
        {"table": "decode", "model": "lstm", "precision": "bf16", "batch": 1, "channels": 512},
        ours="minrnn-gen projected",
        measure="us per token",
    ),
    Question(
        "first call of lstm 12 x 64, nothing cached, training",
        "recurrent",
        {**_DENSE, "model": "lstm", "heads": 12, "channels": 768},
        measure="s of the first call",
    ),
)
_ABOUT_LAYERS = (
    "A layer is batch x time, inputs to units, against torch.nn at its defaults, which in fp32 is TF32. Its time is that of a\n"
    "whole training step by the host's clock, on an {gpu}."
)


def questions() -> tuple[Question, ...]:
    """Return the rows of the summary: those of layers where their record has them, else those of cells."""
    has_layers = _path_of(LAYERS).exists() and any(row["problem"]["table"] == "headline" for row in _rows(LAYERS))
    return (*_SCANS_AND_HEADS, *(_OF_LAYERS if has_layers else _OF_CELLS), *_CALLS)


def answers() -> tuple[Answer, ...]:
    """Return the summary's rows, read from the committed records."""
    return tuple(_answer(question) for question in questions())


def summary_text() -> str:
    """Return the table of README.md as Markdown."""
    lines = ["| | minrnn-gen | the fastest alternative | times faster |", "|---|---|---|---|"]
    lines += [
        f"| {answer.label} | {_with_unit(answer.ours, answer.measure)} | "
        f"{_with_unit(answer.best, answer.measure)}, {answer.best_name} | {_times(answer)} |"
        for answer in answers()
    ]
    if any(question.record == LAYERS for question in questions()):
        lines += ["", _ABOUT_LAYERS.format(gpu=_record(LAYERS)["gpu"])]
    return "\n".join(lines) + "\n"


def summary_svg() -> str:
    """Return the figure of README.md as SVG: the times of ours as shares of the fastest alternatives'."""
    rows, row_height, top, left, width = answers(), 46, 58, 340, 340
    height = top + row_height * len(rows) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" font-family="sans-serif" font-size="13">',
        _STYLE,
        '<text class="text" x="8" y="20" font-size="15" font-weight="bold">Shorter is faster: minrnn-gen against the'
        " fastest alternative</text>",
        '<rect class="ours" x="8" y="32" width="12" height="12"/><text class="text" x="26" y="43">minrnn-gen</text>',
        '<rect class="best" x="120" y="32" width="12" height="12"/><text class="text" x="138" y="43">the fastest alternative'
        "</text>",
    ]
    for number, answer in enumerate(rows):
        y = top + number * row_height
        ours_width = max(2.0, width * answer.ours / answer.best)
        label, _, sizes = answer.label.partition(", ")
        best = f"{answer.best_name}, {_with_unit(answer.best, answer.measure)}"
        inside = ours_width > 100
        ours_x, y_best, x_times = left + 6 + (0 if inside else ours_width), y + 34, left + width + 12
        parts += [
            f'<text class="text" x="8" y="{y + 17}">{escape(label)}</text>',
            f'<text class="faint" x="8" y="{y + 33}" font-size="11">{escape(sizes)}</text>',
            f'<rect class="ours" x="{left}" y="{y + 5}" width="{ours_width:.1f}" height="15"/>',
            f'<text class="{"inside" if inside else "text"}" x="{ours_x:.1f}" '
            f'y="{y + 17}" font-size="11">{escape(_with_unit(answer.ours, answer.measure))}</text>',
            f'<rect class="best" x="{left}" y="{y + 22}" width="{width}" height="15"/>',
            f'<text class="over" x="{left + 6}" y="{y_best}" font-size="11">{escape(best)}</text>',
            f'<text class="text" x="{x_times}" y="{y + 26}" font-size="15" font-weight="bold">{_times(answer)} x</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


_STYLE = """<style>
.text { fill: #1f2328 } .faint { fill: #59636e } .ours { fill: #1a7f37 } .best { fill: #afb8c1 }
.inside { fill: #ffffff } .over { fill: #1f2328 }
@media (prefers-color-scheme: dark) {
.text { fill: #f0f6fc } .faint { fill: #9198a1 } .ours { fill: #3fb950 } .best { fill: #484f58 }
.inside { fill: #0d1117 } .over { fill: #f0f6fc }
}
</style>"""


def _answer(question: Question) -> Answer:
    values = {
        row["contender"]: value
        for row in _rows(question.record)
        if _is_about(row["problem"], question.problem) and _is_right(row)
        if (value := _measured(row, question.measure)) is not None
    }
    alternatives = {name: value for name, value in values.items() if not name.startswith(NOT_ALTERNATIVES)}
    best_name = min(alternatives, key=alternatives.__getitem__)
    return Answer(
        question.label, question.measure, values[question.ours], alternatives[best_name], NAMES.get(best_name, best_name)
    )


def _path_of(record: str) -> Path:
    return RECORDS / Path(PUBLISHED_RECORDS[record]).name


def _record(record: str) -> Mapping[str, Any]:
    read: Mapping[str, Any] = json.loads(_path_of(record).read_text(encoding="utf-8"))
    return read


def _rows(record: str) -> Sequence[Mapping[str, Any]]:
    rows: Sequence[Mapping[str, Any]] = _record(record).get("rows", [])
    return rows


def _is_about(problem: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a row's problem is the wanted one; records leave out defaults, such as a single head."""
    return all(problem.get(key) == value for key, value in wanted.items()) and problem.get("heads", 1) == wanted.get("heads", 1)


def _is_right(row: Mapping[str, Any]) -> bool:
    errors: Sequence[float | None] = tuple(row.get("errors", {}).values())
    return "failure" not in row and all(error is not None and error <= row["error_allowed"] for error in errors)


def _measured(row: Mapping[str, Any], measure: str) -> float | None:
    value = row.get("ms")
    if measure == "s of the first call":
        value = row.get("facts", {}).get("first_call_seconds")
    elif measure == "us per token":
        value = row["ms"] * 1e3 / row["problem"]["time"]
    return None if value is None else float(value)


def _with_unit(value: float, measure: str) -> str:
    """Return a number with three significant digits, and its unit."""
    digits = f"{value:.0f}" if value >= 99.95 else f"{value:#.3g}".removesuffix(".")
    return f"{digits} {measure.partition(' ')[0]}"


def _times(answer: Answer) -> str:
    """Return the quotient of the times, in two or three significant digits."""
    return f"{answer.times_faster:.2f}" if answer.times_faster < 9.95 else f"{answer.times_faster:.0f}"
