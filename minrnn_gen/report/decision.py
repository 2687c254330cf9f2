"""The decision for one kernel as a page: one self-contained HTML file without scripts or network access."""

from __future__ import annotations

import re
from collections import Counter
from html import escape

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.explain import strategy_in_words, variables_in_words
from minrnn_gen.build.overview import overview
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.plan.kernel_plan import SEQUENTIAL_TERMS, KernelPlan, total_us
from minrnn_gen.plan.solver import Solution
from minrnn_gen.report.drawing import Point, bars, memory_map, search_space, values_of_variables
from minrnn_gen.report.page import facts, page, section
from minrnn_gen.report.timeline import html_of, timeline_of

# Points nearer than this, as shares of a time and as bytes, are drawn as one.
SAME_TIME, SAME_BYTES = 0.01, 1024


def decision_page(built: BuiltKernel, solution: Solution, profile: GpuProfile, note: str = "") -> str:
    """Return the page of one built kernel; `solution` has the candidates of the choice, `note` says how the GPU was chosen."""
    plan = built.plan
    title = f"{plan.title}, for {plan.problem.gpu}"
    most_bytes, timeline = profile.shared_bytes_per_block_max, timeline_of(plan)
    sections = [
        facts(_decision(built, profile, note)),
        '<div class="two">',
        section(
            "The search space",
            f"{plan.prediction.candidate_count:,} candidates fit, {sum(plan.prediction.rejected.values()):,} do not. "
            "A larger dot stands for several.",
            f'<div class="scroll">{_space(plan, solution)}</div>',
        ),
        section(
            "What each choice costs",
            "The best predicted time with each value of a variable; the pick's are blue.",
            _values(plan, solution),
        ),
        section("Predicted time", _how_combined(plan), _terms(plan)),
        section(timeline.title, timeline.words, html_of(timeline)),
        section(
            "Slack of each constraint",
            "The pick's use of the GPU's limits; red where less than 5 % is left.",
            _slack(plan),
        ),
        section("Runners-up", "The next best candidates, as predicted.", _runners_up(plan))
        if plan.prediction.runners_up
        else "",
        section("Rejected", "Points of the search space, by the first constraint that fails.", _rejected(built))
        if any(plan.prediction.rejected.values()) or built.dropped
        else "",
        "</div>",
        section(
            "Shared memory of a block",
            "To scale.",
            f'<div class="scroll">{memory_map(plan.budget.shared_map, most_bytes)}</div>',
        )
        if plan.budget.shared_map
        else "",
        "<h2>The plan and its CUDA</h2>",
        f'<div class="beside"><aside>{facts(_numbers(plan))}</aside><pre>{_code(built.source)}</pre></div>',
    ]
    return page(title, sections)


def _decision(built: BuiltKernel, profile: GpuProfile, note: str) -> list[tuple[str, str]]:
    plan = built.plan
    rows = [
        ("gpu", f"{plan.problem.gpu} ({plan.problem.arch}){note}"),
        ("sizes", f"planned for batch {plan.problem.batch}, time {plan.problem.time}; valid for all"),
        ("chosen", variables_in_words(plan.variables)),
    ]
    rows += [("because", built.chosen)] if built.chosen else []
    rows += [("strategy", strategy)] if (strategy := strategy_in_words(plan)) else []
    return rows + overview(plan, built.cell, profile.memory_bytes)


