"""What `make mutate` weakens: every place that it must, each by itself; and its reasons are of mutants that there are."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "mutate"))

from places import OUT_OF_SCOPE, mutants_of, templates  # noqa: E402
from report import RESULTS, reasons  # noqa: E402

TEMPLATES = templates()
MUTANTS = [mutant for name, text in TEMPLATES.items() for mutant in mutants_of(name, text)]
# Statements that must not go, wherever they are called.
WAITING = re.compile(
    r"^\s*(?:\S.*\) )?(__syncthreads|__syncwarp|cluster_sync|wait_copy_groups|mbarrier_wait|close_copy_group)\b.*;"
)


def test_every_wait_is_weakened() -> None:
    for name, text in TEMPLATES.items():
        if name.startswith((*OUT_OF_SCOPE, "ptx/")):
            continue
        waiting = {number for number, line in enumerate(text.splitlines(), 1) if WAITING.match(line.partition("//")[0])}
        assert waiting <= {one.line for one in MUTANTS if one.template == name and one.kind.startswith("no ")}


def test_each_changes_its_line_and_no_other() -> None:
    for one in MUTANTS:
        before, after = TEMPLATES[one.template], one.applied_to(TEMPLATES[one.template])
        assert before != after and before.count("\n") - one.was.count("\n") == after.count("\n")
    assert len({one.key for one in MUTANTS}) == len(MUTANTS)


def test_reasons_are_of_mutants_that_survived() -> None:
    outcomes = {one["key"]: one["outcome"] for one in json.loads(RESULTS.read_text())["mutants"]}
    assert set(reasons()) <= {one.key for one in MUTANTS}
    assert {outcomes[key] for key in reasons()} <= {"survived", "not rendered"}
