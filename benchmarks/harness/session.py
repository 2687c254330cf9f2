"""Session of the benchmark: table after table, each shape recorded as soon as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.harness.gpu import FLUSH_BYTES, Gpu, versions
from benchmarks.harness.rounds import Contender, Limits, failure_of, run_rounds
from benchmarks.problems.scan_problems import Problem, TableName
from benchmarks.report.record import Record, Row
from minrnn_gen.errors import MinrnnError
from minrnn_gen.gpu.driver import driver_release

# A baseline that compiled or tuned itself for longer than this at one shape is left out at the next ones.
PREPARE_SECONDS = 60.0


@dataclass(frozen=True)
class Suite:
    """Problems and contenders of one command.

    `titles` are the tables in their order. `problems` returns those of a table, or few and small problems where its second
    argument says so. `baselines` are the names of other libraries. `refusals` tries the chosen baselines on the problems to be
    measured, for so many seconds, and returns {name: reason} of those that fail. `contenders` returns all contenders at a
    problem, those of that mapping as refused. `method` is said in the record besides what is true of every run. `table_limits`
    are those of tables that have limits of their own.
    """

    command: str
    titles: Mapping[TableName, str]
    problems: Callable[[TableName, bool], tuple[Problem, ...]]
    baselines: tuple[str, ...]
    refusals: Callable[[Gpu, Sequence[str], Sequence[Problem], float], dict[str, str]]
    contenders: Callable[[Problem, Gpu, Collection[str], Mapping[str, str]], list[Contender]]
    method: Mapping[str, str]
    limits: Limits = field(default_factory=Limits)
    table_limits: Mapping[TableName, Limits] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[TableName, ...]:
        """The tables in the order in which they are measured."""
        return tuple(self.titles)


@dataclass
class Session:
    """State of a run: the suite, the GPU, the chosen baselines, and those refused.

    `refused` maps names to reasons; a baseline that takes too long to prepare joins it.
    """

    suite: Suite
    gpu: Gpu
    baselines: Sequence[str]
    refused: dict[str, str] = field(default_factory=dict)

    def try_baselines(self, problems: Sequence[Problem], seconds: float) -> None:
        """Try the baselines for `seconds` at most; those that cannot be measured here are refused."""
        self.refused |= self.suite.refusals(self.gpu, self.baselines, problems, seconds)

    def measure(self, problem: Problem) -> tuple[Row, ...]:
        """Return the rows of one problem; raises MinrnnError where the device itself has failed."""
        contenders = self.suite.contenders(problem, self.gpu, self.baselines, self.refused)
        rows = run_rounds(problem, contenders, self.gpu, self.suite.table_limits.get(problem.table, self.suite.limits))
        self.refused |= too_slow(rows, set(self.baselines))
        try:
            self.gpu.release()
            self.gpu.finish()
        except Exception as error:
            raise MinrnnError(f"the GPU stopped at {problem.label} ({failure_of(error)}); leave out who did it") from error
        return rows


def too_slow(rows: Sequence[Row], baselines: set[str]) -> dict[str, str]:
    """Return {baseline: reason} of the baselines that took too long to prepare; they are left out from now on."""
    return {
        row.contender: f"prepared for {row.prepare_seconds:.0f} s at {row.problem.label}, longer than {PREPARE_SECONDS:.0f} s"
        for row in rows
        if row.contender in baselines and row.prepare_seconds is not None and row.prepare_seconds > PREPARE_SECONDS
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
            **{f"time of {table}": f"median of {limits.in_words}" for table, limits in suite.table_limits.items()},
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
