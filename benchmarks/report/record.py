"""Record of a run as a JSON file: the command, the machine, the versions, and every row."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import pydantic

from benchmarks.problems.scan_problems import Problem, TableName
from minrnn_gen.build.output_files import refused_by_option, write_output
from minrnn_gen.errors import BadInput, shown

COPY = "copy"
# Fact of a row: the memory that a run takes at its peak, beyond what was there before it.
PEAK_MIB = "peak_mib"


class Row(pydantic.BaseModel):
    """Result of one contender at one problem.

    `ms` is the median and `quartiles_ms` the spread of `rounds` runs. `errors` are the relative errors of the results, None for
    NaN; `failure` says why there is no time. `shares` divides the time of a run over the kernels launched.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    problem: Problem
    contender: str
    ms: float | None = None
    quartiles_ms: tuple[float, float] | None = None
    rounds: int = 0
    clock: Literal["device events", "host"] = "device events"
    errors: dict[str, float | None] = {}
    error_allowed: float | None = None
    failure: str | None = None
    prepare_seconds: float | None = None
    facts: dict[str, int | float | str] = {}
    shares: dict[str, float] = {}

    @property
    def worst_error(self) -> float | None:
        """The largest error, None where any is NaN or none was computed."""
        values = [value for value in self.errors.values() if value is not None]
        return max(values) if values and len(values) == len(self.errors) else None

    @property
    def is_right(self) -> bool:
        """Whether every result keeps the tolerance; a row without results to compare is right."""
        if not self.errors:
            return True
        return self.worst_error is not None and self.error_allowed is not None and self.worst_error <= self.error_allowed


class Record(pydantic.BaseModel):
    """Run of the benchmark: the command, the machine, the versions, the method, and the rows in their order."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    command: str
    gpu: str
    driver: str | None = None
    versions: dict[str, str]
    method: dict[str, str]
    is_complete: bool = False
    rows: tuple[Row, ...] = ()

    def with_rows(self, rows: Iterable[Row]) -> Record:
        """Return this record with more rows at its end."""
        return self.model_copy(update={"rows": (*self.rows, *rows)})

    def completed(self) -> Record:
        """Return this record marked as complete."""
        return self.model_copy(update={"is_complete": True})

    def of_table(self, table: TableName) -> tuple[Row, ...]:
        """Return the rows of one table."""
        return tuple(row for row in self.rows if row.problem.table == table)


def write_record(record: Record, path: str | os.PathLike[str]) -> None:
    """Write `record` as JSON, the file replaced as a whole; a path that cannot be written is BadInput."""
    write_text(record.model_dump_json(indent=1, exclude_defaults=True) + "\n", path, "--json")


def read_record(path: str | os.PathLike[str]) -> Record:
    """Return the record at `path`; BadInput for a file that is no record."""
    try:
        return Record.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise BadInput(f"{shown(os.fspath(path))} cannot be read ({error.strerror}); give the path of a record") from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BadInput(
            f"{shown(os.fspath(path))}: {where}: {first['msg'][:1].lower()}{first['msg'][1:]}; "
            f"give a file that 'python -m benchmarks' wrote with --json"
        ) from None


def write_text(text: str, path: str | os.PathLike[str], option: str) -> None:
    """Write `text` to `path`, a file replaced whole or not at all; BadInput names `option` where it cannot be written."""
    with refused_by_option(option, path):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_output(path, text.encode())
