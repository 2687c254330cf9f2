"""The mutants of `make mutate`: every synchronization has its own, and reasons are of existing mutants."""

from __future__ import annotations

import json
import re

from machine_code import restamped
from mutate.moved import moved_keys
from mutate.places import OUT_OF_SCOPE, mutants_of, templates
from mutate.report import RESULTS, reasons

from minrnn_gen.build.store import templates_digest

TEMPLATES = templates()
MUTANTS = [mutant for name, text in TEMPLATES.items() for mutant in mutants_of(name, text)]
# Statements that must not go, wherever they are called.
WAITING = re.compile(
    r"^\s*(?:\S.*\) )?(__syncthreads|__syncwarp|sync_some|sync_warpgroup|cluster_sync|wait_copy_groups|wait_multiplications"
    r"|mbarrier_wait|mbarrier_arrive|close_copy_group|close_multiplications|fence_async_proxy|fence_multiplications"
    r"|announce|store_operand)\b.*;"
)


def test_every_wait_is_weakened() -> None:
    for name, text in TEMPLATES.items():
        if name.startswith((*OUT_OF_SCOPE, "ptx/")):
            continue
        waiting = {number for number, line in enumerate(text.splitlines(), 1) if WAITING.match(line.partition("//")[0])}
        assert waiting <= {mutant.line for mutant in MUTANTS if mutant.template == name and mutant.kind.startswith("no ")}


def test_each_changes_its_line_and_no_other() -> None:
    for mutant in MUTANTS:
        before, after = TEMPLATES[mutant.template], mutant.applied_to(TEMPLATES[mutant.template])
        lines = mutant.replacement.count("\n") - mutant.was.count("\n")
        assert before != after and before.count("\n") + lines == after.count("\n")
    assert len({mutant.key for mutant in MUTANTS}) == len(MUTANTS)


def test_reasons_are_of_mutants_that_survived() -> None:
    outcomes = {result["key"]: result["outcome"] for result in json.loads(RESULTS.read_text())["mutants"]}
    assert set(reasons()) <= {mutant.key for mutant in MUTANTS}
    assert {outcomes[key] for key in reasons()} <= {"survived", "not rendered"}


def test_hardly_a_mutant_is_missed() -> None:
    """Of those that have been run, without the ones that cannot change a result."""
    keys = {mutant.key for mutant in MUTANTS}
    run = [result for result in json.loads(RESULTS.read_text())["mutants"] if result["key"] in keys - set(reasons())]
    missed = [result["key"] for result in run if result["outcome"] != "killed"]
    assert len(missed) <= 0.005 * len(run), missed


def test_results_move_with_a_renamed_variable_and_a_reworded_comment() -> None:
    before = "if (count > 0) f();  // some\n__syncthreads();\nif (count > 0) g();\n"
    after = "// A line more.\nif (steps > 0) f();  // others\n__syncthreads();\nif (steps > 0) g();\n"
    old, new = mutants_of("a.j2", before), mutants_of("a.j2", after)
    moved = moved_keys(old, new)
    assert list(moved) == [mutant.key for mutant in old] and list(moved.values()) == [mutant.key for mutant in new]
    assert all(mutant.kind in moved[mutant.key] for mutant in old)


def test_no_result_moves_to_another_mutant() -> None:
    before = mutants_of("a.j2", "if (count > 0) f();\n__syncthreads();\n")
    assert moved_keys(before, mutants_of("a.j2", "__syncthreads();\nif (count > 0) f();\n")) == {}
    assert moved_keys(before, mutants_of("a.j2", "if (count > 0) f();\n")) == {}


def test_a_tuned_result_is_restamped_where_its_kind_is_equal_and_it_was_recorded() -> None:
    old, other = "1" * 64, "2" * 64
    scan, dense = (json.dumps({"setting": {"sources": old}, "family": name}) for name in ("scan_step", "persistent_forward"))
    stale = json.dumps({"setting": {"sources": other}, "family": "scan_step"})
    stamped = [json.loads(line) for line in restamped(f"{scan}\n{dense}\n{stale}\n", old, {"dense"}).splitlines()]
    assert [result["setting"]["sources"] for result in stamped] == [templates_digest(), old, other]
