"""Every kernel compiles for every GPU, without one spilled byte, and takes what its plan promises: offline, without a GPU.

The everyday set covers each pair of cell, profile, precision, layout, alignment and pass, but for those of cell and profile;
`matrix_full` is their whole product.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from support.rendered_kernels import MODELS, builder_of

from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.build.promises import ATTEMPTS
from minrnn_gen.config.gpu_profile import profile_names
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.precision import PRECISION_NAMES, precision_of

pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")

LAYOUTS = ("BTD", "TBD", "BDT")
# Where more of the first candidates than a quarter of the attempts break their promise, the register estimate is wrong.
DROPPED_MOST = ATTEMPTS // 4
# Of everything one in so many is looked at for cases with many new pairs; prime, so that every choice is among them.
SAMPLED = 13
# Of the cases that have every pair so many: the first have most of the pairs.
EVERYDAY = 12


@dataclass(frozen=True)
class Case:
    model: str
    gpu: str
    precision: str
    layout: str
    alignment_bytes: int
    hidden_size: int
    kernel_pass: KernelPass = "forward"

    def __str__(self) -> str:
        size = f"{self.hidden_size}-aligned{self.alignment_bytes}"
        return f"{self.kernel_pass}-{self.model}-{self.precision}-{self.layout}-{size}-{self.gpu}"


def alignments(precision: str) -> tuple[int, ...]:
    return tuple(width for width in (2, 4, 8, 16) if width >= precision_of(precision).storage_bytes)


def sized(case: Case) -> Case:
    """Give the case a hidden size with its alignment: whole tiles of channels, and ragged ones, in turn."""
    unit = case.alignment_bytes // precision_of(case.precision).storage_bytes
    ragged = (len(case.model) + len(case.gpu) + case.alignment_bytes) % 2
    return Case(**{**vars(case), "hidden_size": unit * (33 if ragged else 128)})


def everything() -> Iterator[Case]:
    for model, gpu, precision, layout in itertools.product(MODELS, profile_names(), PRECISION_NAMES, LAYOUTS):
        for alignment in alignments(precision):
            yield sized(Case(model, gpu, precision, layout, alignment, 0))
        yield sized(Case(model, gpu, precision, layout, alignments(precision)[-1], 0, "step"))


CHOICES = ("model", "gpu", "precision", "layout", "alignment_bytes", "kernel_pass")
PAIRS = tuple(pair for pair in itertools.combinations(CHOICES, 2) if pair != ("model", "gpu"))


def pairs_of(case: Case) -> frozenset[tuple[object, ...]]:
    return frozenset((first, getattr(case, first), second, getattr(case, second)) for first, second in PAIRS)


def covering() -> tuple[Case, ...]:
    """Return few cases that have every pair: of a sample, which is quickly searched, those with most of what is missing."""
    pairs = {case: pairs_of(case) for case in everything()}
    missing, sample, cases = set[tuple[object, ...]]().union(*pairs.values()), tuple(pairs)[::SAMPLED], []

    def news(case: Case) -> int:
        return len(pairs[case] & missing)

    while news(best := max(sample, key=news)):
        cases.append(best)
        missing -= pairs[best]
    for case in pairs:
        if news(case):
            cases.append(case)
            missing -= pairs[case]
    return tuple(cases)


def check(case: Case) -> None:
    builder = builder_of(case.model, case.gpu, precision=case.precision, layout=case.layout, hidden_size=case.hidden_size)
    built = builder.build(builder.key_of(case.kernel_pass, Specialization(case.alignment_bytes)))
    plan, resources = built.plan, built.resources
    assert resources is not None and built.cubin is not None
    assert [kernel.name for kernel in resources] == [plan.symbol]
    (kernel,) = resources
    assert kernel.spill_bytes == 0
    assert kernel.shared_bytes == plan.budget.shared_bytes
    assert 0 < kernel.registers <= plan.budget.registers_per_thread
    assert len(built.dropped) <= DROPPED_MOST, built.dropped


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if at < EVERYDAY else pytest.mark.matrix_full, id=str(case))
        for at, case in enumerate(covering())
    ],
)
def test_compiles_within_its_plan(case: Case) -> None:
    check(case)


@pytest.mark.matrix_full
@pytest.mark.parametrize(("model", "gpu"), tuple(itertools.product(MODELS, profile_names())))
def test_the_whole_matrix(model: str, gpu: str) -> None:
    for case in everything():
        if (case.model, case.gpu) == (model, gpu):
            check(case)
