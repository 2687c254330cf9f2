"""What describes a run says what a recorder does that performs it step by step, of integers and of sizes that are symbols."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from support.call_corpus import Case, Options, cases, kernel_of
from support.everyday import one_in
from support.performing_recorder import PerformingBackend
from support.symbolic_calls import bound_traces
from support.traces import OnHost, nothing_runs, trace_data, traces_of_call


class Performing(PerformingBackend, OnHost):
    """Runs that are performed step by step, on the host."""


# Every day a call or two of each case whose arrays take little memory.
EVERYDAY = {call for call in itertools.chain.from_iterable(case.calls for case in cases()) if call.batch * call.time <= 256}


def everyday(case: Case, number: int) -> tuple[Options, ...]:
    """Return another call of each case."""
    small = [call for call in case.calls if call in EVERYDAY]
    return (small[number % len(small)],)


def both_ways(case: Case, calls: tuple[Options, ...]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each pass of calls, and its traces as performed and as described."""
    kernel, kernels = kernel_of(case)
    for call in calls:
        performed = list(traces_of_call(kernel, Performing(kernels), call))
        described = list(traces_of_call(kernel, OnHost(kernels), call))
        for (name, expected), (_, found) in zip(performed, described, strict=True):
            yield f"{call} {name}", expected, found


def check(case: Case, calls: tuple[Options, ...]) -> int:
    compared = 0
    for name, expected, found in both_ways(case, calls):
        assert (expected is None) == (found is None), name
        if expected is not None:
            assert trace_data(found) == trace_data(expected), name
            compared += 1
    return compared


@pytest.mark.parametrize(("number", "case"), one_in(3, enumerate(cases())), ids=str)
def test_a_description_is_what_a_recorder_performs(number: int, case: Case) -> None:
    assert check(case, everyday(case, number))


@pytest.mark.matrix_full
def test_every_description_is_what_a_recorder_performs() -> None:
    assert sum(check(case, case.calls) for case in cases()) == 551


@pytest.mark.parametrize(("number", "case"), one_in(3, enumerate(cases())), ids=str)
def test_symbols_stand_for_integers(number: int, case: Case) -> None:
    """A call of symbols, bound to the sizes of a call, is the call of integers."""
    kernel, kernels = kernel_of(case)
    with nothing_runs():
        for call in everyday(case, number):
            for name, found, expected in bound_traces(kernel, kernels, call):
                assert found == expected, name


@pytest.mark.matrix_full
def test_symbols_stand_for_all_integers() -> None:
    compared = 0
    for case in cases():
        kernel, kernels = kernel_of(case)
        with nothing_runs():
            for call in case.calls:
                for name, found, expected in bound_traces(kernel, kernels, call):
                    assert found == expected, f"{case.name} {name}"
                    compared += 1
    assert compared == 551
