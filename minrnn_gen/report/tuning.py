"""Page of a tuning: each kernel's candidates as predicted and as measured, in one HTML file that loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minrnn_gen.build.explain import variables_in_words
from minrnn_gen.report.chart import SCRIPT, STYLE, Cell, Line, Scales, chart, table
from minrnn_gen.report.page import facts, page, section

# As the names of libraries in figures: what the solver would take, and what was the fastest.
_MEASURED, _FIRST, _FASTEST = "#8c959f", "#CC3311", "#0072B2"


def html_of(kernels: Sequence[Mapping[str, Any]]) -> str:
    """Return the results of kernels as a page; each is `pool.summary_of` with its `spec`."""
    titles = [f"{kernel['spec']}: {kernel['model']}, {kernel['pass']}" for kernel in kernels]
    sections = [
        section(title, "", facts(_summary(kernel)) + _chart(kernel["raced"], kernel) + _table(kernel["raced"], kernel))
        for title, kernel in zip(titles, kernels, strict=True)
    ]
    devices = ", ".join(dict.fromkeys(kernel["device"] for kernel in kernels))
    return page("minrnn-gen tune" + (f", {devices}" if devices else ""), sections, STYLE, SCRIPT)


def _summary(kernel: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(kernel["candidates"].items()))
    rows = [("candidates", f"{counts or 'none'}, of {kernel['feasible']:,} that fit"), ("ended", str(kernel["ended"]))]
    first_us, best_us = kernel["first_us"], kernel["best_us"]
    if best_us is not None:
        rows.append(("fastest", f"{best_us:,.4g} us, {variables_in_words(kernel['variables'])}"))
    if first_us is not None and best_us is not None:
        rows.append(("the solver's first pick", f"{first_us:,.4g} us, {first_us / best_us:.2f} times the fastest"))
    return rows


def _chart(raced: Sequence[Mapping[str, Any]], kernel: Mapping[str, Any]) -> str:
    """Return the measured candidates by predicted and measured time: below the diagonal they are faster than predicted."""
    groups: dict[str, list[tuple[float, float, str]]] = {name: [] for name in ("fastest", "first pick", "measured")}
    for number, candidate in enumerate(raced):
        measured_us, predicted_us = candidate["median_us"], candidate["predicted_us"]
        if measured_us is None or predicted_us <= 0:
            continue
        is_first = number == 0 and measured_us == kernel["first_us"]
        name = "fastest" if _is_fastest(candidate, kernel) else "first pick" if is_first else "measured"
        says = f"{measured_us:,.4g} us, predicted {predicted_us:,.4g} us: {variables_in_words(candidate['variables'])}"
        groups[name].append((predicted_us, measured_us, says))
    colors = {"fastest": _FASTEST, "first pick": _FIRST, "measured": _MEASURED}
    # The first lines are drawn below the others.
    lines = [
        Line(name, groups[name], colors[name], dash=None) for name in ("measured", "first pick", "fastest") if groups[name]
    ]
    scales = Scales("predicted, us", "measured, us; the diagonal is what was predicted", True, True, has_diagonal=True)
    return chart(lines, scales) if lines else ""


def _table(raced: Sequence[Mapping[str, Any]], kernel: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(name for candidate in raced for name in candidate["variables"]))
    rows = []
    for candidate in sorted(raced, key=lambda candidate: (candidate["median_us"] is None, candidate["median_us"] or 0.0)):
        times = (candidate["median_us"], candidate["predicted_us"])
        cells = [Cell("" if us is None else f"{us:,.4g}", us, _is_fastest(candidate, kernel)) for us in times]
        values = (candidate["variables"].get(name) for name in names)
        cells += [Cell("" if value is None else str(value), value) for value in values]
        rows.append([*cells, Cell(candidate["family"]), Cell(candidate["outcome"])])
    return table(["measured, us", "predicted, us", *names, "template", "outcome"], rows) if rows else ""


def _is_fastest(candidate: Mapping[str, Any], kernel: Mapping[str, Any]) -> bool:
    return (candidate["family"], dict(candidate["variables"])) == (kernel["family"], kernel["variables"])
