"""Tables and figure of docs/classic.md, minGRU and minLSTM against GRU and LSTM: computed from the committed records.

`examples/classic.ipynb` writes the records classic_cpu.json and, where torch finds a GPU, classic_cuda.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.report.plot import Curve, Panel, svg_text
from benchmarks.report.record import Record, Row, read_record
from benchmarks.report.tables import best_alternative, by_problem, milliseconds, provenance
from benchmarks.summary import NAMES

PAGE = "docs/classic.md"
FIGURE = "docs/classic.svg"
FOLDER = Path(__file__).resolve().parent
CELLS = {"min_gru": "MinGRU", "min_lstm": "MinLSTM", "gru": "GRU", "lstm": "LSTM"}
FORWARD, TRAINING = "forward", "forward + backward"
MIB = 1 << 20


def record_of(device: str) -> Record | None:
    """Return the notebook's record of a device, cpu or cuda; None where it has not run there."""
    path = FOLDER / f"classic_{device}.json"
    return read_record(path) if path.exists() else None


def sections() -> dict[str, Callable[[], str]]:
    """Return {section of the page: its text}."""
    return {
        "cpu": partial(_tables, "cpu"),
        "gpu": partial(_tables, "cuda"),
        "scans on a gpu": _scans,
        "layers on a gpu": _layers,
    }


def figure() -> str:
    """Return the figure as SVG; it needs matplotlib."""
    panels, names = [], []
    for device in ("cpu", "cuda"):
        record = record_of(device)
        if record is not None:
            names.append(record.gpu)
            kept = _panel(record, TRAINING, "kept for the backward", "MiB", _kept_mib)
            times = [_panel(record, task, f"{task}, {record.gpu}", "ms", _ms) for task in (FORWARD, TRAINING)]
            panels += [*times, *([] if len(names) > 1 else [kept])]
    panels.append(_panel_of_scans())
    return svg_text(panels, "One sequence, 64 inputs to 128 units, fp32")


def _ms(row: Row) -> float | None:
    return row.ms


def _kept_mib(row: Row) -> float | None:
    return float(row.facts["kept_bytes"]) / MIB if "kept_bytes" in row.facts else None


def _name(row: Row) -> str:
    return f"{row.contender} {CELLS[str(row.problem.model)]}"


def _panel(record: Record, task: str, title: str, quantity: str, value: Callable[[Row], float | None]) -> Panel:
    curves: dict[str, dict[int, float]] = {}
    for row in record.rows:
        number = value(row)
        if row.problem.task == task and number is not None:
            curves.setdefault(_name(row), {})[row.problem.time] = number
    return Panel(title, quantity, True, _curves(curves))


def _curves(points: Mapping[str, Mapping[int, float]]) -> tuple[Curve, ...]:
    return tuple(Curve(name, tuple(map(float, line)), tuple(line.values())) for name, line in points.items())


def _panel_of_scans() -> Panel:
    record = read_record(FOLDER / "results" / "scan_h200.json")
    curves: dict[str, dict[int, float]] = {}
    for row in record.of_table("classic"):
        if row.contender == "GPU" and row.ms is not None:
            curves.setdefault(f"minrnn-gen {CELLS[str(row.problem.model)]}", {})[row.problem.time] = row.ms
    return Panel(f"forward, the kernels' time on an {record.gpu}", "ms", True, _curves(curves))


def _tables(device: str) -> str:
    """Return the tables of one device: forward, training step, and what is kept for the backward."""
    record = record_of(device)
    if record is None:
        return "Not measured there yet; `examples/classic.ipynb` does, where torch finds a GPU.\n"
    parts = [
        _table(record, FORWARD, "forward, ms", lambda row: milliseconds(row.ms)),
        _table(record, TRAINING, "training step, ms", lambda row: milliseconds(row.ms)),
        _table(record, TRAINING, "kept, MiB", lambda row: milliseconds(_kept_mib(row))),
        provenance(record) + "\n",
    ]
    return "\n".join(parts)


def _table(record: Record, task: str, heading: str, text: Callable[[Row], str]) -> str:
    rows = [row for row in record.rows if row.problem.task == task]
    names = list(dict.fromkeys(map(_name, rows)))
    lines = [f"| steps: {heading} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for time in dict.fromkeys(row.problem.time for row in rows):
        cells = {_name(row): text(row) for row in rows if row.problem.time == time}
        lines.append(f"| {time:,} | {' | '.join(cells.get(name, '') for name in names)} |")
    return "\n".join(lines) + "\n"


def _scans() -> str:
    """Return the committed times of scans over one sequence, and those of an LSTM over 16, by the length of the sequence."""
    scans = [row for row in read_record(FOLDER / "results" / "scan_h200.json").of_table("classic") if row.contender == "GPU"]
    times: dict[int, dict[str, float]] = {}
    for row in scans:
        times.setdefault(row.problem.time, {})[str(row.problem.model)] = 1e3 * (row.ms or 0.0)
    lines = ["| steps | MinGRU, us | MinLSTM, us |", "|---|---|---|"]
    lines += [f"| {time:,} | {milliseconds(us['min_gru'])} | {milliseconds(us['min_lstm'])} |" for time, us in times.items()]
    return "\n".join(lines) + "\n"


def _layers() -> str:
    """Return the committed times of training steps with 16 sequences of 1,024 steps and 768 units, in 16 bits."""
    minimal = _rows("scan", lambda row: row.problem.table == "layers" and row.problem.precision == "bf16")
    dense = _rows(
        "recurrent", lambda row: row.problem.table == "cells" and row.problem.heads == 1 and row.problem.model in CELLS
    )
    lines = ["| training step | minrnn-gen, ms | the fastest of the others, ms |", "|---|---|---|"]
    for rows, what in ((minimal, "projection included"), (dense, "from pre-activations")):
        for problem, by_name in by_problem(rows).items():
            by_name.pop("projection alone", None)
            best = best_alternative({name: row for name, row in by_name.items() if not name.startswith("minrnn-gen ")})
            theirs = f"{milliseconds(best.ms)}, {NAMES.get(best.contender, best.contender)}" if best else ""
            lines.append(f"| {problem.model}, {what} | {milliseconds(by_name['minrnn-gen'].ms)} | {theirs} |")
    return "\n".join(lines) + "\n"


def _rows(name: str, of_table: Callable[[Row], bool]) -> Sequence[Row]:
    def fits(row: Row) -> bool:
        problem = row.problem
        return (problem.batch, problem.time, problem.channels, problem.task) == (16, 1024, 768, TRAINING) and of_table(row)

    return [row for row in read_record(FOLDER / "results" / f"{name}_h200.json").rows if fits(row)]
