"""The page of the mutation test: its score, and every survivor with the reason why it is equivalent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mutate.places import Mutant

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "mutations.json"
PAGE = ROOT / "docs" / "mutations.md"
# Why survivors are equivalent to the original, by key.
REASONS = Path(__file__).with_name("reasons.json")

HOW = (
    ("race", "a race"),
    ("out of bounds", "an access out of bounds"),
    ("uninitialized", "a read of uninitialized memory"),
    ("misaligned", "a misaligned access"),
    ("deadlock", "a deadlock"),
    ("divergence", "a barrier or a warp operation that some threads do not reach"),
    ("mbarrier", "an mbarrier or a copy used wrongly"),
    ("copy", "an mbarrier or a copy used wrongly"),
    ("wrong", "a wrong result"),
    ("refused", "a compiler that refuses"),
    ("crashes", "a crash"),
    ("does not end", "a kernel that does not end"),
)

HEAD = """# Mutants

The mutation test asks whether the [kernels on a CPU](interpret.md) would notice a fault in a template. `make mutate` makes the
faults, one at a time:

- it removes or weakens every barrier, wait, commit, `expect_tx`, remote store and asynchronous copy;
- it makes every relaxed or atomic access a plain one, and leaves half of the lanes out of every shuffle;
- it turns every predicate and mask that is known only at run time into true, and moves every bound by one.

Each mutant is rendered, compiled and run on small problems that have its line, under up to eight seeds each. A finding, a wrong
result or the compiler *kills* it. The original's own code runs under one seed: under all of them no problem reports
anything of the originals.

Five things are left out:

- microbenchmarks, which measure a GPU and are no kernels;
- the exchange between GPUs, whose launches wait for each other: an emulated launch has all ranks, and is the only one;
- the C of the [CPU target](cpu.md) and of exports, which runs on hosts: the sanitizers of the C compiler watch it;
- the waits of debug builds, which have no clock when emulated;
- the assembly in `templates/ptx`, with its `volatile`, `relaxed`, `release` and `acquire`, whose CPU twins are not the text
  that a GPU runs. Instead every call of a wrapper that waits, orders, sends, loads or copies is weakened. Wrappers that
  compute have no such call: the `volatile` of `opaque` and of `tf32_of` saves registers and orders nothing.

Choices between constants of a plan are no predicates.

`make mutate` writes this page and `benchmarks/mutations.json`, with what killed each mutant, and goes on where it was left. An
*equivalent* mutant is no fault, for the reason in `tests/mutate/reasons.json`. A survivor without a reason counts as missed,
and so does a mutant that no problem renders.
"""


def page_of(mutants: Sequence[Mutant], known: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, str]) -> str:
    """Return the page, of what is known of the mutants."""
    run = [mutant for mutant in mutants if mutant.key in known]
    killed = [mutant for mutant in run if known[mutant.key]["outcome"] == "killed"]
    survivors = [mutant for mutant in run if known[mutant.key]["outcome"] != "killed"]
    explained = [mutant for mutant in survivors if mutant.key in reasons]
    judged = len(run) - len(explained)
    seconds = [known[mutant.key]["seconds"] for mutant in run]
    lines = [
        HEAD,
        "## Score",
        "",
        f"**{1000 * len(killed) // max(judged, 1) / 10} %**: {len(killed)} of {judged} mutants are killed.",
        f"{len(explained)} others are equivalent; the reasons are below.",
        "",
        f"{len(mutants) - len(run)} of {len(mutants)} were **not run yet**.",
        f"A mutant takes {median(seconds or [0]):.1f} s (median).",
        "",
        "| killed by | mutants |",
        "|---|---|",
        *(f"| {how} | {count} |" for how, count in Counter(_how(known[mutant.key]["by"]) for mutant in killed).most_common()),
        "",
        *_table("what was done", run, known, reasons, lambda mutant: mutant.kind),
        *_table("template", mutants, known, reasons, lambda mutant: f"`{mutant.template}`"),
        "## Survivors",
        "",
    ]
    missed = [mutant for mutant in survivors if mutant.key not in reasons]
    lines += ["Missed:", "", *_listed(missed, known, {}), ""] if missed else ["None is missed.", ""]
    lines += ["Equivalent:", "", *_listed(explained, known, reasons)]
    return "\n".join(lines).rstrip() + "\n"


def _table(
    head: str, mutants: Sequence[Mutant], known: Mapping[str, Any], reasons: Mapping[str, str], of: Any
) -> Iterable[str]:
    yield from (f"| {head} | mutants | not run | killed | equivalent | missed |", "|---|---|---|---|---|---|")
    for name in dict.fromkeys(map(of, mutants)):
        group = [mutant for mutant in mutants if of(mutant) == name]
        run = [mutant for mutant in group if mutant.key in known]
        killed = sum(known[mutant.key]["outcome"] == "killed" for mutant in run)
        explained = sum(known[mutant.key]["outcome"] != "killed" and mutant.key in reasons for mutant in run)
        yield f"| {name} | {len(group)} | {len(group) - len(run)} | {killed} | {explained} | {len(run) - killed - explained} |"
    yield ""


def _listed(mutants: Sequence[Mutant], known: Mapping[str, Any], reasons: Mapping[str, str]) -> Iterable[str]:
    for mutant in mutants:
        result = known[mutant.key]
        note = "; no problem renders it" if result["outcome"] == "not rendered" else ""
        is_same = result.get("same_code") and result["same_code"] == result["problems"]
        note += "; compiled to the same code everywhere" if is_same else ""
        yield f"- `{mutant.template}`, line {mutant.line}, {mutant.kind}{note}: `{_shown(mutant)}`"
        if mutant.key in reasons:
            yield f"  {reasons[mutant.key]}"


def _shown(mutant: Mutant) -> str:
    return " ".join(f"{mutant.was} → {mutant.replacement or 'nothing'}".split())


def _how(by: str) -> str:
    return next((how for start, how in HOW if by.startswith(start)), by.partition(":")[0])


def reasons() -> dict[str, str]:
    """Return why survivors are equivalent to the original, by key."""
    reasons_by_key: dict[str, str] = {}
    for entry in json.loads(REASONS.read_text()):
        for key in entry["mutants"]:
            reasons_by_key[key] = entry["why"]
    return reasons_by_key


def write_page(page: str) -> None:
    """Write the page."""
    PAGE.write_text(page)
