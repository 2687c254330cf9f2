"""The decision for one kernel as a page: one HTML file that needs nothing else, neither scripts nor a network."""

from __future__ import annotations

import re
from collections import Counter
from html import escape

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.drawing import Point, bars, memory_map, search_space, values_of_variables
from minrnn_gen.build.explain import strategy_in_words, variables_in_words
from minrnn_gen.build.overview import overview
from minrnn_gen.config.gpu_profile import GpuProfile
from minrnn_gen.plan.kernel_plan import KernelPlan, total_us
from minrnn_gen.plan.solver import Solution

# Points nearer than this, as shares of a time and as bytes, are drawn as one.
SAME_TIME, SAME_BYTES = 0.01, 1024

STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --soft: #59636e; --ground: #fff; --line: #d1d9e0; --blue: #0969da;
  --red: #cf222e; --code: #f6f8fa; --comment: #59636e; --number: #0550ae; --other: #8c959f; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1; --ground: #0d1117; --line: #3d444d;
  --blue: #4493f8; --red: #f85149; --code: #151b23; --comment: #9198a1; --number: #79c0ff; --other: #656c76; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 90rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0.4rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 1.6rem 0 0.5rem; }
p { margin: 0.3rem 0; color: var(--soft); }
table { border-collapse: collapse; }
th { text-align: left; font-weight: 600; vertical-align: top; padding: 0.15rem 0.8rem 0.15rem 0; }
td { vertical-align: top; padding: 0.15rem 0.8rem 0.15rem 0; font-variant-numeric: tabular-nums; }
table.facts td { overflow-wrap: anywhere; }
tr.pick { color: var(--blue); font-weight: 600; }
.two { columns: 2 30rem; column-gap: 2.5rem; }
.two > section { break-inside: avoid; padding-top: 0.1rem; }
.scroll { overflow-x: auto; }
svg.wide { display: block; width: 100%; min-width: 30rem; max-width: 60rem; }
svg.bar { width: 9rem; height: 0.7rem; vertical-align: middle; }
svg.key { width: 0.8rem; height: 0.8rem; }
svg text { fill: var(--soft); font: 13px system-ui, sans-serif; }
svg text.pick { fill: var(--blue); font-weight: 600; }
.grid { stroke: var(--line); } .other { fill: var(--other); } circle.other { fill-opacity: 0.8; }
circle.pick { fill: var(--blue); stroke: var(--ground); stroke-width: 2; }
.free { fill: var(--line); fill-opacity: 0.5; } .value { fill: var(--blue); } .full { fill: var(--red); }
.part0 { fill: #0969da; } .part1 { fill: #1a7f37; } .part2 { fill: #bf8700; } .part3 { fill: #8250df; }
.part4 { fill: #bc4c00; } .part5 { fill: #1b7c83; } .part6 { fill: #cf222e; } .part7 { fill: #6e7781; }
.beside { display: grid; grid-template-columns: minmax(14rem, 20rem) minmax(0, 1fr); gap: 1.5rem; }
.beside > aside { position: sticky; top: 1rem; align-self: start; max-height: 95vh; overflow-y: auto; }
pre { margin: 0; padding: 0.8rem; background: var(--code); overflow-x: auto; font: 12px/1.45 ui-monospace, monospace; }
pre i { color: var(--comment); font-style: normal; } pre b { color: var(--number); font-weight: 600; }
@media (max-width: 50rem) { .beside { grid-template-columns: minmax(0, 1fr); }
  .beside > aside { position: static; max-height: none; } svg.bar { width: 5rem; } }
"""


def decision_page(built: BuiltKernel, solution: Solution, profile: GpuProfile, note: str = "") -> str:
    """Return the page of one built kernel; `solution` has the candidates that it was chosen among, `note` how the GPU was."""
    plan = built.plan
    title = f"{plan.entry} of {plan.model}, hidden_size {plan.hidden_size}, {plan.precision}, for {plan.gpu}"
    most_bytes = profile.shared_bytes_per_block_max
    sections = [
        f"<h1>{escape(title)}</h1>",
        _table(_decision(built, profile, note)),
        '<div class="two">',
        _section(
            "The search space",
            f"{plan.candidate_count:,} candidates fit, {sum(plan.rejected.values()):,} do not. A larger dot is several.",
            f'<div class="scroll">{_space(plan, solution)}</div>',
        ),
        _section(
            "What each choice costs",
            "The best predicted time with each value of a variable; the pick's are blue.",
            _values(plan, solution),
        ),
        _section("Predicted time", _how_combined(plan), _terms(plan)),
        _section(
            "Slack of each constraint",
            "What the pick uses of what the GPU allows; red where less than 5 % is left.",
            _slack(plan),
        ),
        _section("Runners-up", "The next best candidates, as predicted.", _runners_up(plan)) if plan.runners_up else "",
        _section("Rejected", "Points of the search space, by the first constraint that fails.", _rejected(built)),
        "</div>",
        _section(
            "Shared memory of a block", "To scale.", f'<div class="scroll">{memory_map(plan.shared_map, most_bytes)}</div>'
        )
        if plan.shared_map
        else "",
        "<h2>The plan and its CUDA</h2>",
        f'<div class="beside"><aside>{_table(_numbers(plan))}</aside><pre>{_code(built.source)}</pre></div>',
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head><body>\n'
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def _section(title: str, words: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2><p>{escape(words)}</p>{content}</section>"


def _table(rows: list[tuple[str, str]]) -> str:
    lines = "".join(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in rows)
    return f'<table class="facts">{lines}</table>'


def _decision(built: BuiltKernel, profile: GpuProfile, note: str) -> list[tuple[str, str]]:
    plan = built.plan
    rows = [
        ("gpu", f"{plan.gpu} ({plan.arch}){note}"),
        ("sizes", f"planned for batch {plan.batch}, time {plan.time}; valid for all"),
        ("chosen", variables_in_words(plan.variables)),
    ]
    rows += [("because", built.chosen)] if built.chosen else []
    rows += [("strategy", strategy)] if (strategy := strategy_in_words(plan)) else []
    return rows + overview(plan, built.cell, profile.memory_bytes)


def _points(solution: Solution) -> list[Point]:
    """Return the candidates as points, those that lie together as one."""
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
    return search_space(_points(solution), Point(plan.predicted_total_us, plan.shared_bytes))


def _values(plan: KernelPlan, solution: Solution) -> str:
    best: dict[str, dict[int, float]] = {name: {} for name in plan.variables}
    for candidate in solution.candidates:
        us = float(total_us(solution.family.predicted_us(solution.problem, candidate)))
        for name, value in candidate.items():
            best[name][value] = min(us, best[name].get(value, us))
    return values_of_variables(best, plan.variables)


def _how_combined(plan: KernelPlan) -> str:
    rates = f"by datasheets: {', '.join(plan.assumed_rates)}" if plan.assumed_rates else "every rate of the GPU was measured"
    return f"{plan.predicted_total_us:,.1f} us for batch {plan.batch}, time {plan.time}, by terms that partly overlap; {rates}."


def _terms(plan: KernelPlan) -> str:
    total = plan.predicted_total_us
    rows = [(name, us, total, f"{us:,.2f}") for name, us in plan.predicted_us.items()]
    return bars([*rows, ("together", total, total, f"{total:,.2f}")], "term", "us")


def _slack(plan: KernelPlan) -> str:
    rows = [
        (margin.constraint, margin.used, margin.limit, f"{margin.used:,g} of {margin.limit:,g} {margin.unit}".strip())
        for margin in plan.margins
    ]
    return bars(rows, "constraint", "used of limit", warns=True)


def _runners_up(plan: KernelPlan) -> str:
    slowest = max(other.predicted_us for other in plan.runners_up)
    pick = ("the pick", plan.predicted_total_us, slowest, f"{plan.predicted_total_us:,.2f}")
    others = []
    for other in plan.runners_up:
        differs = [f"{name} {value}" for name, value in other.variables.items() if plan.variables.get(name) != value]
        others.append((", ".join(differs), other.predicted_us, slowest, f"{other.predicted_us:,.2f}"))
    return bars([pick, *others], "differs in", "us")


def _rejected(built: BuiltKernel) -> str:
    counts = [(name, count) for name, count in built.plan.rejected.items() if count]
    most = max((count for _, count in counts), default=1)
    broken = "".join(f"<p>After compiling: {escape(reason)}</p>" for reason in built.dropped)
    return bars([(name, count, most, f"{count:,}") for name, count in counts], "constraint", "points") + broken


def _numbers(plan: KernelPlan) -> list[tuple[str, str]]:
    """Return the numbers of the plan that the text below is made of."""
    rows = [(name, str(value)) for name, value in plan.variables.items()]
    rows += [
        ("template", plan.template),
        ("threads", f"{plan.threads:,}"),
        ("channels per block", f"{plan.channels_per_block:,}"),
        ("steps per tile", f"{plan.tile_steps:,}"),
        ("blocks per SM", f"{plan.blocks_per_sm:,}"),
        ("registers per thread", f"{plan.registers_per_thread} (about {plan.registers_estimated} needed)"),
        ("shared bytes", f"{plan.shared_bytes:,}"),
        *((name, f"{value:,}") for name, value in plan.partition.items()),
    ]
    return rows


def _code(source: str) -> str:
    """Return CUDA text with its comments and the numbers of the plan marked."""
    text = escape(source, quote=False)
    text = re.sub(r"(//[^\n]*)", r"<i>\1</i>", text)
    return re.sub(r"(?m)^(\s*constexpr [^\n<]*?= )([^;\n<]+);", r"\1<b>\2</b>;", text)
