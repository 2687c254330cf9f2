"""`make mutate`: weakens the templates in every place where something waits, orders, guards or bounds, and sees who notices.

Goes on where it was left; what is known of a mutant holds until its line, its column or its kind is another.
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
from small_problems import FAMILIES, Prepared, prepare, problems_of

# Whole families first.
FIRST = (
    "scan_forward_channels", "parts/channels", "persistent_forward", "parts/recurrent", "parts/tile_state", "ptx/",
    "scan_forward_time", "parts/time", "parts/step", "parts/affine", "scan_backward_channels", "scan_backward_time",
    "persistent_backward",
)  # fmt: skip


def main() -> int:
    """Run the mutants that no result is known of yet."""
    parser = argparse.ArgumentParser(prog="make mutate", description=__doc__)
    parser.add_argument("--only", default="", help="templates whose names have this in them")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no other mutant after so many")
    parser.add_argument("--again", choices=("missed", "survived", "all"), help="run these anew")
    parser.add_argument("--page", action="store_true", help="only write the page")
    arguments = parser.parse_args()
    results = json.loads(RESULTS.read_text())["mutants"] if RESULTS.exists() else []
    known = {one["key"]: one for one in results}
    bench = Bench([] if arguments.page else _prepared())
    if bench.prepared:
        started = time.perf_counter()
        bench.control()
        print(f"the originals are told from nothing, {time.perf_counter() - started:.0f} s", flush=True)
    keys = {mutant.key for mutant in bench.mutants}
    known = {key: one for key, one in known.items() if key in keys}
    settled = {key for key, one in known.items() if not _is_wanted(one, arguments.again, reasons())}
    order = sorted(range(len(bench.mutants)), key=lambda one: _rank(bench.mutants[one].template))
    wanted = [one for one in order if arguments.only in bench.mutants[one].template]
    left = [one for one in wanted if bench.mutants[one].key not in settled]
    ends = time.monotonic() + 60 * arguments.minutes
    for done, number in enumerate(left if not arguments.page else (), 1):
        if time.monotonic() > ends:
            break
        outcome = bench.run(number)
        known[outcome["key"]] = outcome
        _write(bench, known)
        print(
            f"{done}/{len(left)} {outcome['seconds']:5.1f} s  {bench.mutants[number].name[:110]}  {_said(outcome)}", flush=True
        )
    write_page(page_of(bench.mutants, known, reasons()))
    return 0


def _prepared() -> list[Prepared]:
    prepared = []
    for family in (*FAMILIES, "step"):
        for problem in problems_of(family):
            try:
                prepared.append(prepare(problem))
            except AssertionError as wrong:
                print(f"left out: {problem}: {wrong}", file=sys.stderr)
    print(f"{len(prepared)} problems", flush=True)
    return prepared


def _write(bench: Bench, known: dict[str, dict[str, object]]) -> None:
    mutants = [known[one.key] for one in bench.mutants if one.key in known]
    lines = ",\n".join(json.dumps(one) for one in mutants)
    temporary = Path(f"{RESULTS}.new")
    temporary.write_text(f'{{"mutants": [\n{lines}\n]}}\n')
    temporary.replace(RESULTS)


def _is_wanted(one: dict[str, object], again: str | None, explained: Container[str]) -> bool:
    survived = again is not None and one["outcome"] != "killed"
    return again == "all" or (survived and (again == "survived" or one["key"] not in explained))


def _rank(template: str) -> int:
    return next((rank for rank, one in enumerate(FIRST) if template.startswith(one)), len(FIRST))


def _said(outcome: dict[str, object]) -> str:
    return str(outcome.get("by") or outcome["outcome"])


if __name__ == "__main__":
    sys.exit(main())
