"""Rows as Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from benchmarks.problems.scan_problems import Problem
from benchmarks.report.record import COPY, PEAK_MIB, Record, Row

LIMIT, PATH, BEST = "limit", "path", "of the best"
OURS = "minrnn-gen"
# Fact of a row: the seconds from compile(), or from the start of a build, to the first results.
FIRST_CALL = "first_call_seconds"
# Facts of a row: what many calls and tracing anew have left over.
GROWN, TARGETS, RECORDED = LEFT_BEHIND = "bytes grown", "targets registered", "calls recorded"
# The longest failure that stands in a cell; a longer one is a note below the table.
INLINE_CHARACTERS = 20
# ninja's line for a step of a build: where a build stops without a message, its last line is such a command.
_BUILD_STEP = re.compile(r"\[(\d+)/(\d+)\] /")


def table_text(rows: Sequence[Row]) -> str:
    """Return a table with a line for every problem and a column for every contender, and the failures below it.

    A cell is the median in ms, or in the unit of the heading. In brackets are the share of the copy's speed and the largest
    relative error; the table `accuracy` has the errors alone. The limit and the path of a dense cell have columns where any row
    has them.
    """
    names = contenders(rows)
    notes: dict[str, int] = {}
    problems = by_problem(rows)
    limits = [milliseconds(problem.limit_ms) for problem in problems]
    paths = [_path(by_name) for by_name in problems.values()]
    behind = {LIMIT: limits, PATH: paths}
    behind = {name: cells for name, cells in behind.items() if any(cells)}
    lines = [heading(rows[0].problem.heading if rows else "", (*names, *behind))]
    for index, (problem, by_name) in enumerate(problems.items()):
        lines.append(line(problem, names, by_name, notes, [cells[index] for cells in behind.values()]))
    text = "\n".join(lines) + "\n"
    if notes:
        text += "\n" + "\n".join(f"[{number}] {sentence}  " for sentence, number in notes.items()) + "\n"
    return text


def whole_text(rows: Sequence[Row]) -> str:
    """Return the table of `rows`, followed by the shares of kernels and the first calls where rows have them."""
    if rows and rows[0].problem.table == "sizes":
        return sizes_text(rows)
    if any(row.problem.layers is not None for row in rows):
        return layers_text(rows)
    texts = (table_text(rows), shares_text(rows), first_calls_text(rows), left_behind_text(rows), peaks_text(rows))
    return "\n".join(filter(None, texts))


def layers_text(rows: Sequence[Row]) -> str:
    """Return a table of layers with a line for every layer and kind; a cell is forward / training step, where both are there.

    The last columns are our share of the time of the best of the others, its goal, and what the goal waits for. Below stands
    how many times reach the goal.
    """
    names = contenders(rows)
    notes: dict[str, int] = {}
    layers = _tasks_of_layers(rows)
    shares = {problem: share_of_best(by_name) for problem, by_name in by_problem(rows).items()}
    sizes = rows[0].problem.heading + (": forward / training step" if len(shares) > len(layers) else "")
    lines = [heading(sizes, (*names, BEST, "goal"))]
    for layer, tasks in layers.items():
        cells = [
            " / ".join(cell_text(by_name[name], by_name.get(COPY), notes) for _, by_name in tasks if name in by_name)
            for name in names
        ]
        compared = [shares[problem] for problem, _ in tasks]
        cells.append(" / ".join("-" if share is None else f"{share:.2f}" for share in compared) if any(compared) else "")
        cells.append("" if layer.goal is None else f"{layer.goal:g}")
        lines.append(f"| {layer.label} | {' | '.join(cells)} |")
    below = [*_notes(notes), *_goals(shares)]
    text = "\n".join([*lines, *([""] if below else []), *below]) + "\n"
    return "\n".join(filter(None, (text, peaks_text(rows))))


def peaks_text(rows: Sequence[Row]) -> str:
    """Return a table of the peak memory of runs in MiB, the tasks of a layer in one cell; empty where no row has any."""
    measured = [row for row in rows if PEAK_MIB in row.facts]
    names = contenders(measured)
    if not names:
        return ""
    layers = _tasks_of_layers(measured)
    tasks = ": forward / training step" if any(len(of_layer) > 1 for of_layer in layers.values()) else ""
    lines = [heading(f"peak memory, MiB: {rows[0].problem.size_names}{tasks}", names)]
    for layer, by_task in layers.items():
        cells = (
            " / ".join(f"{float(by_name[name].facts[PEAK_MIB]):.3g}" for _, by_name in by_task if name in by_name)
            for name in names
        )
        lines.append(f"| {layer.label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _tasks_of_layers(rows: Sequence[Row]) -> dict[Problem, list[tuple[Problem, dict[str, Row]]]]:
    """Return the tasks of each layer, forward and training step, with their rows by contender."""
    layers: dict[Problem, list[tuple[Problem, dict[str, Row]]]] = {}
    for problem, by_name in by_problem(rows).items():
        layers.setdefault(problem.model_copy(update={"task": "forward"}), []).append((problem, by_name))
    return layers


def sizes_text(rows: Sequence[Row]) -> str:
    """Return a table of our shares of the time of the best of the others, forward / training step, over batch and units.

    Below stand how many are within the goal, and those that take longer than the best of the others.
    """
    shares = {problem: share_of_best(by_name) for problem, by_name in by_problem(rows).items()}
    batches = sorted({problem.batch for problem in shares})
    lines = [heading("units, precision", [f"batch {batch}" for batch in batches])]
    layers: dict[tuple[str, int, str], dict[int, list[float | None]]] = {}
    for problem, share in shares.items():
        cells = layers.setdefault((str(problem.model), problem.channels, problem.arithmetic), {})
        cells.setdefault(problem.batch, []).append(share)
    for (model, units, arithmetic), cells in layers.items():
        texts = (" / ".join("-" if share is None else f"{share:.2f}" for share in cells.get(batch, ())) for batch in batches)
        lines.append(f"| {model} {units} {arithmetic} | {' | '.join(texts)} |")
    slower = [f"{problem.label} ({share:.2f})" for problem, share in shares.items() if share is not None and share > 1.0]
    below = [*_goals(shares), f"Slower than the best of the others: {'; '.join(slower) if slower else 'none'}."]
    return "\n".join([*lines, "", *below]) + "\n"


def share_of_best(rows: Mapping[str, Row]) -> float | None:
    """Return our time as a share of the shortest correct time among the others, None where either is missing."""
    ours, best = rows.get(OURS), best_alternative(rows)
    if ours is None or not ours.ms or not ours.is_right or best is None or not best.ms:
        return None
    return ours.ms / best.ms


def best_alternative(rows: Mapping[str, Row]) -> Row | None:
    """Return the fastest correct row that is neither ours nor a copy."""
    others = [row for name, row in rows.items() if name not in (OURS, COPY) and row.ms and row.is_right]
    return min(others, key=lambda row: row.ms or 0.0, default=None)


def _goals(shares: Mapping[Problem, float | None]) -> list[str]:
    """Return how many of the times with a share reach their goal."""
    reached = [share <= problem.goal for problem, share in shares.items() if share is not None and problem.goal is not None]
    return [f"Within the goal: {sum(reached)} of {len(reached)} times."] if reached else []


def _notes(notes: Mapping[str, int]) -> list[str]:
    return [f"[{number}] {sentence}  " for sentence, number in notes.items()]


def contenders(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the contenders of `rows`, in the order of their first rows."""
    return tuple(dict.fromkeys(row.contender for row in rows))


