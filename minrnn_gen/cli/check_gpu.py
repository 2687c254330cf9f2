"""`minrnn-gen check-gpu`: the GPU here held against its profile, as a report to attach to an issue."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minrnn_gen.cli.request import AsJson, GpuName
from minrnn_gen.cli.terminal import print_json, progress_bar

ReportFile = Annotated[
    str | None,
    typer.Option("--report", metavar="FILE", help="Write the report here; by default to stdout.", show_default=False),
]
Quick = Annotated[bool, typer.Option("--quick", help="16 bits alone, and the picks of two problems.")]


def check_gpu(gpu: GpuName = None, report_file: ReportFile = None, quick: Quick = False, as_json: AsJson = False) -> int:
    """Check the GPU here: its profile, every kernel family against fp64, and picks; write a report."""
    from minrnn_gen.build.output_files import refused_by_option, write_output
    from minrnn_gen.report.gpu_check import markdown_of
    from minrnn_gen.tune.check import check_here

    if report_file is not None:
        with refused_by_option("--report", report_file):
            Path(report_file).parent.stat()  # a missing folder is refused before minutes of measuring
    with progress_bar("checking", as_json) as show:
        check = check_here(gpu, quick, lambda doing, share: show(f"checking {doing}", share, ""))
    summary = check.summary()
    report = markdown_of(summary)
    if report_file is not None:
        with refused_by_option("--report", report_file):
            write_output(report_file, report.encode())
    if as_json:
        print_json(summary)
    elif report_file is None:
        typer.echo(report, nl=False)
    else:
        _print_findings(check.faults, check.remarks, report_file)
    return 1 if check.faults else 0


def _print_findings(faults: tuple[str, ...], remarks: tuple[str, ...], path: str) -> None:
    for kind, sentences in (("fault", faults), ("remark", remarks)):
        for sentence in sentences:
            typer.echo(f"{kind}: {sentence}")
    typer.echo(f"{len(faults)} faults, {len(remarks)} remarks; the report is in {path}, to be attached to an issue")
