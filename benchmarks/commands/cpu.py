"""`python -m benchmarks cpu`: layers on the CPU here, against those of torch.nn and against their matrix products."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer

from minrnn_gen.cli.terminal import progress

JsonFile = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the record here.", show_default=False)]
Quick = Annotated[bool, typer.Option("--quick", help="A few small sizes.")]
Busy = Annotated[
    int, typer.Option("--busy", metavar="N", min=0, max=64, help="Measure a few sizes again while N other processes compute.")
]


def cpu(json_file: JsonFile = None, quick: Quick = False, busy: Busy = 0) -> None:
    """Measure layers on the CPU against torch's."""
    from benchmarks.cpu_suite import measure
    from benchmarks.report.cpu_record import text_of
    from benchmarks.report.record import write_text

    with progress("measuring on the CPU"):
        record = measure(quick, busy)
    if json_file is not None:
        write_text(record.model_dump_json(indent=1, exclude_none=True) + "\n", json_file, "--json")
    for (beside, others), rows in itertools.groupby(record.rows, lambda row: (row.beside, row.busy)):
        load = f", while {others} other processes compute" if others else ""
        typer.echo(f"Beside {beside}, {record.threads} threads of {record.cpu}{load}\n\n{text_of(list(rows))}\n")
