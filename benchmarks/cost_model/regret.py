"""Regret of a ranking: the measured times of a kernel's candidates, in the order of the cost model and of other picks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy

# Candidates that a short tuning measures; it picks the best of them.
FEW = 8


@dataclass(frozen=True)
class Ranked:
    """Measured candidate: its time, and the values by which a candidate can be picked.

    `place` is its index in the order in which the candidates were declared; `resident_threads` counts the threads on an SM.
    """

    us: float
    predicted_us: float
    place: int
    resident_threads: int


@dataclass(frozen=True)
class Quality:
    """Regrets of the picks for one kernel: the time of a pick over that of the best candidate.

    `top_1` is the pick of the cost model, `top_few` the best of its first `FEW`, `slowest` the worst candidate. `tau` is
    Kendall's tau-b of predicted and measured times. `first`, `occupancy` and `random` are picks without a cost model: the first
    feasible candidate, the candidate with the most threads on an SM, and the geometric mean over all. `points` are the
    candidates' (predicted, measured) microseconds, in the order of the cost model.
    """

    label: str
    is_fitted: bool
    feasible_count: int
    measured_count: int
    is_complete: bool
    best_us: float
    top_1: float
    top_few: float
    slowest: float
    tau: float
    first: float
    occupancy: float
    random: float
    points: tuple[tuple[float, float], ...]


def quality_of(
    label: str, ranked: Sequence[Ranked], *, is_fitted: bool, feasible_count: int, is_complete: bool
) -> Quality | None:
    """Return the regrets among candidates in the order of the cost model, None where none was measured."""
    if not ranked:
        return None
    times_us = [candidate.us for candidate in ranked]
    best_us = min(times_us)
    return Quality(
        label=label,
        is_fitted=is_fitted,
        feasible_count=feasible_count,
        measured_count=len(ranked),
        is_complete=is_complete,
        best_us=best_us,
        top_1=times_us[0] / best_us,
        top_few=min(times_us[:FEW]) / best_us,
        slowest=max(times_us) / best_us,
        tau=kendall_tau([candidate.predicted_us for candidate in ranked], times_us),
        first=min(ranked, key=lambda candidate: candidate.place).us / best_us,
        occupancy=min(ranked, key=lambda candidate: (-candidate.resident_threads, candidate.place)).us / best_us,
        random=statistics.geometric_mean(us / best_us for us in times_us),
        points=tuple((round(candidate.predicted_us, 2), round(candidate.us, 2)) for candidate in ranked),
    )


def kendall_tau(predicted: Sequence[float], measured: Sequence[float]) -> float:
    """Return Kendall's tau-b: concordant pairs less discordant pairs, over the pairs without a tie; 0 without such pairs."""
    signs = []
    for values in (predicted, measured):
        column = numpy.asarray(values, numpy.float64)
        signs.append(numpy.sign(column[:, None] - column[None, :]))
    concordant = float((signs[0] * signs[1]).sum())
    untied = math.sqrt(float(abs(signs[0]).sum()) * float(abs(signs[1]).sum()))
    return concordant / untied if untied else 0.0


_COLUMNS: tuple[tuple[str, Callable[[Quality], float]], ...] = (
    ("top 1", lambda quality: quality.top_1),
    (f"top {FEW}", lambda quality: quality.top_few),
    ("tau", lambda quality: quality.tau),
    ("first feasible", lambda quality: quality.first),
    ("most threads", lambda quality: quality.occupancy),
    ("random", lambda quality: quality.random),
    ("slowest", lambda quality: quality.slowest),
)


def table_of(qualities: Iterable[Quality]) -> str:
    """Return the regrets as Markdown: a line for every kernel, then the median and the worst, which is the least tau."""
    rows = list(qualities)
    names = [name for name, _ in _COLUMNS]
    lines = [f"| kernel | measured | best | {' | '.join(names)} |", f"|---|---|---{'|---' * len(names)}|"]
    for quality in rows:
        count = f"{quality.measured_count} of {quality.feasible_count}" + ("" if quality.is_complete else ", unfinished")
        cells = [f"{value(quality):.3f}" for _, value in _COLUMNS]
        lines.append(f"| {quality.label} | {count} | {quality.best_us:.1f} us | {' | '.join(cells)} |")
    whole = [quality for quality in rows if quality.is_complete]
    if whole:
        columns = {name: [value(quality) for quality in whole] for name, value in _COLUMNS}
        medians = [statistics.median(values) for values in columns.values()]
        worst = [min(values) if name == "tau" else max(values) for name, values in columns.items()]
        for title, cells_of in (("median", medians), ("worst", worst)):
            lines.append(f"| **{title} of {len(whole)}** | | | {' | '.join(f'{value:.3f}' for value in cells_of)} |")
    return "\n".join(lines) + "\n"


def table_of_families(families: Mapping[str, Sequence[Quality]]) -> str:
    """Return a line for each family as Markdown: the regrets of the first pick and of the best of the first `FEW`."""
    lines = [
        f"| family | kernels | top 1: median | 95 % | worst | top {FEW}: median | worst | the worst pick |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family, qualities in families.items():
        if not qualities:
            continue
        first, few = ([value(quality) for quality in qualities] for _, value in _COLUMNS[:2])
        worst = max(qualities, key=lambda quality: quality.top_1)
        most = float(numpy.quantile(first, 0.95, method="higher"))
        cells = [statistics.median(first), most, max(first), statistics.median(few), max(few)]
        lines.append(f"| {family} | {len(qualities)} | {' | '.join(f'{cell:.3f}' for cell in cells)} | {worst.label} |")
    return "\n".join(lines) + "\n"