def by_problem(rows: Sequence[Row]) -> dict[Problem, dict[str, Row]]:
    """Return {problem: {contender: row}}, in the order of the rows."""
    problems: dict[Problem, dict[str, Row]] = {}
    for row in rows:
        problems.setdefault(row.problem, {})[row.contender] = row
    return problems


def _path(rows: Mapping[str, Row]) -> str:
    """Return the path of the first row, which is the kernel as planned; empty where that row has none."""
    first, *_ = rows.values()
    return str(first.facts.get(PATH, ""))


def heading(problem: str, names: Sequence[str]) -> str:
    """Return the first two lines of a table."""
    return f"| {problem} | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}"


def line(
    problem: Problem, names: Sequence[str], rows: Mapping[str, Row], notes: dict[str, int], behind: Sequence[str] = ()
) -> str:
    """Return the line of a problem with `behind` as its last cells; `notes` {sentence: number} grows by long failures."""
    copied = rows.get(COPY)
    cells = (cell_text(rows[name], copied, notes) if name in rows else "" for name in names)
    return f"| {problem.label} | {' | '.join((*cells, *behind))} |"


def cell_text(row: Row, copied: Row | None, notes: dict[str, int]) -> str:
    """Return the cell of a row: its time, its failure, or the error where that exceeds the tolerance."""
    if row.failure is not None:
        if len(row.failure) <= INLINE_CHARACTERS:
            return row.failure
        step = _BUILD_STEP.match(row.failure)
        why = f"its build stopped in step {step[1]} of {step[2]}, without a message" if step else row.failure
        sentence = f"{row.contender}: {why}".replace("|", "\\|")
        return f"fails [{notes.setdefault(sentence, len(notes) + 1)}]"
    if row.problem.table == "accuracy":
        return ", ".join(f"{name} " + ("NaN" if error is None else f"{error:.1e}") for name, error in row.errors.items())
    if not row.is_right:
        return "error NaN" if row.worst_error is None else f"error {row.worst_error:.1e}"
    share = None if copied is None or copied is row or not copied.ms or not row.ms else copied.ms / row.ms
    remarks = [f"{share:.0%}".replace("%", " %")] if share is not None else []
    remarks += [f"{row.worst_error:.0e}"] if row.worst_error is not None else []
    return time_text(row) + (f" ({', '.join(remarks)})" if remarks else "")


