"""`python -m benchmarks picks`: the plans of a record that the cost model no longer picks."""

from __future__ import annotations

from typing import Annotated

import typer

from minrnn_gen.cli.request import AsJson
from minrnn_gen.cli.terminal import print_json

Records = Annotated[
    list[str] | None, typer.Argument(metavar="[RECORD]...", help="Records; those committed by default.", show_default=False)
]


def picks(records: Records = None, as_json: AsJson = False) -> None:
    """Compare today's picks with the plans of measured rows, without a GPU."""
    from benchmarks.cost_model.picks import differences, known_differences, published_plans, recorded_plans, table_of
    from benchmarks.report.record import read_record

    plans = [plan for path in records for plan in recorded_plans(read_record(path))] if records else published_plans()
    moved = list(differences(plans, known_differences()))
    if as_json:
        entries = [judged.difference.model_dump(exclude_none=True) | {"reason": judged.reason} for judged in moved]
        print_json({"differences": entries})
        return
    unsettled = sum(not judged.is_settled for judged in moved)
    typer.echo(f"{table_of(moved)}\n{len(plans)} plans, {len(moved)} differ, {unsettled} of them unsettled")
