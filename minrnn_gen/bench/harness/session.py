"""A run of the benchmark: table after table, each shape recorded as soon as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from minrnn_gen.bench.harness.gpu import FLUSH_BYTES, Gpu, versions
from minrnn_gen.bench.harness.rounds import Contender, Limits, contest, failure_of
from minrnn_gen.bench.problems.scan_problems import Problem, TableName
from minrnn_gen.bench.report.record import Record, Row
from minrnn_gen.errors import MinrnnError
from minrnn_gen.gpu.driver import driver_release

# A peer that compiled or tuned itself for longer than this at one shape is left out at the next ones.
PREPARE_SECONDS = 60.0


@dataclass(frozen=True)
class Suite:
    """What one command measures, and with whom.

    `titles` are the tables in their order; `problems` returns those of one, few and small ones where its second argument says
    so. `peers` are the names of other libraries; `refusals` tries the chosen ones, for so many seconds, on what is going to be
    measured, and `contenders` returns everyone at a problem, told {name: why not}. `method` is what is said of it besides what
    is true of every run.
    """

    command: str
    titles: Mapping[TableName, str]
    problems: Callable[[TableName, bool], tuple[Problem, ...]]
    peers: tuple[str, ...]
    refusals: Callable[[Gpu, Sequence[str], Sequence[Problem], float], dict[str, str]]
    contenders: Callable[[Problem, Gpu, Collection[str], Mapping[str, str]], list[Contender]]
    method: Mapping[str, str]
    limits: Limits = field(default_factory=Limits)

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The tables in the order in which they are measured."""
        return tuple(self.titles)


@dataclass
class Session:
    """What a run needs, and who has dropped out of it.

    `peers` are measured as far as `refused` {name: why not} has none of them; it grows by those that take too long.
    """

    suite: Suite
    gpu: Gpu
    peers: Sequence[str]
    refused: dict[str, str] = field(default_factory=dict)

    def try_peers(self, problems: Sequence[Problem], seconds: float) -> None:
        """Refuse the peers that cannot be measured here, after `seconds` at most."""
        self.refused |= self.suite.refusals(self.gpu, self.peers, problems, seconds)

    def measure(self, problem: Problem) -> tuple[Row, ...]:
        """Measure one problem; raises MinrnnError where the device itself has failed, and can do nothing more."""
        everyone = self.suite.contenders(problem, self.gpu, self.peers, self.refused)
        rows = contest(problem, everyone, self.gpu, self.suite.limits)
        self.refused |= too_slow(rows, set(self.peers))
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


def new_record(command: str, gpu: Gpu, suite: Suite) -> Record:
    """Return a record without rows: the command, the machine, and how it measures."""
    return Record(
        command=command,
        gpu=gpu.name,
        driver=driver_release(),
        versions=versions(),
        method={
            "time": f"median of {suite.limits.in_words}; the spread is the quartiles",
            "order": "everyone in turn, round after round, in one process",
            "clock": "device events around each run; the host's clock for what works on a stream or a processor of its own",
            "cache": f"{FLUSH_BYTES} bytes written before each run, outside the time",
            "outputs": "in memory filled with NaN before each run, where the library's allocator can be brought to it",
            "errors": "norm of the difference from float64 over the norm of the float64 result, of the last round",
            **suite.method,
        },
    )


def run_tables(
    suite: Suite,
    tables: Sequence[TableName],
    quick: bool,
    record: Record,
    measure: Callable[[Problem], tuple[Row, ...]],
    keep: Callable[[Record, tuple[Row, ...]], None],
) -> Record:
    """Measure `tables` and return the completed record; `keep` gets the record with the new rows after each problem."""
    for table in tables:
        for problem in suite.problems(table, quick):
            rows = measure(problem)
            record = record.with_rows(rows)
            keep(record, rows)
    record = record.completed()
    keep(record, ())
    return record
