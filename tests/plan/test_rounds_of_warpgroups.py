"""Rounds of products in kernels of warpgroups: which cells they take, and how warps and warpgroups share each round."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.norm_cells import GATES_TOGETHER, MIXED_LISTS, OF_BOTH, OF_PARTS, OF_ROUNDS
from support.round_cells import DEEP, OF_TWO_STATES, PRODUCT_ALONE, RESET_BEFORE

from minrnn_gen.build.builder import builder_of
from minrnn_gen.build.target import Target
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.dense import large_batch
from minrnn_gen.plan.dense.warpgroup_partition import WarpgroupPartition
from minrnn_gen.plan.families import solutions
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import solve

FAMILIES = {"forward": large_batch.FORWARD, "backward": large_batch.BACKWARD}


def problem_of(cell: dict[str, Any] | str, kernel_pass: Any, **keys: Any) -> Problem:
    spec = load_spec({"model": cell, "hidden_size": 512, "precision": "bf16", **keys})
    builder = builder_of(spec, Target.named("h200"))
    return builder.problem(builder.key_of(kernel_pass, builder.hinted_specialization, builder.hinted_sizes))


@pytest.mark.parametrize("kernel_pass", FAMILIES)
@pytest.mark.parametrize("cell", [RESET_BEFORE, PRODUCT_ALONE], ids=lambda cell: cell["name"])
def test_many_sequences_are_one_launch_by_warpgroups(cell: dict[str, Any], kernel_pass: str) -> None:
    problem = problem_of(cell, kernel_pass, hidden_size=1024, batch=512, time=256)
    assert next(solutions(problem)).plan().family == "dense"
    assert next(solutions(problem)).plan().name == f"large_batch_{kernel_pass}"


@pytest.mark.parametrize("cell", ["layer_norm_lstm", GATES_TOGETHER, OF_ROUNDS], ids=["layer_norm_lstm", "lists", "rounds"])
def test_many_sequences_of_a_step_with_means_are_one_launch_forward(cell: dict[str, Any] | str) -> None:
    """Gradients need more means, and go by other kernels, which say why."""
    problem = problem_of(cell, "forward", batch=512, time=256)
    assert next(solutions(problem)).plan().name == "large_batch_forward"
    assert "in forwards alone" in large_batch.refusal(problem_of(cell, "backward", batch=512, time=256))


def test_means_that_warpgroups_cannot_exchange_are_refused() -> None:
    assert "blocks of a head do not wait" in large_batch.refusal(problem_of(OF_BOTH, "forward", heads=2))
    assert "parts of a head" in large_batch.refusal(problem_of(OF_PARTS, "forward"))


@given(st.sampled_from((GATES_TOGETHER, MIXED_LISTS, OF_ROUNDS)), st.sampled_from((64, 256, 1024)), st.data())
def test_tiles_of_means_have_units_of_the_head_alone(cell: dict[str, Any], hidden: int, data: st.DataObject) -> None:
    problem = problem_of(cell, "forward", hidden_size=hidden)
    partition = WarpgroupPartition(problem, **data.draw(st.sampled_from(solve(problem, large_batch.FORWARD).candidates)))
    assert partition.tiles * partition.tile_units == problem.head_dim
    assert partition.rounds == 1


def test_a_cell_whose_first_round_is_not_of_its_output_is_refused() -> None:
    assert "no product of of_two_states is of its previous output" in large_batch.refusal(problem_of(OF_TWO_STATES, "forward"))


@given(
    st.sampled_from((RESET_BEFORE, DEEP, PRODUCT_ALONE)),
    st.sampled_from(tuple(FAMILIES)),
    st.sampled_from((40, 512, 1024)),
    st.data(),
)
def test_every_round_is_shared_evenly(cell: dict[str, Any], kernel_pass: str, hidden: int, data: st.DataObject) -> None:
    """Warpgroups that split columns have as many chunks of each round, and so have the warps that fetch them."""
    problem = problem_of(cell, kernel_pass, hidden_size=hidden)
    partition = WarpgroupPartition(problem, **data.draw(st.sampled_from(solve(problem, FAMILIES[kernel_pass]).candidates)))
    of_rounds = [width * partition.unit_chunks for width in partition.round_widths]
    products = len(problem.cell.recurrent_gates)
    assert sum(of_rounds) == partition.chunks == partition.unit_chunks * (products if partition.is_backward else len(of_rounds))
    assert all(chunks % (partition.split_k_blocks * math.lcm(partition.split_k_warpgroups, partition.producer_warps)) == 0
               for chunks in of_rounds)  # fmt: skip
