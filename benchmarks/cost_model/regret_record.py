"""Record of the regrets of a sweep: as a file, as sections of a page, and as a plot."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pydantic

from benchmarks.cost_model.regret import Quality, table_of
from benchmarks.report.plot import Curve, Panel, need_matplotlib, svg_text
from benchmarks.report.record import write_text
from minrnn_gen.errors import BadInput, shown
from minrnn_gen.tune.results import Result

# From the top of the checkout.
PUBLISHED_REGRETS = "benchmarks/tuner_h200.json"
REGRETS_PAGE, REGRETS_PLOT = "docs/tuning.md", "docs/regret.svg"
NOT_MEASURED = "Not measured yet; `python -m benchmarks tuner` does.\n"
# Points drawn of a kernel, so that a plot of all kernels stays small.
DRAWN_POINTS = 25
DENSE = ("lstm", "gru", "slstm", "elman")


class RegretRecord(pydantic.BaseModel):
    """Regrets of the picks for every kernel, and the device, driver and toolchain that the candidates were measured with."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    device: str
    driver: str
    toolchain: str
    qualities: tuple[Quality, ...]


def regret_record(results: Iterable[Result], qualities: Iterable[Quality]) -> RegretRecord:
    """Return the record of a sweep, with the device, driver and toolchain of most of its results."""
    places = Counter((result.setting.device, result.setting.driver, result.setting.toolchain) for result in results)
    device, driver, toolchain = places.most_common(1)[0][0] if places else ("", "", "")
    return RegretRecord(device=device, driver=driver, toolchain=toolchain, qualities=tuple(qualities))


def write_regrets(record: RegretRecord, path: str | os.PathLike[str]) -> None:
    """Write `record` as JSON, with a line for every kernel; a path that cannot be written is BadInput."""
    whole = record.model_dump_json()
    write_text(whole.replace('{"label":', '\n{"label":') + "\n", path, "--out")


def read_regrets(path: str | os.PathLike[str]) -> RegretRecord:
    """Return the record at `path`; BadInput for a file that is no record."""
    try:
        return RegretRecord.model_validate_json(Path(path).read_bytes())
    except (OSError, pydantic.ValidationError) as error:
        raise BadInput(
            f"{shown(os.fspath(path))} is no record ({str(error).splitlines()[0]}); "
            f"give a file that 'python -m benchmarks tuner' wrote with --out"
        ) from None


def regret_sections(record: RegretRecord | None) -> Mapping[str, Callable[[], str]]:
    """Return {section: text} of a record, or of its absence."""
    if record is None:
        return dict.fromkeys(("held out", "fitted", "regret plot", "regret provenance"), lambda: NOT_MEASURED)
    return {
        "held out": partial(table_of, [quality for quality in record.qualities if not quality.is_fitted]),
        "fitted": partial(table_of, [quality for quality in record.qualities if quality.is_fitted]),
        "regret plot": lambda: f"![Predicted and measured times]({REGRETS_PLOT.removeprefix('docs/')})\n",
        "regret provenance": lambda: f"Measured on an {record.device}, driver {record.driver} ({record.toolchain}).\n",
    }


def drawn_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points of a kernel to be drawn, spread evenly over its candidates from the fastest to the slowest."""
    ordered = sorted(points, key=lambda point: point[1])
    count = min(DRAWN_POINTS, len(ordered))
    return [ordered[number * (len(ordered) - 1) // max(count - 1, 1)] for number in range(count)]


def regret_svg(record: RegretRecord) -> str:
    """Return a plot of predicted over measured times as SVG; ToolchainMissing without matplotlib."""
    need_matplotlib()

    def points_of(are_dense: bool, is_fitted: bool) -> list[tuple[float, float]]:
        return [
            point
            for quality in record.qualities
            if quality.is_fitted == is_fitted and (quality.label.split()[0] in DENSE) == are_dense
            for point in drawn_points(quality.points)
        ]

    panels = []
    for title, are_dense in (("affine and diagonal cells", False), ("dense cells", True)):
        curves = []
        for name, is_fitted in (("fitted to, among others", True), ("held out", False)):
            predicted, measured = zip(*points_of(are_dense, is_fitted), strict=True)
            curves.append(Curve(name, measured, predicted))
        panels.append(Panel(title, "predicted, us", True, tuple(curves), "measured, us", is_scatter=True))
    return svg_text(panels, f"Candidates on an {record.device}: the line is where both are the same")
