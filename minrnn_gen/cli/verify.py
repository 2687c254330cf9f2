"""`minrnn-gen verify`: the kernels of a spec, emulated thread by thread and compared with the CPU target."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minrnn_gen.cli.request import AsJson, Assignments, GpuName, SpecPath, read_request
from minrnn_gen.cli.terminal import console, duration_text, new_table, print_json, progress_bar

if TYPE_CHECKING:
    from minrnn_gen.interpret.verify import Verdict

Seeds = Annotated[
    int, typer.Option("--seeds", metavar="N", min=1, help="Run every call N times, its threads interleaved in other ways.")
]
Candidates = Annotated[
    int,
    typer.Option(
        "--candidates",
        metavar="N",
        min=0,
        help="Verify N other candidates beside the chosen kernels: of other strategies, then other ways to cooperate.",
    ),
]
ReallyLong = Annotated[bool, typer.Option("--yes-really", help="Run what is estimated to take more than ten minutes, too.")]


def verify(
    spec: SpecPath,
    gpu: GpuName = None,
    assignments: Assignments = None,
    seeds: Seeds = 1,
    candidates: Candidates = 3,
    yes_really: ReallyLong = False,
    as_json: AsJson = False,
) -> int:
    """Run the kernels themselves on the host, watch their threads, and check against fp64."""
    from minrnn_gen.interpret.verify import Verification

    started = time.perf_counter()
    request = read_request(spec, gpu, assignments)
    verification = Verification(request.builder_of_kernels.spec, request.target, seeds, candidates, yes_really)
    with progress_bar("verifying", quiet=as_json) as show:
        verdicts = sorted(
            verification.run(lambda doing, share: show(f"verified {doing}", share, "")), key=lambda verdict: verdict.candidate
        )
    seconds, wrong = time.perf_counter() - started, [verdict for verdict in verdicts if not verdict.is_right]
    if as_json:
        print_json({"right": not wrong, "seconds": round(seconds, 3), "kernels": [_plain(verdict) for verdict in verdicts]})
    else:
        _print(verdicts, request.target.profile.name, seeds, seconds)
    return 1 if wrong else 0


def _print(verdicts: list[Verdict], gpu: str, seeds: int, seconds: float) -> None:
    table = new_table("kernel", "candidate", "calls", "error", "time", "", right=("error", "time"))
    for verdict in verdicts:
        variables = " ".join(f"{name}={value}" for name, value in verdict.variables.items())
        share = f"{verdict.share:.0%}" if math.isfinite(verdict.share) else str(verdict.share)
        word = "right" if verdict.is_right else "WRONG"
        table.add_row(verdict.entry, variables, ", ".join(verdict.cases), share, duration_text(verdict.seconds), word)
    out = console()
    out.print(table)
    for verdict in verdicts:
        for finding in verdict.findings:
            out.print(str(finding), soft_wrap=True)
    wrong = sum(not verdict.is_right for verdict in verdicts)
    orders = "one seed" if seeds == 1 else f"{seeds} seeds"
    said = f"{wrong} of {len(verdicts)} kernels are wrong" if wrong else f"{len(verdicts)} kernels are right"
    out.print(f"{said}, planned for {gpu}; errors are shares of the tolerance, of {orders}; {duration_text(seconds)}")


def _plain(verdict: Verdict) -> dict[str, Any]:
    return {
        "candidate": verdict.candidate,
        "pass": verdict.kernel_pass,
        "entry": verdict.entry,
        "variables": dict(verdict.variables),
        "calls": list(verdict.cases),
        "error_share": verdict.share if math.isfinite(verdict.share) else None,
        "findings": [str(finding) for finding in verdict.findings],
        "right": verdict.is_right,
        "seconds": round(verdict.seconds, 3),
    }
