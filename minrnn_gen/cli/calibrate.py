"""`minrnn-gen calibrate`: the GPU here measured for the cost model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minrnn_gen.cli.request import AsJson
from minrnn_gen.cli.terminal import console, new_table, print_json, progress

OutFile = Annotated[
    str | None,
    typer.Option("--out", metavar="FILE", help="Write the profile here, and take nothing of it.", show_default=False),
]


def calibrate(out: OutFile = None, as_json: AsJson = False) -> None:
    """Measure the GPU here for the cost model: half a minute, two at most."""
    from minrnn_gen.config.gpu_profile import MEASURED
    from minrnn_gen.gpu import device
    from minrnn_gen.gpu.calibration import calibration_path, write_calibration
    from minrnn_gen.tune.calibrate import calibrate as measured

    with progress("measuring", as_json):
        profile = measured()
    live = device.live_device()
    path = Path(out) if out is not None else calibration_path(profile.name)
    write_calibration(profile, path)
    rates = {field: getattr(profile, field) for field in MEASURED if getattr(profile, field) is not None}
    if as_json:
        print_json({"gpu": profile.name, "file": str(path), "rates": rates, "source": profile.sources[MEASURED[0]]})
        return
    table = new_table("number", "measured", "before", right=("measured", "before"))
    for field, value in rates.items():
        before = getattr(live.profile, field) if live else None
        table.add_row(field, f"{value:.4g}", "-" if before is None else f"{before:.4g}")
    screen = console()
    screen.print(table)
    screen.print(f"{profile.sources[MEASURED[0]]}\nwritten to {path}" + ("" if out else ", and taken from now on"))
