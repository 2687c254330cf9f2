"""`make mutate`: runs the mutation test of the templates, whose mutants are in places.py.

Goes on where it was left; a result holds until the line, the column or the kind of its mutant changes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from mutate.report import RESULTS, page_of, reasons, write_page
from mutate.runner import Bench
from support.small_problems import FAMILIES, Prepared, Problem, prepare, problems_of

# Whole families first.
FIRST = (
    "scan_forward_channels", "parts/channels", "parts/columns", "parts/tile_state",
    "scan_forward_cooperative", "scan_backward_cooperative", "parts/cooperative",
    "persistent_forward", "parts/persistent", "parts/exchange", "parts/grid", "ptx/",
    "scan_forward_time", "parts/time", "parts/step", "parts/affine", "scan_backward_channels", "scan_backward_time",
    "persistent_backward", "large_batch", "parts/large_batch",
)  # fmt: skip
EVERY_FAMILY = (*FAMILIES, "step", "pool", "draft", "dropout", "filter")

Item, Answer = TypeVar("Item"), TypeVar("Answer")


def main() -> int:
    """Run the mutants without a result."""
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--only", nargs="+", default=("",), help="templates whose names contain one of these")
    parser.add_argument("--family", nargs="+", choices=EVERY_FAMILY, default=EVERY_FAMILY, help="problems of these families")
    parser.add_argument("--problems", nargs="+", default=("",), help="of these the problems whose names contain one of these")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no other mutant after so many")
    parser.add_argument("--again", choices=("missed", "survived", "all"), help="run these mutants again")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at once")
    parser.add_argument("--page", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    jobs = max(arguments.jobs, 1)
    problems = [problem for family in EVERY_FAMILY for problem in problems_of(family) if family in arguments.family]
    results = json.loads(RESULTS.read_text())["mutants"] if RESULTS.exists() else []
    known = {result["key"]: result for result in results}
    chosen = [problem for problem in problems if any(name in str(problem) for name in arguments.problems)]
    bench = Bench([] if arguments.page else _prepared(chosen, jobs))
    if bench.prepared:
        started = time.perf_counter()
        all(_in_processes(jobs, bench.control, range(len(bench.prepared))))
        print(f"no problem kills an original, {time.perf_counter() - started:.0f} s", flush=True)
    keys = {mutant.key for mutant in bench.mutants}
    known = {key: result for key, result in known.items() if key in keys}
    settled = {key for key, result in known.items() if not _is_wanted(result, arguments.again, reasons())}
    order = sorted(range(len(bench.mutants)), key=lambda number: _rank(bench.mutants[number].template))
    wanted = [number for number in order if any(name in bench.mutants[number].template for name in arguments.only)]
    left = [number for number in wanted if bench.mutants[number].key not in settled]
    if len(chosen) < sum(len(problems_of(family)) for family in EVERY_FAMILY):
        left = [number for number in left if bench.of_mutant[number]]  # other problems may have the line
    ends = time.monotonic() + 60 * arguments.minutes
    for done, outcome in enumerate(_in_processes(jobs, bench.run, left if not arguments.page else ()), 1):
        known[outcome["key"]] = outcome
        _write(bench, known)
        name = f"{outcome['template']}:{outcome['line']} {outcome['kind']}"
        print(f"{done}/{len(left)} {outcome['seconds']:5.1f} s  {name}  {_summary(outcome)}", flush=True)
        if time.monotonic() > ends:
            break
    write_page(page_of(bench.mutants, known, reasons()))
    return 0


def _prepared(problems: Sequence[Problem], jobs: int) -> list[Prepared]:
    # Compiled by many processes; what they leave in the store, this one loads.
    print(f"{sum(_in_processes(jobs, _is_prepared, problems))} problems", flush=True)
    return [prepared for prepared in map(_prepared_or_none, problems) if prepared is not None]


def _is_prepared(problem: Problem) -> bool:
    return _prepared_or_none(problem) is not None


def _prepared_or_none(problem: Problem) -> Prepared | None:
    try:
        return prepare(problem)
    except AssertionError as wrong:
        print(f"left out: {problem}: {wrong}", file=sys.stderr)
        return None


def _in_processes(jobs: int, work: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
    """Yield the answers of `work` as processes that are copies of this one have them; without any it starts none."""
    if not items:
        return
    _WORK.append(work)
    with multiprocessing.get_context("fork").Pool(min(jobs, len(items))) as pool:
        yield from pool.imap_unordered(_answer, items)


# What the processes do that were started last: a copy of a process has its objects, which no other way could give it.
_WORK: list[Callable[..., object]] = []


def _answer(item: object) -> object:
    return _WORK[-1](item)


def _write(bench: Bench, known: dict[str, dict[str, object]]) -> None:
    results = [known[mutant.key] | mutant.place for mutant in bench.mutants if mutant.key in known]
    lines = ",\n".join(map(json.dumps, results))
    temporary = Path(f"{RESULTS}.new")
    temporary.write_text(f'{{"mutants": [\n{lines}\n]}}\n')
    temporary.replace(RESULTS)


def _is_wanted(result: dict[str, object], again: str | None, explained: Container[str]) -> bool:
    survived = again is not None and result["outcome"] != "killed"
    return again == "all" or (survived and (again == "survived" or result["key"] not in explained))


def _rank(template: str) -> int:
    return next((rank for rank, name in enumerate(FIRST) if template.startswith(name)), len(FIRST))


def _summary(outcome: dict[str, object]) -> str:
    return str(outcome.get("by") or outcome["outcome"])


if __name__ == "__main__":
    sys.exit(main())
