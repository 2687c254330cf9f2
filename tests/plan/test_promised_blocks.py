"""Blocks that an SM holds of a persistent kernel: the cost counts as many as the plan promises to the compiler."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.planning_problems import real_builder

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.plan.dense.persistent import BACKWARD, FORWARD
from minrnn_gen.plan.occupancy import clusters_at_once
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.plan.solver import Solution


def solution_of(builder: Builder, kernel_pass: KernelPass, batch: int, time: int = 512) -> Solution:
    found = builder.solutions(builder.key_of(kernel_pass, builder.hinted_specialization))
    solution = next(solution for solution in found if solution.family in (FORWARD, BACKWARD))
    return replace(solution, problem=replace(solution.problem, batch=batch, time=time))


@given(
    st.sampled_from([("slstm", 1728, 9), ("lstm", 288, 6), ("gru", 480, 6), ("elman", 720, 3), ("lstm", 512, 1)]),
    st.sampled_from(["forward", "backward"]),
    st.integers(1, 1000),
    st.integers(0, 200),
)
def test_turns_are_those_of_the_blocks_that_are_promised(
    layer: tuple[str, int, int], kernel_pass: KernelPass, batch: int, rank: int
) -> None:
    model, hidden_size, heads = layer
    solution = solution_of(real_builder(model, "h200", hidden_size, "bf16", heads=heads), kernel_pass, batch)
    problem, family, candidate = solution.problem, solution.family, solution.candidates[rank % len(solution.candidates)]
    one = replace(problem, batch=1, heads=1, hidden_size=problem.head_dim)
    turns = family.predicted_us(problem, candidate)["step"] / family.predicted_us(one, candidate)["step"]
    promised = family.resources(problem, candidate).blocks_per_sm
    clusters = clusters_at_once(problem.gpu, candidate["cluster_blocks"], promised)
    groups = heads * -(-batch // candidate["batch_tile"])
    assert turns == pytest.approx(-(-groups // max(1, clusters // candidate["grid_blocks"])))


@pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")
def test_a_kernel_compiles_to_the_registers_of_two_blocks() -> None:
    """Without the promise it takes 173, of 168, and the 54 clusters of nine heads and 21 sequences two turns for one."""
    builder = real_builder("slstm", "h200", 1728, "bf16", heads=9)
    solution = solution_of(builder, "forward", batch=21)
    wanted = {"cluster_blocks": 4, "row_warps": 6, "split_k_warps": 1, "products_per_tile": 2, "batch_tile": 4, "stages": 8}
    rank = next(rank for rank, found in enumerate(solution.candidates) if wanted.items() <= found.items())
    (kernel,) = builder.build_candidate(solution, rank).resources or ()
    assert solution.plan(rank).budget.blocks_per_sm == 2
    assert (kernel.registers <= 168, kernel.spill_bytes) == (True, 0)
