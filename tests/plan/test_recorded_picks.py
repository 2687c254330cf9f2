"""Picks of today against the plans of measured rows: a pick that moved is measured as fast, or on record with a reason."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from support.everyday import one_in

from benchmarks.cost_model.picks import (
    SLOWER_MOST,
    KnownDifferences,
    RecordedPlan,
    compiled_for,
    differences,
    known_differences,
    picked_for,
    published_plans,
    tune_command,
)
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.cli.request import read_request

KNOWN = known_differences()
PLANS = published_plans()
Group = tuple[RecordedPlan, ...]


def group_of(recorded: RecordedPlan) -> tuple[str, str]:
    return recorded.kernel.group


def is_headline(plans: Group) -> bool:
    return any(plan.kernel.problem.table == "cells" and plan.kernel.problem.heads for plan in plans)


# Kernels that differ in batch and time alone are planned together, in a tenth of a second. Every day those of the first table
# of dense cells, and of the others a part in which an odd step has both passes.
GROUPS: list[Group] = [tuple(plans) for _, plans in itertools.groupby(sorted(PLANS, key=group_of), group_of)]
EVERYDAY = [(plans,) for plans in GROUPS if is_headline(plans)]
OTHERS = one_in(13, [(plans,) for plans in GROUPS if not is_headline(plans)])
CASES = [*(pytest.param(*case) for case in EVERYDAY), *OTHERS]


def label_of(plans: Group) -> str:
    return plans[0].kernel.label


@pytest.mark.parametrize("plans", CASES, ids=label_of)
def test_a_pick_is_that_of_the_record_or_as_fast(plans: Group) -> None:
    found = list(differences(plans, KNOWN))
    wrong = [judged.sentence for judged in found if not judged.is_settled]
    assert not wrong, "\n".join(wrong)
    labels = {plan.kernel.label for plan in plans}
    listed = [entry for known in KNOWN for entry in known.differences if entry.kernel in labels]
    stale = [entry for entry in listed if not any(entry.is_same(judged.difference) for judged in found)]
    assert not stale, f"take from the list of differences what is none today: {stale}"


@pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")
@pytest.mark.parametrize("plans", one_in(25, EVERYDAY), ids=label_of)
def test_calls_run_the_pick(plans: Group) -> None:
    """No compiler's spills leave a call with a kernel that is predicted to be slower."""
    kernel = plans[0].kernel
    assert compiled_for(kernel).plan.variables == picked_for(kernel)[1].variables


def test_known_differences_are_of_records_and_no_slower() -> None:
    labels = {plan.kernel.label for plan in PLANS}
    for known in KNOWN:
        assert known.reason.endswith(".")
        for entry in known.differences:
            assert entry.kernel in labels
            assert entry.slower is None or entry.slower <= SLOWER_MOST


@pytest.fixture(scope="module")
def settled() -> RecordedPlan:
    """Return the plan of a record whose pick was measured, 0.480 ms, and is today's."""
    recorded = next(plan for plan in PLANS if plan.kernel.label == "lstm 12 x 64, 16 x 1024 bf16 BTD backward")
    assert not list(differences([recorded]))
    return recorded


def test_a_reason_excuses_no_pick_that_was_measured_as_slower(settled: RecordedPlan) -> None:
    for ms, is_settled in ((None, True), (0.4, False)):
        moved = replace(settled, plan={**settled.plan, "stages": 3}, ms=ms)
        (judged,) = differences([moved])
        (excused,) = differences([moved], [KnownDifferences(reason="A reason.", differences=(judged.difference,))])
        assert (excused.reason, excused.is_settled) == ("A reason.", is_settled)


@pytest.mark.parametrize(("stages", "ms", "said"), [(2, 0.4, None), (3, None, "not measured"), (3, 0.4, "measured 20% slower")])
def test_a_moved_pick_is_named_with_what_to_do(settled: RecordedPlan, stages: int, ms: float | None, said: str | None) -> None:
    """A record of another plan stands for a cost model that moved its pick; two stages were measured too, as slower."""
    (moved,) = differences([replace(settled, plan={**settled.plan, "stages": stages}, ms=ms)])
    assert moved.is_settled == (said is None)
    for word in (settled.kernel.label, f"stages {stages}", "stages 8", tune_command(settled.kernel), said or "slower"):
        assert word in moved.sentence


def test_both_kernels_are_measured_by_a_command_that_exists(settled: RecordedPlan) -> None:
    program, verb, spec, *options = tune_command(settled.kernel).split()
    assert (program, verb, options[-3:]) == ("minrnn-gen", "tune", ["--all", "--html", "times.html"])
    read = read_request(spec, "h200", options[1:-3:2]).spec
    assert (read.model, read.hidden_size, read.heads, read.batch, read.time, read.training) == ("lstm", 768, 12, 16, 1024, True)