def time_text(row: Row) -> str:
    """Return the time of a row in the unit of its table."""
    return milliseconds(None if row.ms is None else row.ms * row.problem.units_per_ms)


def milliseconds(ms: float | None) -> str:
    """Return a time with three significant digits and no exponent."""
    if ms is None:
        return ""
    return f"{ms:.0f}" if ms >= 99.95 else f"{ms:#.3g}"


def shares_text(rows: Sequence[Row]) -> str:
    """Return a table of the kernels that the rows launched, with their shares of the time; empty where no row has any."""
    lines = [
        f"| {row.problem.label} | `{name}` | {share:.0%} |".replace("%", " %")
        for row in rows
        for name, share in sorted(row.shares.items(), key=lambda item: -item[1])
    ]
    if not lines:
        return ""
    return "\n".join([f"| {rows[0].problem.heading} | kernel | share of the time |", "|---|---|---|", *lines]) + "\n"


def first_calls_text(rows: Sequence[Row]) -> str:
    """Return a table of the durations of first calls, with nothing in a cache; empty where no row has any."""
    timed = [row for row in rows if FIRST_CALL in row.facts]
    names = contenders(timed)
    if not names:
        return ""
    lines = [heading(f"first call, s: {rows[0].problem.heading}", names)]
    for problem, by_name in by_problem(timed).items():
        seconds = (f"{float(by_name[name].facts[FIRST_CALL]):.3g}" if name in by_name else "" for name in names)
        lines.append(f"| {problem.label} | {' | '.join(seconds)} |")
    return "\n".join(lines) + "\n"


def left_behind_text(rows: Sequence[Row]) -> str:
    """Return a table of what many calls have left over; empty where no row says it."""
    counted = [row for row in rows if all(name in row.facts for name in LEFT_BEHIND)]
    if not counted:
        return ""
    lines = [heading(f"left over: {rows[0].problem.size_names}", LEFT_BEHIND)]
    lines += [f"| {row.problem.label} | {' | '.join(str(row.facts[name]) for name in LEFT_BEHIND)} |" for row in counted]
    return "\n".join(lines) + "\n"


def provenance(record: Record) -> str:
    """Return the command, the GPU and the versions of a record as a sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    driver = f", driver {record.driver}" if record.driver else ""
    partly = "" if record.is_complete else "; the run was not completed"
    return f"Made by `{record.command}` on an {record.gpu}{driver} ({versions}){partly}."
