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


def distributed_text(*records: DistributedRecord | None) -> str:
    """Return the tables of records, each with where it comes from."""
    known = [record for record in records if record is not None]
    if not known:
        return "Not measured yet; `python -m benchmarks distributed` does.\n"
    return "\n".join(f"{rows_text(record.rows, record.ranks)}\n{distributed_provenance(record)}\n" for record in known)


def distributed_provenance(record: DistributedRecord) -> str:
    """Return where the numbers of a record come from, in words."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    driver = f", driver {record.driver}" if record.driver else ""
    end = "" if record.is_complete else " The run was not completed."
    return f"`{record.command}` on {record.ranks} ranks, {record.device}{driver}, {record.backend}; {versions}.{end}"


def rows_text(rows: Sequence[DistributedRow], ranks: int) -> str:
    """Return tables of rows: a line for each pass of a problem, with milliseconds, and how often as fast as one rank.

    Besides, what was chosen, how often as fast the cost formula predicts it, what was found by measuring, where it was, and the
    largest error of all contenders.
    """
    tables = []
    for is_dense in dict.fromkeys(row.problem.is_dense for row in rows):
        of_kind = [row for row in rows if row.problem.is_dense == is_dense]
        names = [*dict.fromkeys(row.contender for row in of_kind)]
        is_tuned = "tuned" in names
        titles = (f"{ranks} ranks", "pass", *names, "chosen is", "predicted", *["tuned is"] * is_tuned, "error")
        lines = [f"| {' | '.join(titles)} |", "|---|---|" + "---:|" * len(names) + "---|---:|" + "---|" * is_tuned + "---:|"]
        for problem, kernel_pass in dict.fromkeys((row.problem, row.kernel_pass) for row in of_kind):
            by_name = {row.contender: row for row in of_kind if (row.problem, row.kernel_pass) == (problem, kernel_pass)}
            alone, chosen = by_name.get(ALONE), by_name.get("chosen")
            cells = [_cell(by_name.get(name), None if name == ALONE or alone is None else alone.ms) for name in names]
            errors = [error for row in by_name.values() for error in row.errors.values()]
            predicted = f"{ranks / chosen.passes:.2f}" if chosen and chosen.passes else ""
            tuned = [_way(by_name.get("tuned"))] * is_tuned
            last = (_way(chosen), predicted, *tuned, f"{max(errors):.1e}" if errors else "")
            name = "forward" if kernel_pass == "forward" else "step"
            lines.append(f"| {' | '.join((problem.label, name, *cells, *last))} |")
        tables.append("\n".join(lines) + "\n")
    return "\n".join(tables)


def _cell(row: DistributedRow | None, alone_ms: float | None) -> str:
    if row is None or row.failure is not None or row.ms is None:
        return "" if row is None else (row.failure or "not measured").split(":")[0]
    return f"{row.ms:.3f}" + ("" if alone_ms is None else f" ({alone_ms / row.ms:.2f})")


def _way(row: DistributedRow | None) -> str:
    if row is None or row.way is None:
        return ""
    return f"{row.way} of {row.micro_batches} groups" if row.way == "pipeline" else row.way
