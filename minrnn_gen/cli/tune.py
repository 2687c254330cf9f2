"""`minrnn-gen tune`: measures candidates on this GPU, and imports and exports the results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minrnn_gen.cli import completion
from minrnn_gen.cli.request import AsJson, Assignments, GpuName, Request, read_request
from minrnn_gen.cli.terminal import console, duration_text, new_table, print_json, progress_bar
from minrnn_gen.errors import BadInput, shown

if TYPE_CHECKING:
    from minrnn_gen.tune.pool import Tuned
    from minrnn_gen.tune.tuner import Limits, Progress

DEFAULT_TOP = 16
INTERRUPTED = 130
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "": 1.0}

Show = Callable[[str, float, str], None]


class Format(StrEnum):
    """How results are written."""

    LINES = "lines"
    T4 = "t4"
    FASTEST = "fastest"


Specs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SPEC]...", help="Specs: YAML files.", show_default=False, autocompletion=completion.specs),
]
Budget = Annotated[str, typer.Option("--budget", metavar="TIME", help="For each spec, as in 30s, 2min or 1h.")]
Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="Measure so many candidates of each kernel.")]
All = Annotated[bool, typer.Option("--all", help="Measure every candidate that fits.")]
Devices = Annotated[
    str | None,
    typer.Option("--devices", metavar="WHICH", help="Tune specs at once on these GPUs: all, or as 0,2.", show_default=False),
]
ExportFile = Annotated[
    str | None, typer.Option("--export", metavar="FILE", help="Write what is known to this file.", show_default=False)
]
ImportFile = Annotated[
    str | None, typer.Option("--import", metavar="FILE", help="Add what this file knows.", show_default=False)
]
ExportFormat = Annotated[
    Format,
    typer.Option("--format", help="Of --export: JSON lines, those of the fastest alone, or the T4 document."),
]


HtmlFile = Annotated[
    str | None,
    typer.Option(
        "--html", metavar="FILE", help="Write the candidates and their times as an interactive page.", show_default=False
    ),
]


def tune(
    specs: Specs = None,
    gpu: GpuName = None,
    assignments: Assignments = None,
    budget: Budget = "30s",
    top: Top = DEFAULT_TOP,
    every: All = False,
    devices: Devices = None,
    import_file: ImportFile = None,
    export_file: ExportFile = None,
    export_format: ExportFormat = Format.LINES,
    html_file: HtmlFile = None,
    as_json: AsJson = False,
) -> int:
    """Measure candidates on the GPU here and keep the fastest; from then on compile takes it."""
    if not (specs or import_file or export_file):
        raise BadInput("tune: nothing is given to tune; give a spec, or --import or --export with a file")
    if html_file is not None and not specs:
        raise BadInput("--html: draws measurements, but nothing is given to tune; give a spec")
    answer: dict[str, Any] = {}
    if import_file is not None:
        answer["imported"] = _import(import_file)
    interrupted = False
    if specs:
        from minrnn_gen.tune.tuner import Limits

        if devices is not None and gpu is not None:
            raise BadInput("--devices tunes for the GPUs of this machine, and --gpu names one; leave one of them out")
        limits = Limits(seconds_of(budget), None if every else top)
        requests = [read_request(path, gpu, assignments) for path in specs]
        answer["kernels"] = []
        _write_page((), html_file)  # an unwritable file is refused before anything is measured
        finished = _tuned_here(specs, requests, limits, as_json)
        if devices is not None:
            finished = _tuned_on(devices, requests, limits, as_json)
        for number, tuned in finished:
            interrupted = interrupted or tuned.is_interrupted
            answer["kernels"] += [{"spec": specs[number], **kernel} for kernel in tuned.kernels]
            _write_page(answer["kernels"], html_file)
            if not as_json:
                _print(specs[number], tuned.kernels)
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


def _tuned_here(specs: Sequence[str], requests: Sequence[Request], limits: Limits, quiet: bool) -> Iterator[tuple[int, Tuned]]:
    """Tune spec after spec on the GPU here, and yield each result."""
    from minrnn_gen.build.builder import builder_of
    from minrnn_gen.build.embedded import builder_of_kernels
    from minrnn_gen.tune.lookup import remembered
    from minrnn_gen.tune.pool import tuned_of
    from minrnn_gen.tune.session import tune_here

    for number, (path, request) in enumerate(zip(specs, requests, strict=True)):
        with progress_bar(path, quiet) as show:

            def watch(at: Progress, path: str = path, show: Show = show) -> None:
                # A race ends when all are measured and one is ahead, or when its time is over.
                show(f"{path}: {at.kernel_pass}, {at.measured} of {at.at_most}", at.spent, f"best {_time(at.best_us)}")

            tuned = tuned_of(
                tuple(tune_here(builder_of_kernels(builder_of(request.spec, request.target, remembered)), limits, watch))
            )
        yield number, tuned
        if tuned.is_interrupted:
            return


def _tuned_on(devices: str, requests: Sequence[Request], limits: Limits, quiet: bool) -> Iterator[tuple[int, Tuned]]:
    """Tune specs in parallel, each on its own GPU, and yield each result when it is done."""
    from minrnn_gen.tune.pool import executor_of_gpus, gpus_named, task_of, tune_specs

    gpus = gpus_named(devices)[: len(requests)]
    limits = replace(limits, compilers=max(1, limits.compilers // len(gpus)))
    with executor_of_gpus(gpus) as executor, progress_bar("tuning", quiet) as show:
        tasks = [task_of(request.spec, limits) for request in requests]
        for done, result in enumerate(tune_specs(tasks, executor), start=1):
            show(f"tuning on {len(gpus)} GPUs: {done} of {len(tasks)} specs", done / len(tasks), "")
            yield result


def _print(path: str, kernels: Sequence[Mapping[str, Any]]) -> None:
    table = new_table("kernel", "candidates", "first pick", "fastest", "ended", right=("first pick", "fastest"))
    for kernel in kernels:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(kernel["candidates"].items()))
        times = map(_time, (kernel["first_us"], kernel["best_us"]))
        table.add_row(kernel["pass"], f"{counts} of {kernel['feasible']}", *times, kernel["ended"])
    screen = console()
    screen.print(path)
    screen.print(table)


def _time(microseconds: float | None) -> str:
    return "-" if microseconds is None else duration_text(microseconds * 1e-6)


def _write_page(kernels: Sequence[Mapping[str, Any]], path: str | None) -> None:
    if path is None:
        return
    from minrnn_gen.build.output_files import refused_by_option, write_output
    from minrnn_gen.report.tuning import html_of

    with refused_by_option("--html", path):
        write_output(path, html_of(kernels).encode())


def _import(path: str) -> int:
    from minrnn_gen.build.store import Store, cache_folder
    from minrnn_gen.tune.history import open_history
    from minrnn_gen.tune.import_export import import_results

    return import_results(open_history(Store(cache_folder())), path)


def _export(path: str, form: Format, gpu: str | None) -> int:
    from minrnn_gen.build.store import Store, cache_folder
    from minrnn_gen.tune.history import open_history
    from minrnn_gen.tune.import_export import export_results

    return export_results(open_history(Store(cache_folder())), path, form=form.value, gpu=gpu)
