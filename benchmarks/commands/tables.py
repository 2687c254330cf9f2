"""Commands of `python -m benchmarks` that measure tables of kernels, baselines and a copy on the GPU here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from minrnn_gen.cli.terminal import command_line, progress

if TYPE_CHECKING:  # imported where something is measured: other commands do without
    from benchmarks.harness.session import Suite
    from benchmarks.problems.scan_problems import Problem, TableName
    from benchmarks.report.record import Record, Row

# A library of scans runs a compiler for more than a minute when it is imported for the first time.
DEFAULT_BASELINE_SECONDS = 120.0
# FlashRNN compiles two dozen shapes for a minute or more each, as many at once as there are processors.
DEFAULT_DENSE_BASELINE_SECONDS = 300.0
NO_BASELINES = "none"


class Table(StrEnum):
    """Tables of scans."""

    RAW = "raw"
    CELLS = "cells"
    SELECTIVE = "selective"
    LAYERS = "layers"
    CLASSIC = "classic"


class DenseTable(StrEnum):
    """Tables of dense cells."""

    CELLS = "cells"
    SWEEP = "sweep"
    LARGE = "large"
    ACCURACY = "accuracy"
    WAITING = "waiting"


class CallTable(StrEnum):
    """Tables of single calls."""

    HOST = "host"
    DECODE = "decode"


class LayerTable(StrEnum):
    """Tables of layers against those of torch."""

    HEADLINE = "headline"
    WEIGHTS = "weights"
    SPREAD = "spread"
    SIZES = "sizes"
    TOKEN = "token"
    SCANS = "scans"


class JaxTable(StrEnum):
    """Tables of the JAX front."""

    JIT = "jit"
    DISPATCH = "dispatch"
    ENSEMBLE = "ensemble"


JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the record here, after each shape.", show_default=False)
]
PlotFile = Annotated[
    str | None, typer.Option("--plot", metavar="FILE", help="Draw the record here, as SVG.", show_default=False)
]
HtmlFile = Annotated[
    str | None, typer.Option("--html", metavar="FILE", help="Write the record here as an interactive page.", show_default=False)
]
_ONLY = typer.Option("--only", help="Measure this table alone; may be repeated.", show_default=False)
Only = Annotated[list[Table] | None, _ONLY]
OnlyDense = Annotated[list[DenseTable] | None, _ONLY]
OnlyCalls = Annotated[list[CallTable] | None, _ONLY]
OnlyLayers = Annotated[list[LayerTable] | None, _ONLY]
OnlyJax = Annotated[list[JaxTable] | None, _ONLY]
Quick = Annotated[bool, typer.Option("--quick", help="One or two small shapes of each table.")]
Baselines = Annotated[
    list[str] | None,
    typer.Option(
        "--baseline",
        metavar="NAME",
        help="Measure this baseline alone beside ours; may be repeated; 'none' for no baseline.",
        show_default=False,
    ),
]
Peer = Annotated[
    str | None,
    typer.Option(
        "--peer",
        metavar="FILE",
        help="TorchRL's _dreamer_v3_block_gru_triton.py, whose kernel the table 'waiting' has beside block_gru.",
        show_default=False,
    ),
]
ShareOption = Annotated[
    str | None,
    typer.Option(
        "--share",
        metavar="I/N",
        help="Every N-th shape, from the I-th on, where N GPUs measure at the same time; join makes one record of them.",
        show_default=False,
    ),
]
BaselineSeconds = Annotated[
    float, typer.Option("--baseline-seconds", metavar="S", min=1.0, help="How long baselines may build before the start.")
]

app = command_line("Measure the kernels here.")


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def scan(
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
    html_file: HtmlFile = None,
    only: Only = None,
    quick: Quick = False,
    baseline_names: Baselines = None,
    baseline_seconds: BaselineSeconds = DEFAULT_BASELINE_SECONDS,
    share: ShareOption = None,
) -> None:
    """Measure scans, cells and layers against a copy, baselines and the CPU."""
    from benchmarks.suites import SCAN

    _measure(SCAN, Files(json_file, plot_file, html_file), only, quick, baseline_names, baseline_seconds, share)


@app.command()
def recurrent(
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
    html_file: HtmlFile = None,
    only: OnlyDense = None,
    quick: Quick = False,
    baseline_names: Baselines = None,
    baseline_seconds: BaselineSeconds = DEFAULT_DENSE_BASELINE_SECONDS,
    peer: Peer = None,
    share: ShareOption = None,
) -> None:
    """Measure dense cells by both paths, against baselines."""
    from benchmarks.suites import recurrent_suite

    files = Files(json_file, plot_file, html_file)
    _measure(recurrent_suite(peer), files, only, quick, baseline_names, baseline_seconds, share)


@app.command()
def calls(
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    only: OnlyCalls = None,
    quick: Quick = False,
    baseline_names: Baselines = None,
) -> None:
    """Measure what a call costs the host, and a step in decoding, against torch.nn."""
    from benchmarks.suites import CALLS

    _measure(CALLS, Files(json_file, None, html_file), only, quick, baseline_names, 0.0)


@app.command()
def layers(
    json_file: JsonFile = None,
    plot_file: PlotFile = None,
    html_file: HtmlFile = None,
    only: OnlyLayers = None,
    quick: Quick = False,
    baseline_names: Baselines = None,
    share: ShareOption = None,
) -> None:
    """Measure layers as people call them, without gradients and in training steps, against torch's."""
    from benchmarks.suites import LAYERS

    _measure(LAYERS, Files(json_file, plot_file, html_file), only, quick, baseline_names, 0.0, share)


