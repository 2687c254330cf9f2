"""How good a ranking is: the times of all candidates of a kernel in the order of the cost model, and of who knows nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy

# A tuner that measures so many finds the best of them.
FEW = 8


@dataclass(frozen=True)
class Ranked:
    """A candidate that was measured: its time, and what those who pick one go by.

    `place` is where it stands in the order in which the candidates were declared; `resident_threads` are those of an SM.
    """

    us: float
    predicted_us: float
    place: int
    resident_threads: int


@dataclass(frozen=True)
class Quality:
    """How good the picks for one kernel are, each as regret: its time over that of the best candidate.

    `top_1` is the pick of the cost model, `top_few` the best of its first `FEW`, `slowest` the worst candidate there is; `tau`
    is Kendall's tau-b of predicted and measured times. `first`, `occupancy` and `random` are picks without a cost model: the
    first feasible candidate, the one with the most threads on an SM, and any, on average (the geometric mean). `points` are
    (predicted, measured) microseconds of each, in the order of the cost model.
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
    """Judge the picks among candidates in the order of the cost model; None where none was measured."""
    if not ranked:
        return None
    times_us = [one.us for one in ranked]
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
        tau=kendall_tau([one.predicted_us for one in ranked], times_us),
        first=min(ranked, key=lambda one: one.place).us / best_us,
        occupancy=min(ranked, key=lambda one: (-one.resident_threads, one.place)).us / best_us,
        random=statistics.geometric_mean(us / best_us for us in times_us),
        points=tuple((round(one.predicted_us, 2), round(one.us, 2)) for one in ranked),
    )


def kendall_tau(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Kendall's tau-b: pairs in the same order less pairs in the other, of those without a tie; 0 if there is none."""
    signs = []
    for values in (one, other):
        column = numpy.asarray(values, numpy.float64)
        signs.append(numpy.sign(column[:, None] - column[None, :]))
    concordant = float((signs[0] * signs[1]).sum())
    untied = math.sqrt(float(abs(signs[0]).sum()) * float(abs(signs[1]).sum()))
    return concordant / untied if untied else 0.0


_COLUMNS: tuple[tuple[str, Callable[[Quality], float]], ...] = (
    ("top 1", lambda one: one.top_1),
    (f"top {FEW}", lambda one: one.top_few),
    ("tau", lambda one: one.tau),
    ("first feasible", lambda one: one.first),
    ("most threads", lambda one: one.occupancy),
    ("random", lambda one: one.random),
    ("slowest", lambda one: one.slowest),
)


def table_of(qualities: Iterable[Quality]) -> str:
    """Return the regrets as Markdown: each kernel, then the median of all and the worst; of tau the least."""
    rows = list(qualities)
    names = [name for name, _ in _COLUMNS]
    lines = [f"| kernel | measured | best | {' | '.join(names)} |", f"|---|---|---{'|---' * len(names)}|"]
    for one in rows:
        count = f"{one.measured_count} of {one.feasible_count}" + ("" if one.is_complete else ", unfinished")
        cells = [f"{value(one):.3f}" for _, value in _COLUMNS]
        lines.append(f"| {one.label} | {count} | {one.best_us:.1f} us | {' | '.join(cells)} |")
    whole = [one for one in rows if one.is_complete]
    if whole:
        columns = {name: [value(one) for one in whole] for name, value in _COLUMNS}
        medians = [statistics.median(values) for values in columns.values()]
        worst = [min(values) if name == "tau" else max(values) for name, values in columns.items()]
        for title, cells_of in (("median", medians), ("worst", worst)):
            lines.append(f"| **{title} of {len(whole)}** | | | {' | '.join(f'{one:.3f}' for one in cells_of)} |")
    return "\n".join(lines) + "\n"
