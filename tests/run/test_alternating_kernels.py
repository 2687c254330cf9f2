"""The pointwise kernels of dense cells, run on the host: against loops over the cell's step and its gradient in float64."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dense_cases import MODELS, Case, assert_same_bits, cases, check_backward, check_forward, check_that_nan_stays
from support.examples import examples
from support.stepwise_on_cpu import HostKernels, host_kernels

pytestmark = [
    pytest.mark.skipif(
        shutil.which("g++") is None, reason="the kernels' text is compiled by a host C++ compiler, and there is none"
    ),
    pytest.mark.usefixtures("cache_of_emulated_kernels"),
]


def kernels_of(models: tuple[str, ...], precisions: tuple[str, ...]) -> st.SearchStrategy[HostKernels]:
    drawn = st.builds(host_kernels, st.sampled_from(models), st.sampled_from((1, 3)), st.sampled_from(precisions))
    return st.builds(lambda kernels, chunk: replace(kernels, chunk=chunk), drawn, st.sampled_from((1, 4, 20)))


KERNELS = kernels_of(tuple(MODELS), ("fp64",))


@settings(max_examples=examples(16))
@given(cases(KERNELS))
def test_the_forward_is_its_steps_one_after_the_other(case: Case) -> None:
    check_forward(case)


@settings(max_examples=examples(16))
@given(cases(KERNELS))
def test_the_backward_is_the_steps_gradient_iterated(case: Case) -> None:
    check_backward(case)


@settings(max_examples=examples(8))
@given(cases(KERNELS), st.integers(1, 12))
def test_chunks_make_no_difference(case: Case, chunk: int) -> None:
    assert_same_bits(case, replace(case, kernels=replace(case.kernels, chunk=chunk)))


@settings(max_examples=examples(16))
@given(cases(KERNELS), st.data())
def test_nan_stays_in_its_sequence_and_behind_a_reset(case: Case, data: st.DataObject) -> None:
    check_that_nan_stays(case, data)


@pytest.mark.matrix_full
@settings(max_examples=examples(12))
@given(cases(kernels_of(("gru", "lstm", "slstm"), ("fp32", "bf16"))))
def test_other_precisions_are_within_their_roundoff(case: Case) -> None:
    check_forward(case)
    check_backward(case)
