"""`make mutate`: runs the mutation test of the templates, whose mutants are in places.py.

Goes on where it was left; a result holds until the line, the column or the kind of its mutant changes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Container
from pathlib import Path

from report import RESULTS, page_of, reasons, write_page
from runner import Bench
from support.small_problems import FAMILIES, Prepared, prepare, problems_of

# Whole families first.
FIRST = (
    "scan_forward_channels", "parts/channels", "parts/columns", "parts/tile_state",
    "scan_forward_cooperative", "scan_backward_cooperative", "parts/cooperative",
    "persistent_forward", "parts/persistent", "parts/exchange", "parts/grid", "ptx/",
    "scan_forward_time", "parts/time", "parts/step", "parts/affine", "scan_backward_channels", "scan_backward_time",
    "persistent_backward", "large_batch", "parts/large_batch",
)  # fmt: skip


def main() -> int:
    """Run the mutants without a result."""
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--only", default="", help="templates whose names contain this")
    parser.add_argument("--family", default="", help="problems of families whose names contain this, and no others")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no other mutant after so many")
    parser.add_argument("--again", choices=("missed", "survived", "all"), help="run these mutants again")
    parser.add_argument("--page", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text())["mutants"] if RESULTS.exists() else []
    known = {result["key"]: result for result in results}
    bench = Bench([] if arguments.page else _prepared(arguments.family))
    if bench.prepared:
        started = time.perf_counter()
        bench.control()
        print(f"no problem kills an original, {time.perf_counter() - started:.0f} s", flush=True)
    keys = {mutant.key for mutant in bench.mutants}
    known = {key: result for key, result in known.items() if key in keys}
    settled = {key for key, result in known.items() if not _is_wanted(result, arguments.again, reasons())}
    order = sorted(range(len(bench.mutants)), key=lambda number: _rank(bench.mutants[number].template))
    wanted = [number for number in order if arguments.only in bench.mutants[number].template]
    left = [number for number in wanted if bench.mutants[number].key not in settled]
    ends = time.monotonic() + 60 * arguments.minutes
    for done, number in enumerate(left if not arguments.page else (), 1):
        if time.monotonic() > ends:
            break
        outcome = bench.run(number)
        known[outcome["key"]] = outcome
        _write(bench, known)
        name = bench.mutants[number].name[:110]
        print(f"{done}/{len(left)} {outcome['seconds']:5.1f} s  {name}  {_summary(outcome)}", flush=True)
    write_page(page_of(bench.mutants, known, reasons()))
    return 0


def _prepared(name_part: str) -> list[Prepared]:
    prepared = []
    for family in (name for name in (*FAMILIES, "step", "dropout") if name_part in name):
        for problem in problems_of(family):
            try:
                prepared.append(prepare(problem))
            except AssertionError as wrong:
                print(f"left out: {problem}: {wrong}", file=sys.stderr)
    print(f"{len(prepared)} problems", flush=True)
    return prepared


def _write(bench: Bench, known: dict[str, dict[str, object]]) -> None:
    results = [known[mutant.key] for mutant in bench.mutants if mutant.key in known]
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
