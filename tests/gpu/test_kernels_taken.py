"""The kernels that the tests on a GPU ask for are those that they get; needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.persistent_candidates import CELLS, HEAD_DIMS, PASSES, PRECISIONS, everything, kernel_of_sample, sampled
from support.scan_strategies import EVERY_WAY, Strategy, kernel_taking
from support.uncompiled_kernels import nothing_compiled

from minrnn_gen.build.store import Store
from minrnn_gen.errors import Infeasible
from minrnn_gen.plan.problem import KernelPass


# Those of TBD are those of BTD: every day one in three.
@pytest.mark.parametrize(
    ("layout", "strategy"),
    [
        pytest.param(*way, marks=pytest.mark.matrix_full if way[0] == "TBD" and number % 3 else ())
        for number, way in enumerate(EVERY_WAY)
    ],
    ids=str,
)
def test_a_kernel_takes_the_strategy_that_is_asked_for(layout: str, strategy: Strategy, tmp_path: Path) -> None:
    spec = {"model": "min_gru", "hidden_size": 40, "precision": "fp32", "layout": layout, "gpu": "h200"}
    with nothing_compiled():
        kernel = kernel_taking(strategy, Store(tmp_path), spec)
    assert {key.kernel_pass for key in kernel.plans} == {"forward", "backward"}
    for plan in kernel.plans.values():
        assert strategy.variables.items() <= plan.variables.items()


def test_what_a_gpu_does_not_have_is_said(tmp_path: Path) -> None:
    cluster = next(strategy for layout, strategy in EVERY_WAY if layout == "BTD" and strategy.name == "cluster_of_2")
    with pytest.raises(Infeasible, match=r"a100 has no scan_forward_channels with .*'cluster_blocks': 2"):
        kernel_taking(cluster, Store(tmp_path), {"model": "min_gru", "hidden_size": 40, "precision": "fp32", "gpu": "a100"})


# Of both passes.
SAMPLES_LEAST = 200


@pytest.mark.matrix_full
@pytest.mark.parametrize("kernel_pass", PASSES)
def test_in_the_sample_of_persistent_kernels_every_choice_meets_every_other(kernel_pass: KernelPass) -> None:
    """Choices of each cell, as far as they combine at all; a fraction of all."""
    samples, candidates = sampled(kernel_pass, "h200"), everything(kernel_pass, "h200")
    assert {pair for one in samples for pair in one.pairs} == {pair for one in candidates for pair in one.pairs}
    assert {one.cell for one in samples} == set(CELLS) and {one.precision for one in samples} == set(PRECISIONS)
    # A head of 512 units fits with few gates only.
    assert {one.head_dim for one in samples} == set(HEAD_DIMS)
    assert SAMPLES_LEAST // 2 <= len(samples) < len(candidates) // 4


@pytest.mark.matrix_full
@pytest.mark.parametrize("kernel_pass", PASSES)
def test_a_sample_is_built_as_it_is(kernel_pass: KernelPass, tmp_path: Path) -> None:
    """Its own pass in every specialization; the other as it is for everybody."""
    store = Store(tmp_path)
    for sample in sampled(kernel_pass, "h200")[::40]:
        with nothing_compiled():
            kernel = kernel_of_sample(sample, store, "h200")
        for key, plan in kernel.plans.items():
            assert plan.is_persistent or key.kernel_pass != kernel_pass
            assert (plan.variables == dict(sample.variables)) or key.kernel_pass != kernel_pass
        assert kernel_pass in {key.kernel_pass for key in kernel.plans}


def test_a_gpu_without_persistent_kernels_has_no_samples() -> None:
    assert all(sampled(kernel_pass, "t4") == () for kernel_pass in PASSES)
