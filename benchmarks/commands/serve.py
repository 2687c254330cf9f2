"""`python -m benchmarks serve`: steps on slots of a pool next to other ways and others' kernels."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from minrnn_gen.errors import needing

Source = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Its selective_state_update in Triton, from its source, softplus.py next to it."),
]
Batches = Annotated[str, typer.Option("--batches", metavar="N,N", help="Sequences of a step.")]
Seconds = Annotated[float, typer.Option("--seconds", help="No problem is begun later than so many seconds after the first.")]


def serve(mamba: Source = None, flashinfer: Source = None, batches: Batches = "1,16,64,256", seconds: Seconds = 600) -> None:
    """Measure steps on slots and drafts on a GPU, in CUDA graphs; microseconds of a launch, and errors of y."""
    with needing("torch", "the benchmark of serving", "pip install torch"):
        from benchmarks import serving_suite as suite
    heading = suite.heading()
    peers = {} if mamba is None else {"mamba_ssm": suite.peer(mamba, "selective_state_update")}
    if flashinfer is not None:
        peers["flashinfer"] = suite.peer(flashinfer, "selective_state_update_triton")
    typer.echo(heading)
    begin, rows = time.monotonic(), list[dict[str, Any]]()
    for problem in suite.problems(tuple(map(int, batches.split(",")))):
        if time.monotonic() - begin < seconds:
            rows.append(suite.measure(problem, peers))
            typer.echo(json.dumps(rows[-1]))
    typer.echo(table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table, times of the contenders in microseconds and, last, the largest error of y."""
    names = list(dict.fromkeys(name for row in rows for name in row if name != "problem" and not name.endswith(" error")))
    lines = [["problem", *names, "error"], ["---"] * (len(names) + 2)]
    for row in rows:
        errors = [value for name, value in row.items() if name.endswith(" error")]
        lines.append([row["problem"], *(str(row.get(name, "")) for name in names), f"{max(errors, default=0):.1e}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
