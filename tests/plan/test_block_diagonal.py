"""Block-diagonal products next to products over all heads: a warp keeps the block of R that it needs, no matrix of zeros."""

from __future__ import annotations

from typing import Any

import pytest

from minrnn_gen.build.builder import builder_of
from minrnn_gen.build.embedded import builder_of_kernels
from minrnn_gen.build.target import Target
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.dense.mma import TILE_ROWS
from minrnn_gen.plan.dense.partition import partition_of
from minrnn_gen.plan.dense.persistent import BACKWARD, FORWARD
from minrnn_gen.plan.problem import Problem
from minrnn_gen.plan.solver import solve

BLOCK_GRU: dict[str, Any] = {"model": "block_gru", "hidden_size": 512, "projection_size": 512, "precision": "bf16", "heads": 8}


def problem_of(kernel_pass: Any, **keys: Any) -> Problem:
    builder = builder_of_kernels(builder_of(load_spec(BLOCK_GRU | keys), Target.named("h100")))
    return builder.problem(builder.key_of(kernel_pass, builder.hinted_specialization))


@pytest.mark.parametrize(("kernel_pass", "family"), [("forward", FORWARD), ("backward", BACKWARD)])
def test_a_group_of_blocks_has_each_element_of_R_once(kernel_pass: str, family: Any) -> None:
    """Two products of block_gru have H² elements and four H² / 8, of which other blocks of a backward may repeat zeros."""
    problem, size = problem_of(kernel_pass), 512 * 512
    wanted = 2 * size + 4 * size // 8
    with_blocks = 0
    for candidate in solve(problem, family).candidates[:12]:
        partition = partition_of(problem, candidate)
        rows = partition.full_rows * partition.tiles_per_warp + partition.diagonal.tiles
        warps = partition.group_blocks * partition.row_warps * partition.split_k_warps
        elements = warps * rows * TILE_ROWS * partition.tiling.depth
        with_blocks += bool(partition.diagonal.products)
        assert wanted <= elements <= (2 * wanted if partition.diagonal.products else 6 * size)
    assert with_blocks
