"""Record of a run on the CPU: the machine, the versions, every row, and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import pydantic


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
