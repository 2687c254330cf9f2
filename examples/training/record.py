"""Record of an example: a JSON file with command and versions, its table and plot, and its section of the page."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pydantic

import minrnn_gen
from benchmarks.report.plot import Curve, Panel, svg_text
from training.command import Command

Value = str | int | float


class Line(pydantic.BaseModel):
    """Curve of the plot."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: str
    x: tuple[int, ...]
    y: tuple[float, ...]


class Record(pydantic.BaseModel):
    """Run of an example; `rows` are the rows of its table, `details` the values that the table does not show."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    name: str
    command: str
    device: str
    versions: dict[str, str]
    settings: dict[str, Value | tuple[Value, ...]]
    rows: tuple[dict[str, Value], ...] = ()
    details: tuple[dict[str, Value], ...] = ()
    x_name: str = ""
    y_name: str = ""
    lines: tuple[Line, ...] = ()
    is_complete: bool = False

    def with_row(self, row: Mapping[str, Value], details: Mapping[str, Value], lines: Sequence[Line] = ()) -> Record:
        """Return the record with one more row."""
        return self.model_copy(
            update={
                "rows": (*self.rows, dict(row)),
                "details": (*self.details, dict(details)),
                "lines": (*self.lines, *lines),
            }
        )

    def completed(self) -> Record:
        """Return this record marked as complete."""
        return self.model_copy(update={"is_complete": True})

    @property
    def provenance(self) -> str:
        """The command, the versions and the device as a sentence."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        cut = "" if self.is_complete else "; the run was not completed"
        return f"Made by `{self.command}` on {self.device} ({versions}){cut}."

    @property
    def table(self) -> str:
        """The rows in Markdown."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        lines = [columns, ["---"] * len(columns), *([_shown(row.get(name, "")) for name in columns] for row in self.rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else value


def new_record(command: Command, x_name: str, y_name: str) -> Record:
    """Return a record without rows; `x_name` and `y_name` are the axes of its plot."""
    own = command.library.name
    versions = {"minrnn-gen": minrnn_gen.__version__, "python": platform.python_version(), own: importlib.metadata.version(own)}
    return Record(
        name=command.name,
        command=command.text,
        device=command.library.device_name(command.device),
        versions=versions,
        settings=dataclasses.asdict(command.settings),
        x_name=x_name,
        y_name=y_name,
    )


def save(record: Record, command: Command) -> Path:
    """Write the record into the command's folder, and its plot where matplotlib is installed; return the record's path."""
    short = "cpu" if command.device == "cpu" else record.device.removeprefix("an NVIDIA ")
    command.folder.mkdir(parents=True, exist_ok=True)
    path = command.folder / f"{record.name}_{re.sub('[^a-z0-9]+', '_', short.lower())}.json"
    path.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    if record.lines and importlib.util.find_spec("matplotlib"):
        path.with_suffix(".svg").write_text(svg_of(record), encoding="utf-8")
    return path


def svg_of(record: Record) -> str:
    """Return the record's curves as SVG, the same text for the same record and the same matplotlib."""
    curves = tuple(Curve(line.name, line.x, line.y) for line in record.lines)
    return svg_text([Panel(record.name, record.y_name, False, curves, record.x_name, is_size_log=False)], record.device)


def finish(record: Record, command: Command) -> None:
    """Save the record as complete, and print its table."""
    path = save(record.completed(), command)
    print(f"{record.completed().provenance}\n\n{record.table}\nWritten: {path}")
    if not importlib.util.find_spec("matplotlib"):
        print("No plot: that needs matplotlib, which is not installed: pip install matplotlib")


def read_records(folder: Path, name: str) -> dict[str, Record]:
    """Return {file name without its suffix: record} of one example."""
    paths = sorted(folder.glob(f"{name}_*.json"))
    return {path.stem: Record.model_validate_json(path.read_text(encoding="utf-8")) for path in paths}


def section(name: str, records: Mapping[str, Record], plots: Path) -> str:
    """Return the section of one example: provenance, table and plot of every record; `plots` is their folder from the page."""
    command = f"`python examples/{name}.py`"
    if not records:
        return f"Not measured yet; {command} does.\n"
    parts = []
    for stem, record in records.items():
        parts += [record.provenance, record.table.rstrip()]
        if record.lines:
            parts.append(f"![{record.y_name} over {record.x_name}]({(plots / stem).as_posix()}.svg)")
    if all(stem == f"{name}_cpu" for stem in records):
        parts.append(f"Not measured on a GPU yet; {command} does.")
    return "\n\n".join(parts) + "\n"
