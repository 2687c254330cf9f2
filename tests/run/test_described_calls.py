"""Descriptions of runs: each becomes a trace, and is the same of integers and of symbols that are bound to them."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch")

from support.call_corpus import Case, Options, cases, kernel_of
from support.everyday import one_in
from support.symbolic_calls import bound_traces
from support.traces import OnHost, nothing_runs, traces_of_call

# Every day a call or two of each case whose arrays take little memory.
EVERYDAY = {call for call in itertools.chain.from_iterable(case.calls for case in cases()) if call.batch * call.time <= 256}


def everyday(case: Case, number: int) -> tuple[Options, ...]:
    """Return another call of each case."""
    small = [call for call in case.calls if call in EVERYDAY]
    return (small[number % len(small)],)


def traces(case: Case, calls: tuple[Options, ...]) -> int:
    """Return how many passes of calls have a trace."""
    kernel, kernels = kernel_of(case)
    passes = [trace for call in calls for _, trace in traces_of_call(kernel, OnHost(kernels), call)]
    return sum(trace is not None for trace in passes)


@pytest.mark.parametrize(("number", "case"), one_in(6, enumerate(cases())), ids=str)
def test_a_described_call_has_a_trace(number: int, case: Case) -> None:
    assert traces(case, everyday(case, number))


@pytest.mark.matrix_full
def test_every_described_call_has_a_trace() -> None:
    assert sum(traces(case, case.calls) for case in cases()) == 587


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
    assert compared == 587