@app.command()
def jax(
    json_file: JsonFile = None,
    html_file: HtmlFile = None,
    only: OnlyJax = None,
    quick: Quick = False,
    baseline_names: Baselines = None,
) -> None:
    """Measure the JAX front against what JAX has, and against the torch front."""
    from benchmarks.suites import JAX

    _measure(JAX, Files(json_file, None, html_file), only, quick, baseline_names, 0.0)


@dataclass(frozen=True)
class Files:
    """The files that a run writes besides what it prints; None for none."""

    json: str | None
    plot: str | None
    html: str | None


def _measure(
    suite: Suite,
    files: Files,
    only: Sequence[StrEnum] | None,
    quick: bool,
    baseline_names: list[str] | None,
    baseline_seconds: float,
    share: str | None = None,
) -> None:
    """Measure the tables of `suite` and print, record and draw them."""
    from benchmarks.harness.gpu import open_gpu
    from benchmarks.harness.session import Session, new_record, run_tables
    from benchmarks.report.plot import need_matplotlib, svg_of
    from benchmarks.report.record import write_text

    chosen = _baselines(suite, baseline_names)
    if share is not None:
        suite = _shared(suite, share)
    if files.plot is not None:
        need_matplotlib()
    tables = [table for table in suite.tables if only is None or table in only]
    gpu = open_gpu()
    session = Session(suite, gpu, chosen)
    printer = _Printer(suite, files)
    record = new_record(command_of(suite.command, only, quick, baseline_names, share), gpu, suite)
    printer.keep(record, ())
    with progress("trying the baselines"):
        session.try_baselines([problem for table in tables for problem in suite.problems(table, quick)], baseline_seconds)

    def measure(problem: Problem) -> tuple[Row, ...]:
        with progress(f"{problem.table}: {problem.label}"):
            return session.measure(problem)

    try:
        record = run_tables(suite, tables, quick, record, measure, printer.keep)
    finally:
        printer.finish()
    if files.plot is not None:
        write_text(svg_of(record), files.plot, "--plot")


class _Printer:
    """Printer of the tables, once they are whole or the run has ended; record and page are written after every problem."""

    def __init__(self, suite: Suite, files: Files) -> None:
        self._suite, self._files = suite, files
        self._pending: list[Row] = []
        self._record: Record | None = None

    def keep(self, record: Record, rows: tuple[Row, ...]) -> None:
        """Add the rows of the next problem, which may begin the next table."""
        from benchmarks.report.page import html_of
        from benchmarks.report.record import write_record, write_text

        self._record = record
        if self._files.json is not None:
            write_record(record, self._files.json)
        if self._files.html is not None:
            write_text(html_of(record, self._suite.titles), self._files.html, "--html")
        if rows and self._pending and rows[0].problem.table != self._pending[0].problem.table:
            self._print()
        self._pending += rows

    def finish(self) -> None:
        """Print the last table and the provenance of the record."""
        from benchmarks.report.tables import provenance

        self._print()
        if self._record is not None:
            typer.echo(provenance(self._record))

    def _print(self) -> None:
        from benchmarks.report.tables import whole_text

        if self._pending:
            typer.echo(f"{self._suite.titles[self._pending[0].problem.table]}\n{whole_text(self._pending)}")
        self._pending = []


def command_of(
    command: str, only: Sequence[StrEnum] | None, quick: bool, baseline_names: list[str] | None, share: str | None = None
) -> str:
    """Return the command line without the files that it writes, which change nothing that is measured."""
    words = ["python", "-m", "benchmarks", command]
    words += [word for table in only or () for word in ("--only", table.value)]
    words += ["--quick"] if quick else []
    words += [word for name in baseline_names or () for word in ("--baseline", name)]
    words += ["--share", share] if share is not None else []
    return shlex.join(words)


def _shared(suite: Suite, share: str) -> Suite:
    """Return a suite with the problems of a share alone."""
    from benchmarks.problems.share import problems_of_share, share_of

    of_share = share_of(share)

    def problems(table: TableName, quick: bool) -> tuple[Problem, ...]:
        return problems_of_share(suite.problems(table, quick), of_share)

    return replace(suite, problems=problems)


def _baselines(suite: Suite, names: list[str] | None) -> tuple[str, ...]:
    from benchmarks.contenders.baselines import known_name

    if names is None:
        return suite.baselines
    return tuple(known_name(name, suite.baselines) for name in names if name != NO_BASELINES)
