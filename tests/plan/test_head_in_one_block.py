"""Kernels at large batch where one block has a head: nothing travels, and no block waits for another."""

from __future__ import annotations

import pytest

from minrnn_gen.build.builder import builder_of
from minrnn_gen.build.target import Target
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.dense import large_batch
from minrnn_gen.plan.kernel_plan import KernelPlan
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.plan.solver import solve
from minrnn_gen.run.dense.launch import workspace_bytes_of


def plans(model: str, units: int, precision: str, kernel_pass: KernelPass) -> list[KernelPlan]:
    spec = load_spec({"model": model, "hidden_size": units, "precision": precision, "batch": 2048, "time": 256})
    builder = builder_of(spec, Target.named("h200"))
    problem = builder.problem(builder.key_of(kernel_pass, builder.hinted_specialization, builder.hinted_sizes))
    solution = solve(problem, large_batch.BACKWARD if kernel_pass == "backward" else large_batch.FORWARD)
    return [solution.plan(number) for number in range(len(solution.candidates))]


@pytest.mark.parametrize(
    ("model", "units", "precision", "kernel_pass"),
    [("lstm", 128, "bf16", "backward"), ("gru", 64, "fp16", "forward"), ("elman", 256, "bf16", "forward")],
)
def test_it_exchanges_nothing(model: str, units: int, precision: str, kernel_pass: KernelPass) -> None:
    """Neither memory for operands nor blocks that have to be resident together, unless R is streamed."""
    found = plans(model, units, precision, kernel_pass)
    alone = [plan for plan in found if plan.grid_blocks == 1 and not plan.variables["streams_matrix"]]
    assert alone, "one block has the head"
    for plan in found:
        exchanges = plan.group_exchange_bytes > 0
        assert exchanges == plan.is_cooperative == (workspace_bytes_of(plan, 1) > 0) == (plan not in alone)
        assert ("ring" in plan.budget.shared_map) == exchanges != ("operand" in plan.budget.shared_map)


def test_a_head_of_several_blocks_exchanges() -> None:
    assert all(plan.is_cooperative for plan in plans("lstm", 256, "bf16", "backward") if plan.grid_blocks > 1)


def test_means_over_units_travel() -> None:
    """A cell with means waits for them from other blocks, whatever its size."""
    found = plans("layer_norm_lstm", 64, "bf16", "backward")
    assert found and not any(plan.launch.partition["in_one_block"] for plan in found)
