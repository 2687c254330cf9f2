"""`python -m benchmarks join`: one record of the shares that several GPUs measured."""

from __future__ import annotations

from typing import Annotated

import typer

Parts = Annotated[list[str], typer.Argument(metavar="PART...", help="Records of shares, from --json.", show_default=False)]
Joined = Annotated[str, typer.Argument(metavar="FILE", help="The record that is written.", show_default=False)]


def join(joined_file: Joined, parts: Parts) -> None:
    """Write one record of the shares that GPUs of one kind measured, their rows in the order of the tables."""
    from benchmarks.report.joined import joined
    from benchmarks.report.record import read_record, write_record

    write_record(joined([read_record(part) for part in parts]), joined_file)
