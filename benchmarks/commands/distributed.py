"""`python -m benchmarks distributed`: time and heads over the ranks that torchrun starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from minrnn_gen.errors import needing

if TYPE_CHECKING:
    from benchmarks.report.distributed_record import DistributedRecord

JsonFile = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="The first rank writes the record here.", show_default=False)
]
Quick = Annotated[bool, typer.Option("--quick", help="A few small problems, on CPUs too.")]
Only = Annotated[
    str | None,
    typer.Option(
        "--only", metavar="WORD", help="Problems whose labels have WORD, or one of several between commas.", show_default=False
    ),
]
HostOnly = Annotated[
    bool, typer.Option("--host", help="Count instead what each call asks of the host: its time, operators and functions.")
]

Graphs = Annotated[
    bool, typer.Option("--graphs/--no-graphs", help="Launch calls on GPUs as CUDA graphs where their arrays come again.")
]
Seconds = Annotated[
    float | None, typer.Option("--seconds", help="For the rounds of a problem, forward or with gradients.", show_default=False)
]


def distributed(
    json_file: JsonFile = None,
    quick: Quick = False,
    only: Only = None,
    host_only: HostOnly = False,
    graphs: Graphs = True,
    seconds: Seconds = None,
) -> None:
    """Measure time and heads over the ranks that torchrun starts."""
    with needing("torch", "the benchmark of process groups", "pip install torch"):
        from benchmarks.contenders.host_over_ranks import host_text
        from benchmarks.distributed_suite import count, measure, open_host
    from benchmarks.report.distributed_record import distributed_text
    from benchmarks.report.record import write_text

    def keep(record: DistributedRecord) -> None:
        if json_file is not None and host.rank == 0:
            write_text(record.model_dump_json(indent=1, exclude_defaults=True) + "\n", json_file, "--json")

    host, end = open_host(quick, graphs)
    try:
        if host_only:
            rows = count(host, quick, only)
            if host.rank == 0:
                typer.echo(host_text(rows))
                if json_file is not None:
                    write_text(json.dumps([row.model_dump() for row in rows], indent=1) + "\n", json_file, "--json")
            return
        record = measure(host, quick, keep, only, seconds)
        if host.rank == 0:
            typer.echo(distributed_text(record))
    finally:
        end()
