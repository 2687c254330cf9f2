"""A run of the benchmark: table after table, each shape recorded as soon as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from minrnn_gen.bench import cells, classic, layers, raw
from minrnn_gen.bench.gpu import FLUSH_BYTES, Gpu, driver_release, versions
from minrnn_gen.bench.peers import Peer
from minrnn_gen.bench.problems import Problem, TableName, problems_of
from minrnn_gen.bench.record import Record, Row
from minrnn_gen.bench.rounds import Contender, Limits, contest, failure_of
from minrnn_gen.errors import MinrnnError

# A peer that compiled or tuned itself for longer than this at one shape is left out at the next ones.
PREPARE_SECONDS = 60.0


@dataclass
class Session:
    """What a run needs, and who has dropped out of it.

    `peers` are measured as far as `refused` {name: why not} has none of them; it grows by those that take too long.
    """

    gpu: Gpu
    peers: Sequence[Peer]
    refused: dict[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    def contenders(self, problem: Problem) -> list[Contender]:
        """Return everyone who solves `problem`."""
        match problem.table:
            case "raw":
                return raw.contenders(problem, self.gpu, self.peers, self.refused)
            case "cells":
                return cells.contenders(problem, self.gpu)
            case "layers":
                return layers.contenders(problem, self.gpu)
            case "classic":
                return classic.contenders(problem, self.gpu)

    def measure(self, problem: Problem) -> tuple[Row, ...]:
        """Measure one problem; raises MinrnnError where the device itself has failed, and can do nothing more."""
        rows = contest(problem, self.contenders(problem), self.gpu, self.limits)
        self.refused |= too_slow(rows, {peer.name for peer in self.peers})
        try:
            self.gpu.release()
            self.gpu.finish()
        except Exception as error:
            raise MinrnnError(f"the GPU stopped at {problem.label} ({failure_of(error)}); leave out who did it") from error
        return rows


def too_slow(rows: Sequence[Row], peers: set[str]) -> dict[str, str]:
    """Return {peer: why it is left out from now on} of those that took too long to prepare."""
    return {
        row.contender: f"prepared for {row.prepare_seconds:.0f} s at {row.problem.label}, longer than {PREPARE_SECONDS:.0f} s"
        for row in rows
        if row.contender in peers and row.prepare_seconds is not None and row.prepare_seconds > PREPARE_SECONDS
    }


def new_record(command: str, gpu: Gpu, limits: Limits) -> Record:
    """Return a record without rows: the command, the machine, and how it measures."""
    return Record(
        command=command,
        gpu=gpu.name,
        driver=driver_release(),
        versions=versions(),
        method={
            "time": f"median of {limits.rounds_most} rounds, or of those that fit into {limits.seconds:g} s, but "
            f"{limits.rounds_least} at least; the spread is the quartiles",
            "order": "everyone in turn, round after round, in one process",
            "clock": "device events around each run; the host's clock for what works on a stream or a processor of its own",
            "cache": f"{FLUSH_BYTES} bytes written before each run, outside the time",
            "inputs": "random, new for every shape; raw scans: half of the channels with a between 0.99 and 1",
            "outputs": "in memory filled with NaN before each run, where the library's allocator can be brought to it",
            "errors": "norm of the difference from float64 over the norm of the float64 result, of the last round",
        },
    )


def run_tables(
    tables: Sequence[TableName],
    quick: bool,
    record: Record,
    measure: Callable[[Problem], tuple[Row, ...]],
    keep: Callable[[Record, tuple[Row, ...]], None],
) -> Record:
    """Measure `tables` and return the completed record; `keep` gets the record with the new rows after each problem."""
    for table in tables:
        for problem in problems_of(table, quick):
            rows = measure(problem)
            record = record.with_rows(rows)
            keep(record, rows)
    record = record.completed()
    keep(record, ())
    return record
