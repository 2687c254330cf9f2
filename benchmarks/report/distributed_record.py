"""Record of a run over several ranks: the machines, every row, and its tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pydantic

from benchmarks.problems.distributed_problems import DistributedProblem, KernelPass
from minrnn_gen.errors import BadInput, shown

ALONE = "one rank"


class DistributedRow(pydantic.BaseModel):
    """Time of one contender at one problem; a round's time is that of its slowest rank.

    `way` and `micro_batches` are those that ran, `passes` what the cost formula predicts of them: the time over that of one
    rank's piece by itself. `exchange_share` is the time in exchanges, waits for other ranks included, over all time, the mean
    of the ranks; `bytes_contributed` what a rank gives to the wire in one run, the most of the ranks. `error` is the largest
    difference from one rank's results over the largest of their values, of each result.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    problem: DistributedProblem
    kernel_pass: KernelPass
    contender: str
    way: str | None = None
    micro_batches: int | None = None
    passes: float | None = None
    ms: float | None = None
    quartiles_ms: tuple[float, float] | None = None
    rounds: int = 0
    exchange_share: float | None = None
    bytes_contributed: int | None = None
    errors: dict[str, float] = {}
    failure: str | None = None


class DistributedRecord(pydantic.BaseModel):
    """Run of `python -m benchmarks distributed`."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    command: str
    device: str
    ranks: int
    backend: str
    clock: Literal["device events", "host"]
    driver: str | None = None
    versions: dict[str, str]
    method: dict[str, str]
    is_complete: bool = False
    rows: tuple[DistributedRow, ...] = ()


def read_distributed(path: str | os.PathLike[str]) -> DistributedRecord:
    """Return the record at `path`; BadInput for a file that is no record."""
    try:
        return DistributedRecord.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise BadInput(f"{shown(os.fspath(path))} cannot be read ({error.strerror}); give the path of a record") from None
    except pydantic.ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise BadInput(
            f"{shown(os.fspath(path))} has no {where} of a run over ranks; give a file of 'python -m benchmarks distributed'"
        ) from None


def distributed_text(record: DistributedRecord | None) -> str:
    """Return the tables of a record, one for each pass."""
    if record is None:
        return "Not measured yet; `python -m benchmarks distributed` does.\n"
    passes = dict.fromkeys(row.kernel_pass for row in record.rows)
    tables = [f"{name.capitalize()}:\n\n{rows_text(_of_pass(record, name), record.ranks)}" for name in passes]
    return "\n".join([*tables, distributed_provenance(record) + "\n"])


def distributed_provenance(record: DistributedRecord) -> str:
    """Return where the numbers of a record come from, in words."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    driver = f", driver {record.driver}" if record.driver else ""
    end = "" if record.is_complete else " The run was not completed."
    return f"`{record.command}` on {record.ranks} ranks, {record.device}{driver}, {record.backend}; {versions}.{end}"


def rows_text(rows: Sequence[DistributedRow], ranks: int) -> str:
    """Return rows as a table: times, how often as fast as one rank, and how often the cost formula predicts."""
    titles = ("", "", "ms", f"x {ALONE}", "predicted x", "in exchange", "bytes of a rank", "error")
    lines = [f"| {' | '.join(titles)} |", "|---|---|---:|---:|---:|---:|---:|---:|"]
    alone = {row.problem: row.ms for row in rows if row.contender == ALONE}
    shown_label = None
    for row in rows:
        label = "" if row.problem == shown_label else row.problem.label
        shown_label = row.problem
        lines.append(f"| {label} | {_name(row)} | {' | '.join(_cells(row, alone.get(row.problem), ranks))} |")
    return "\n".join(lines) + "\n"


def _name(row: DistributedRow) -> str:
    way = row.way or ""
    groups = f" of {row.micro_batches} groups" if way == "pipeline" else ""
    return row.contender if way in ("", row.contender) and not groups else f"{row.contender}: {way}{groups}"


def _cells(row: DistributedRow, alone_ms: float | None, ranks: int) -> list[str]:
    if row.failure is not None or row.ms is None:
        return [row.failure or "not measured", *[""] * 5]
    return [
        f"{row.ms:.3f}",
        "" if alone_ms is None or row.contender == ALONE else f"{alone_ms / row.ms:.2f}",
        "" if row.passes is None else f"{ranks / row.passes:.2f}",
        "" if row.exchange_share is None else f"{row.exchange_share:.0%}",
        "" if row.bytes_contributed is None else f"{row.bytes_contributed}",
        f"{max(row.errors.values()):.1e}" if row.errors else "",
    ]


def _of_pass(record: DistributedRecord, name: KernelPass) -> list[DistributedRow]:
    return [row for row in record.rows if row.kernel_pass == name]
