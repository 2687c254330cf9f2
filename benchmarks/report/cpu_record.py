"""Record of a run on the CPU: the machine, the versions, every row, and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pydantic

_Text = Callable[["Sequence[CpuRow]"], list[tuple[str, str]]]
PUBLISHED = ("benchmarks/cpu_epyc.json", "benchmarks/cpu_xeon.json")
PAGE = "docs/cpu.md"
_TORCH, _PRODUCTS, _LOOP, _NUMPY = "torch.nn", "its products", "a loop in torch", "NumPy"
_PASSES = {"forward": "forward", "training": "training step"}


class CpuRow(pydantic.BaseModel):
    """Medians of a layer of ours and of what it is measured beside, in milliseconds.

    `busy` is the number of other processes that compute all the while, on the same processors.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    layer: str
    batch: int
    time: int
    inputs: int
    hidden: int
    kernel_pass: Literal["forward", "training"]
    beside: str
    ours_ms: float
    theirs_ms: float
    largest_difference: float | None = None
    busy: int = 0

    @property
    def share(self) -> float:
        """Our time over theirs."""
        return self.ours_ms / self.theirs_ms


class CpuRecord(pydantic.BaseModel):
    """Run of `python -m benchmarks cpu`."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    command: str
    cpu: str
    threads: int
    versions: dict[str, str]
    rows: tuple[CpuRow, ...] = ()


def text_of(rows: Sequence[CpuRow]) -> str:
    """Return rows as a table, and for each layer and pass the median and the largest share."""
    lines = [f"{'layer':8}{'B x T, I to H':>22}  {'pass':9}{'ours ms':>10}{'theirs ms':>11}{'share':>7}  beside"]
    for row in rows:
        size = f"{row.batch} x {row.time}, {row.inputs} to {row.hidden}"
        times = f"{row.ours_ms:10.3f}{row.theirs_ms:11.3f}{row.share:7.2f}"
        lines.append(f"{row.layer:8}{size:>22}  {row.kernel_pass:9}{times}  {row.beside}")
    for name, kernel_pass in dict.fromkeys((row.layer, row.kernel_pass) for row in rows):
        shares = [row.share for row in rows if (row.layer, row.kernel_pass) == (name, kernel_pass)]
        lines.append(f"{name} {kernel_pass}: median {statistics.median(shares):.2f}, largest {max(shares):.2f}")
    return "\n".join(lines)


def read_cpu(path: Path) -> CpuRecord:
    """Return a record that `python -m benchmarks cpu` wrote."""
    return CpuRecord.model_validate_json(path.read_text(encoding="utf-8"))


def sections_of_cpus(records: Sequence[CpuRecord]) -> dict[str, Callable[[], str]]:
    """Return {section: its text} of the page of the CPU."""
    return {
        "cpus": lambda: "".join(f"- {_machine(record)}\n" for record in records),
        "layers on cpus": lambda: _table(records, _TORCH, 0, _spread),
        "layers on busy cpus": lambda: _table(
            [record for record in records if any(row.busy for row in record.rows)], _TORCH, 2, _each
        ),
        "scan layers on cpus": lambda: _table(records, _PRODUCTS, 0, _each),
        "scans on cpus beside a loop": lambda: _table(_with_rows(records, _LOOP), _LOOP, 0, _how_much_faster),
        "scans on cpus beside numpy": lambda: _table(_with_rows(records, _NUMPY), _NUMPY, 0, _how_much_faster),
    }


def _with_rows(records: Sequence[CpuRecord], beside: str) -> list[CpuRecord]:
    return [record for record in records if any(row.beside == beside for row in record.rows)]


def _machine(record: CpuRecord) -> str:
    shares = [row.share for row in record.rows if row.beside == _TORCH and not row.busy]
    above = sum(share > 1 for share in shares)
    return (
        f"{record.threads} threads of {record.cpu}, torch {record.versions['torch']}: median {statistics.median(shares):.2f}, "
        f"{above} of {len(shares)} above 1"
    )


def _table(
    records: Sequence[CpuRecord], beside: str, busy: int, text: Callable[[Sequence[CpuRow]], list[tuple[str, str]]]
) -> str:
    """Return shares of our time over that of `beside`, a column for each record."""
    columns = [dict(text([row for row in record.rows if (row.beside, row.busy) == (beside, busy)])) for record in records]
    heads = [record.cpu.partition(",")[0] for record in records]
    lines = [f"| layer | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    lines += [f"| {label} | {' | '.join(column.get(label, '') for column in columns)} |" for label in dict.fromkeys(
        label for column in columns for label in column
    )]  # fmt: skip
    return "\n".join(lines) + "\n"


def _spread(rows: Sequence[CpuRow]) -> list[tuple[str, str]]:
    """Return median, largest, and how many are above 1, of each layer and pass."""
    found = []
    for layer, kernel_pass in dict.fromkeys((row.layer, row.kernel_pass) for row in rows):
        shares = [row.share for row in rows if (row.layer, row.kernel_pass) == (layer, kernel_pass)]
        above = sum(share > 1 for share in shares)
        found.append((f"{layer}, {_PASSES[kernel_pass]}", f"{statistics.median(shares):.2f} / {max(shares):.2f} / {above}"))
    return found


def _each(rows: Sequence[CpuRow]) -> list[tuple[str, str]]:
    return [
        (f"{row.layer} {row.batch} x {row.time}, {row.inputs} → {row.hidden}, {_PASSES[row.kernel_pass]}", f"{row.share:.2f}")
        for row in rows
    ]


def _how_much_faster(rows: Sequence[CpuRow]) -> list[tuple[str, str]]:
    return [
        (f"{row.layer} {row.batch} x {row.time} x {row.hidden}, {_PASSES[row.kernel_pass]}", f"{1 / row.share:.1f}")
        for row in rows
    ]
