"""The kernels that the tests on a GPU ask for are those that they get; needs no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_kernels import nothing_compiled
from strategies import EVERY_WAY, Strategy, kernel_taking

from minrnn_gen.errors import Infeasible
from minrnn_gen.store import Store


@pytest.mark.parametrize(("layout", "strategy"), EVERY_WAY, ids=str)
def test_a_kernel_takes_the_strategy_that_is_asked_for(layout: str, strategy: Strategy, tmp_path: Path) -> None:
    spec = {"model": "min_gru", "hidden_size": 40, "precision": "fp32", "layout": layout, "gpu": "h200"}
    with nothing_compiled():
        kernel = kernel_taking(strategy, Store(tmp_path), spec)
    assert {kernel_pass for kernel_pass, _ in kernel.plans} == {"forward", "backward"}
    for plan in kernel.plans.values():
        assert strategy.variables.items() <= plan.variables.items()


def test_what_a_gpu_does_not_have_is_said(tmp_path: Path) -> None:
    cluster = next(strategy for layout, strategy in EVERY_WAY if layout == "BTD" and strategy.name == "cluster_of_2")
    with pytest.raises(Infeasible, match=r"a100 has no scan_forward_channels with .*'cluster_blocks': 2"):
        kernel_taking(cluster, Store(tmp_path), {"model": "min_gru", "hidden_size": 40, "precision": "fp32", "gpu": "a100"})
