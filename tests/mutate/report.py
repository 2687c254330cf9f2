"""The page of the mutation test: its score, and every survivor with the reason why it is no fault."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from places import Mutant

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "mutations.json"
PAGE = ROOT / "docs" / "mutations.md"
# Of survivors by key: why each does nothing that matters.
REASONS = Path(__file__).with_name("reasons.json")

HOW = (
    ("race", "a race"),
    ("out of bounds", "an access out of bounds"),
    ("uninitialised", "a read of unwritten memory"),
    ("unwritten", "a read of unwritten memory"),
    ("misaligned", "a misaligned access"),
    ("deadlock", "a deadlock"),
    ("parted", "a barrier or an operation of a warp that some do not reach"),
    ("mailbox", "an mbarrier or a copy used wrongly"),
    ("copy", "an mbarrier or a copy used wrongly"),
    ("wrong", "a wrong result"),
    ("refused", "a compiler that refuses"),
    ("crashes", "a crash"),
    ("does not end", "a kernel that does not end"),
)

HEAD = """# Mutants

The mutation test asks whether the [kernels on a CPU](interpret.md) would notice a fault in a template. `make mutate`
makes the faults, one at a time:

- it removes or weakens every barrier, wait, commit, expectation, message and asynchronous copy;
- it makes every relaxed or atomic access a plain one, and leaves half of the lanes out of every shuffle;
- it turns every predicate and mask that is known only at run time into true, and moves every bound by one.

Each mutant is rendered, compiled and run on small problems that have its line, under up to eight seeds each. A finding, a wrong
result or the compiler *kills* it. Under the same seeds none of the problems reports anything of the originals.

Three things are left out:

- microbenchmarks, which measure a GPU and are no kernels;
- the waits of debug builds, which have no clock on the host;
- the assembly in `templates/ptx`, with its `volatile`, `relaxed`, `release` and `acquire`: its twins on a CPU are not the text
  that a GPU runs. Instead every call of a wrapper that waits, orders, sends, loads or copies is weakened. Wrappers that compute
  have no such call: the `volatile` of `opaque` and of `tf32_of` saves registers and orders nothing.

Choices between constants of a plan are no predicates.

`make mutate` writes this page and `benchmarks/mutations.json`, with what killed each mutant, and goes on where it was left. An
*equivalent* mutant is no fault, for the reason in `tests/mutate/reasons.json`. A survivor without a reason counts as missed,
and so does a mutant that no problem renders.
"""


def page_of(mutants: Sequence[Mutant], known: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, str]) -> str:
    """Return the page, of what is known of the mutants."""
    run = [one for one in mutants if one.key in known]
    killed = [one for one in run if known[one.key]["outcome"] == "killed"]
    survivors = [one for one in run if known[one.key]["outcome"] != "killed"]
    explained = [one for one in survivors if one.key in reasons]
    judged = len(run) - len(explained)
    seconds = [known[one.key]["seconds"] for one in run]
    lines = [
        HEAD,
        "## Score",
        "",
        f"**{100 * len(killed) / max(judged, 1):.1f} %**: {len(killed)} of {judged} mutants are killed.",
        f"{len(explained)} others are equivalent; the reasons are below.",
        "",
        f"{len(mutants) - len(run)} of {len(mutants)} were **not run yet**.",
        f"A mutant takes {median(seconds or [0]):.1f} s (median).",
        "",
        "| killed by | mutants |",
        "|---|---|",
        *(f"| {how} | {count} |" for how, count in Counter(_how(known[one.key]["by"]) for one in killed).most_common()),
        "",
        *_table("what was done", run, known, reasons, lambda one: one.kind),
        *_table("template", mutants, known, reasons, lambda one: f"`{one.template}`"),
        "## Survivors",
        "",
    ]
    missed = [one for one in survivors if one.key not in reasons]
    lines += ["Missed:", "", *_listed(missed, known, {}), ""] if missed else ["None is missed.", ""]
    lines += ["Equivalent:", "", *_listed(explained, known, reasons)]
    return "\n".join(lines).rstrip() + "\n"


def _table(
    head: str, mutants: Sequence[Mutant], known: Mapping[str, Any], reasons: Mapping[str, str], of: Any
) -> Iterable[str]:
    yield from (f"| {head} | mutants | not run | killed | equivalent | missed |", "|---|---|---|---|---|---|")
    for name in dict.fromkeys(map(of, mutants)):
        its = [one for one in mutants if of(one) == name]
        run = [one for one in its if one.key in known]
        killed = sum(known[one.key]["outcome"] == "killed" for one in run)
        explained = sum(known[one.key]["outcome"] != "killed" and one.key in reasons for one in run)
        yield f"| {name} | {len(its)} | {len(its) - len(run)} | {killed} | {explained} | {len(run) - killed - explained} |"
    yield ""


def _listed(mutants: Sequence[Mutant], known: Mapping[str, Any], reasons: Mapping[str, str]) -> Iterable[str]:
    for one in mutants:
        its = known[one.key]
        said = "; no problem renders it" if its["outcome"] == "not rendered" else ""
        said += "; compiled to the same code everywhere" if its.get("same_code") and its["same_code"] == its["problems"] else ""
        yield f"- `{one.template}`, line {one.line}, {one.kind}{said}: `{_shown(one)}`"
        if one.key in reasons:
            yield f"  {reasons[one.key]}"


def _shown(mutant: Mutant) -> str:
    return " ".join(f"{mutant.was} → {mutant.replacement or 'nothing'}".split())


def _how(by: str) -> str:
    return next((how for start, how in HOW if by.startswith(start)), by.partition(":")[0])


def reasons() -> dict[str, str]:
    """Return why survivors are no faults, by key."""
    found: dict[str, str] = {}
    for entry in json.loads(REASONS.read_text()):
        for key in entry["mutants"]:
            found[key] = entry["why"]
    return found


def write_page(page: str) -> None:
    """Write the page."""
    PAGE.write_text(page)
