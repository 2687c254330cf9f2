"""Contenders run in rotation, the time is the median, and a contender that fails has a row with its failure."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_gpu import FakeClock

from benchmarks.harness.rounds import Arrays, Contender, Limits, failure_of, quartiles, rounds_for, run_rounds
from benchmarks.problems.scan_problems import Problem
from minrnn_gen.precision import error_allowed, precision_of

PROBLEM = Problem(table="raw", task="forward", precision="fp32", batch=2, time=64, channels=8)


def contender(name: str, calls: list[str], error: float = 0.0, fails_at: int | None = None) -> Contender:
    """Return a contender whose run appends its name to `calls` and raises at its call number `fails_at`."""
    count = itertools.count()

    def run() -> Arrays:
        calls.append(name)
        if next(count) == fails_at:
            raise RuntimeError(f"{name} gave up")
        return {"y": name}

    return Contender(name, lambda: run, lambda results: {"y": error} if results == {"y": name} else {"y": 1.0})


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30))
def test_quartiles_are_those_of_numpy(times_ms: list[float]) -> None:
    np.testing.assert_allclose(quartiles(times_ms), np.percentile(times_ms, [25, 50, 75]), rtol=1e-12)


@given(st.floats(0, 1e4), st.integers(1, 5), st.integers(0, 20), st.floats(1e-3, 10))
def test_rounds_stay_between_their_limits(round_seconds: float, least: int, more: int, seconds: float) -> None:
    limits = Limits(least, least + more, seconds)
    rounds = rounds_for(round_seconds, limits)
    assert least <= rounds <= least + more
    assert rounds == least or rounds * round_seconds <= seconds


def test_contenders_run_in_rotation() -> None:
    calls: list[str] = []
    clock = FakeClock()
    rows = run_rounds(PROBLEM, [contender(name, calls) for name in "abc"], clock, Limits(rounds_most=4))
    assert "".join(calls) == "aabbcc" + 4 * "abc"
    assert [row.contender for row in rows] == ["a", "b", "c"]
    assert all(row.rounds == 4 and row.ms == 1.0 and row.quartiles_ms == (1.0, 1.0) for row in rows)
    assert clock.poisoned == 5 * 3, "before the second run of the preparation and before each round"


def test_the_median_is_of_the_rounds_and_not_of_the_preparation() -> None:
    costs = iter([1000.0, 5.0, 1.0, 2.0])
    (row,) = run_rounds(PROBLEM, [contender("a", [])], FakeClock(lambda: next(costs)), Limits(3, 3))
    assert (row.ms, row.quartiles_ms) == (2.0, (1.5, 3.5))


def test_slow_contenders_get_the_least_rounds() -> None:
    (row,) = run_rounds(PROBLEM, [contender("a", [])], FakeClock(lambda: 60_000.0), Limits())
    assert row.rounds == Limits().rounds_least


@pytest.mark.parametrize("fails_at", [0, 1, 2, 5])
def test_a_contender_that_raises_has_a_row_and_the_others_go_on(fails_at: int) -> None:
    calls: list[str] = []
    both = [contender("bad", calls, fails_at=fails_at), contender("good", calls)]
    bad, good = run_rounds(PROBLEM, both, FakeClock(), Limits(rounds_most=5))
    assert (bad.ms, bad.failure) == (None, "RuntimeError: bad gave up")
    assert (good.rounds, good.failure) == (5, None)
    assert calls.count("bad") == fails_at + 1


def test_the_memory_of_a_run_is_measured_behind_the_rounds() -> None:
    calls: list[str] = []
    measured = replace(contender("a", calls), peak_bytes=lambda run: len(run()) * (3 << 20))
    (row,) = run_rounds(PROBLEM, [measured], FakeClock(), Limits(rounds_most=4))
    assert row.facts == {"peak_mib": 3.0} and row.rounds == 4 and calls.count("a") == 2 + 4 + 1


def test_a_refused_contender_is_not_prepared() -> None:
    def prepare() -> Callable[[], Arrays]:
        raise AssertionError("prepared")

    (row,) = run_rounds(PROBLEM, [Contender("gone", prepare, refused="not installed")], FakeClock(), Limits())
    assert (row.failure, row.ms, row.prepare_seconds) == ("not installed", None, None)


@pytest.mark.parametrize(("error", "right"), [(1e-7, True), (1e-3, False), (float("nan"), False), (float("inf"), False)])
def test_errors_are_held_against_the_tolerance(error: float, right: bool) -> None:
    (row,) = run_rounds(PROBLEM, [contender("a", [], error)], FakeClock(), Limits())
    assert row.is_right is right
    assert row.error_allowed == error_allowed(precision_of("fp32"))


def test_the_tolerance_is_that_of_the_dtype() -> None:
    fp32, bf16 = error_allowed(precision_of("fp32")), error_allowed(precision_of("bf16"))
    assert 2.0**-20 < fp32 < 2.0**-17
    assert 2.0**-6 < bf16 < 2.0**-4


def test_a_contender_of_another_precision_has_the_tolerance_of_that_precision() -> None:
    (row,) = run_rounds(PROBLEM, [replace(contender("a", [], 1e-3), precision="bf16")], FakeClock(), Limits())
    assert row.error_allowed == error_allowed(precision_of("bf16"))
    assert row.is_right


def test_the_clock_is_the_contender_s() -> None:
    clock = FakeClock()
    both = [Contender("there", lambda: dict), Contender("here", lambda: dict, on_host=True)]
    rows = run_rounds(PROBLEM, both, clock, Limits(rounds_most=3))
    assert [row.clock for row in rows] == ["device events", "host"]
    assert clock.hosts == [False, True] * 4


def test_facts_that_fail_leave_the_time() -> None:
    def facts() -> dict[str, int | float | str]:
        raise ValueError("no plan")

    (row,) = run_rounds(PROBLEM, [Contender("a", lambda: dict, facts=facts)], FakeClock(), Limits())
    assert row.ms == 1.0
    assert row.facts == {"failure": "ValueError: no plan"}


@given(st.lists(st.from_regex(r"[a-z_.0-9]{1,8}", fullmatch=True), min_size=2, max_size=5))
def test_a_failure_names_no_folder_of_the_machine(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    said = failure_of(OSError(f"cannot open {path}:12: nothing\n  there"))
    assert said == f"OSError: cannot open {parts[-1]}:12: nothing there"


def test_a_failure_is_short() -> None:
    assert len(failure_of(ValueError("x" * 9999))) <= 160
    assert failure_of(KeyError()) == "KeyError: no message"
