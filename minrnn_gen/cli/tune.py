"""`minrnn-gen tune`: candidates measured on the GPU here, and what is known of them as files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minrnn_gen.cli.request import AsJson, Assignments, GpuName, Request, read_request
from minrnn_gen.cli.terminal import console, duration_text, new_table, print_json
from minrnn_gen.errors import BadInput, shown

if TYPE_CHECKING:
    from minrnn_gen.tune.tuner import Limits, Progress, TunedKernel

DEFAULT_TOP = 16
INTERRUPTED = 130
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "": 1.0}


class Format(StrEnum):
    """How results are written."""

    LINES = "lines"
    T4 = "t4"


Specs = Annotated[list[str] | None, typer.Argument(metavar="[SPEC]...", help="Specs: YAML files.", show_default=False)]
Budget = Annotated[str, typer.Option("--budget", metavar="TIME", help="For each spec, as in 30s, 2min or 1h.")]
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="Measure so many candidates of each kernel.")]
All = Annotated[bool, typer.Option("--all", help="Measure every candidate that fits.")]
ExportFile = Annotated[
    str | None, typer.Option("--export", metavar="FILE", help="Write what is known to this file.", show_default=False)
]
ImportFile = Annotated[
    str | None, typer.Option("--import", metavar="FILE", help="Add what this file knows.", show_default=False)
]
ExportFormat = Annotated[
    Format, typer.Option("--format", help="Of --export: JSON lines, or the T4 document that autotuning tools read.")
]


def tune(
    specs: Specs = None,
    gpu: GpuName = None,
    assignments: Assignments = None,
    budget: Budget = "30s",
    top: Top = DEFAULT_TOP,
    every: All = False,
    import_file: ImportFile = None,
    export_file: ExportFile = None,
    export_format: ExportFormat = Format.LINES,
    as_json: AsJson = False,
) -> int:
    """Measure candidates on the GPU here and keep the fastest; from then on compile takes it."""
    if not (specs or import_file or export_file):
        raise BadInput("tune: nothing is given to tune; give a spec, or --import or --export with a file")
    answer: dict[str, Any] = {}
    if import_file is not None:
        answer["imported"] = _import(import_file)
    interrupted = False
    if specs:
        from minrnn_gen.tune.tuner import Limits

        limits = Limits(seconds_of(budget), None if every else top)
        requests = [read_request(one, gpu, assignments) for one in specs]
        answer["kernels"], interrupted = _tuned(specs, requests, limits, quiet=as_json)
    if export_file is not None:
        answer["exported"] = _export(export_file, export_format, gpu)
    if as_json:
        print_json(answer | ({"interrupted": True} if interrupted else {}))
    else:
        for key, path in (("imported", import_file), ("exported", export_file)):
            if key in answer:
                typer.echo(f"{key} {answer[key]} results, {path}")
    return INTERRUPTED if interrupted else 0


def seconds_of(text: str) -> float:
    """Return a duration such as 30s, 2min or 1h in seconds; raises BadInput for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|)", text.strip())
    if not match:
        raise BadInput(f"--budget: {shown(text)} is given; allowed: a number and ms, s, min or h, as in --budget 30s")
    return float(match[1]) * _SECONDS[match[2]]


def _tuned(specs: Sequence[str], requests: Sequence[Request], limits: Limits, quiet: bool) -> tuple[list[dict[str, Any]], bool]:
    """Tune spec after spec; returns what came of each kernel, and whether it was interrupted."""
    from minrnn_gen.api import builder_of
    from minrnn_gen.tune.session import tune_here

    entries: list[dict[str, Any]] = []
    for path, request in zip(specs, requests, strict=True):
        with _bar(path, quiet) as watch:
            its = []
            for tuned in tune_here(builder_of(request.spec, request.target), limits, watch):
                its.append(tuned)
                entries.append({"spec": path, **_entry(tuned)})
        if not quiet:
            _print(path, its)
        if its and its[-1].ended == "interrupted":
            return entries, True
    return entries, False


def _entry(tuned: TunedKernel) -> dict[str, Any]:
    its = tuned.setting
    return {
        "model": its.cell,
        "pass": its.kernel_pass,
        "gpu": its.gpu,
        "device": its.device,
        "feasible": tuned.feasible_count,
        "candidates": dict(tuned.outcomes),
        "ended": tuned.ended,
        "first_us": tuned.first_us,
        "best_us": tuned.best_us,
        "family": tuned.kept.plan.template.removesuffix(".cu.j2") if tuned.kept else None,
        "variables": dict(tuned.kept.plan.variables) if tuned.kept else None,
    }


def _print(path: str, kernels: Sequence[TunedKernel]) -> None:
    table = new_table("kernel", "candidates", "first pick", "fastest", "ended", right=("first pick", "fastest"))
    for tuned in kernels:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(tuned.outcomes.items()))
        table.add_row(
            tuned.setting.kernel_pass,
            f"{counts} of {tuned.feasible_count}",
            *map(_time, (tuned.first_us, tuned.best_us)),
            tuned.ended,
        )
    screen = console()
    screen.print(path)
    screen.print(table)


def _time(microseconds: float | None) -> str:
    return "-" if microseconds is None else duration_text(microseconds * 1e-6)


@contextmanager
def _bar(path: str, quiet: bool) -> Iterator[Any]:
    """Give what shows how far the tuning of a spec is, on a terminal; nothing in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[best]}", markup=False))
    with Bar(*columns, console=Console(stderr=True, markup=False), transient=True) as bar:
        task = bar.add_task(path, total=1.0, best="")

        def watch(progress: Progress) -> None:
            # A race ends when all are measured and one is ahead, or when its time is over.
            seen = f"{progress.measured} of {progress.at_most}"
            doing = f"{path}: {progress.kernel_pass}, {seen}"
            bar.update(task, description=doing, completed=progress.spent, best=f"best {_time(progress.best_us)}")

        yield watch


def _import(path: str) -> int:
    from minrnn_gen.store import Store, cache_folder
    from minrnn_gen.tune.exchange import import_results
    from minrnn_gen.tune.memory import open_memory

    return import_results(open_memory(Store(cache_folder())), path)


def _export(path: str, form: Format, gpu: str | None) -> int:
    from minrnn_gen.store import Store, cache_folder
    from minrnn_gen.tune.exchange import export_results
    from minrnn_gen.tune.memory import open_memory

    return export_results(open_memory(Store(cache_folder())), path, as_t4=form is Format.T4, gpu=gpu)
