"""`python -m mutate.moved REVISION`: results and reasons under the keys that mutants have after a change of words.

A mutant's key has the text of its line, so that a renamed variable or a reworded comment loses its result. Where a template has
the same kinds of mutants in the same order as at a git revision, each result continues under the new key. This is for changes
that `machine_code.py` finds equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence

from mutate.places import Mutant, mutants_of, templates
from mutate.report import REASONS, RESULTS, ROOT, page_of, reasons, write_page


def moved_keys(before: Sequence[Mutant], after: Sequence[Mutant]) -> dict[str, str]:
    """Return the new key of each mutant of a template, by its old one; none where the template's mutants differ."""
    if [mutant.kind for mutant in before] != [mutant.kind for mutant in after]:
        return {}
    return {old.key: new.key for old, new in zip(before, after, strict=True)}


def main() -> int:
    """Write results, reasons and the page anew; 1 where a template has other mutants, which then have to run."""
    parser = argparse.ArgumentParser(prog="python -m mutate.moved", description=__doc__)
    parser.add_argument("revision", help="before the change")
    revision = parser.parse_args().revision
    now = {name: mutants_of(name, text) for name, text in templates().items()}
    mutants = [mutant for of_template in now.values() for mutant in of_template]
    keys, left = {mutant.key for mutant in mutants}, []
    new_keys: dict[str, str] = {}
    for name, after in now.items():
        before = mutants_of(name, _text_at(revision, name))
        moved = moved_keys(before, after)
        new_keys |= {old: new for old, new in moved.items() if old not in keys}
        if len(moved) < len(before):
            left.append(name)
    results = json.loads(RESULTS.read_text())["mutants"]
    known = {new_keys.get(result["key"], result["key"]): result for result in results}
    kept = [known[mutant.key] | mutant.place for mutant in mutants if mutant.key in known]
    RESULTS.write_text('{"mutants": [\n' + ",\n".join(map(json.dumps, kept)) + "\n]}\n")
    entries = json.loads(REASONS.read_text())
    for entry in entries:
        entry["mutants"] = [new_keys.get(key, key) for key in entry["mutants"]]
    REASONS.write_text(json.dumps(entries, indent=2, ensure_ascii=False) + "\n")
    write_page(page_of(mutants, {result["key"]: result for result in kept}, reasons()))
    print(f"{len(new_keys)} results moved", *(f"other mutants: {name}" for name in left), sep="\n")
    return bool(left)


def _text_at(revision: str, name: str) -> str:
    shown = subprocess.run(
        ["git", "show", f"{revision}:templates/{name}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return shown.stdout


if __name__ == "__main__":
    sys.exit(main())