def _points(solution: Solution) -> list[Point]:
    """Return the candidates as points, coinciding ones merged."""
    places: Counter[tuple[int, int]] = Counter()
    first: dict[tuple[int, int], tuple[float, int]] = {}
    for candidate in solution.candidates:
        us = float(total_us(solution.family.predicted_us(solution.problem, candidate)))
        size = solution.family.resources(solution.problem, candidate).shared_bytes
        place = (round(_log(us) / SAME_TIME), size // SAME_BYTES)
        places[place] += 1
        first.setdefault(place, (us, size))
    return [Point(*first[place], count) for place, count in places.items()]


def _log(us: float) -> float:
    import math

    return math.log(max(us, 1e-9))


def _space(plan: KernelPlan, solution: Solution) -> str:
    return search_space(_points(solution), Point(plan.predicted_total_us, plan.budget.shared_bytes))


def _values(plan: KernelPlan, solution: Solution) -> str:
    best: dict[str, dict[int, float]] = {name: {} for name in plan.variables}
    for candidate in solution.candidates:
        us = float(total_us(solution.family.predicted_us(solution.problem, candidate)))
        for name, value in candidate.items():
            best[name][value] = min(us, best[name].get(value, us))
    return values_of_variables(best, plan.variables)


def _how_combined(plan: KernelPlan) -> str:
    rates = (
        f"not measured on this GPU: {', '.join(plan.prediction.assumed_rates)}"
        if plan.prediction.assumed_rates
        else "every rate of the GPU was measured"
    )
    how = "by terms that partly overlap" if plan.prediction.predicted_us.keys() - SEQUENTIAL_TERMS else "the sum of its terms"
    return f"{plan.predicted_total_us:,.1f} us for batch {plan.problem.batch}, time {plan.problem.time}, {how}; {rates}."


def _terms(plan: KernelPlan) -> str:
    total = plan.predicted_total_us
    rows = [(name, us, total, f"{us:,.2f}") for name, us in plan.prediction.predicted_us.items()]
    return bars([*rows, ("together", total, total, f"{total:,.2f}")], "term", "us")


def _slack(plan: KernelPlan) -> str:
    rows = [
        (margin.constraint, margin.used, margin.limit, f"{margin.used:,g} of {margin.limit:,g} {margin.unit}".strip())
        for margin in plan.prediction.margins
    ]
    return bars(rows, "constraint", "used of limit", warns=True)


def _runners_up(plan: KernelPlan) -> str:
    slowest = max(other.predicted_us for other in plan.prediction.runners_up)
    pick = ("the pick", plan.predicted_total_us, slowest, f"{plan.predicted_total_us:,.2f}")
    others = []
    for other in plan.prediction.runners_up:
        differs = [f"{name} {value}" for name, value in other.variables.items() if plan.variables.get(name) != value]
        others.append((", ".join(differs), other.predicted_us, slowest, f"{other.predicted_us:,.2f}"))
    return bars([pick, *others], "differs in", "us")


def _rejected(built: BuiltKernel) -> str:
    counts = [(name, count) for name, count in built.plan.prediction.rejected.items() if count]
    most = max((count for _, count in counts), default=1)
    broken = "".join(f"<p>After compiling: {escape(reason)}</p>" for reason in built.dropped)
    return bars([(name, count, most, f"{count:,}") for name, count in counts], "constraint", "points") + broken


def _numbers(plan: KernelPlan) -> list[tuple[str, str]]:
    """Return the numbers of the plan from which the text below is rendered."""
    rows = [(name, str(value)) for name, value in plan.variables.items()]
    rows += [
        ("template", plan.template),
        ("threads", f"{plan.launch.threads:,}"),
        ("channels per block", f"{plan.launch.channels_per_block:,}"),
        ("steps per tile", f"{plan.launch.tile_steps:,}"),
        ("blocks per SM", f"{plan.budget.blocks_per_sm:,}"),
        ("registers per thread", f"{plan.budget.registers_per_thread} (about {plan.budget.registers_estimated} needed)"),
        ("shared bytes", f"{plan.budget.shared_bytes:,}"),
        *((name, f"{value:,}") for name, value in plan.launch.partition.items()),
    ]
    return rows


def _code(source: str) -> str:
    """Return CUDA text with its comments and the numbers of the plan marked."""
    text = escape(source, quote=False)
    text = re.sub(r"(//[^\n]*)", r"<i>\1</i>", text)
    return re.sub(r"(?m)^(\s*constexpr [^\n<]*?= )([^;\n<]+);", r"\1<b>\2</b>;", text)
