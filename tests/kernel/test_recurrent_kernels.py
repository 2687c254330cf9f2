"""The persistent kernels of dense cells, run on the host as clusters of threads that wait for each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dense_cases import Case, assert_same_bits, cases, check_backward, check_forward, check_that_nan_stays
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels_as_host_code import HAS_COMPILER
from recurrent_on_host import persistent_kernels

from minrnn_gen.plan.kernel_plan import Regime
from minrnn_gen.plan.problem import alignment_of

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def way(model: str, head_dim: int, heads: int, precision: str, gap: int, flags: str, *variables: int) -> Any:
    names = ("cluster_blocks", "unit_warps", "k_warps", "batch_tile", "ahead")
    return (model, head_dim, heads, precision, gap, flags.split(), dict(zip(names, variables, strict=True)))


# Cell, units of a head, heads, precision, values of a gap behind rows (8 are aligned), regime; cluster_blocks, unit_warps,
# k_warps, batch_tile, ahead. Heads of less than a warp has, of a part of a tile, and of several warps and blocks.
WAYS = (
    way("lstm", 16, 1, "bf16", 8, "resets", 1, 1, 1, 8, 4),
    way("lstm", 5, 2, "fp16", 1, "reverse arithmetic", 1, 1, 1, 2, 8),
    way("lstm", 40, 1, "bf16", 8, "reverse resets arithmetic", 2, 2, 2, 4, 4),
    way("gru", 24, 2, "fp16", 8, "storage", 1, 2, 2, 4, 4),
    way("gru", 40, 1, "bf16", 1, "resets", 1, 3, 1, 8, 8),
    way("slstm", 16, 3, "bf16", 8, "reverse resets", 2, 1, 2, 2, 4),
    way("slstm", 24, 1, "fp16", 2, "arithmetic", 1, 2, 1, 8, 4),
    way("elman", 40, 1, "fp16", 4, "resets storage", 4, 1, 4, 4, 8),
    way("elman", 5, 1, "bf16", 3, "reverse", 1, 1, 1, 8, 4),
    way("light_gru", 24, 1, "bf16", 8, "resets", 2, 1, 1, 4, 4),
    way("light_gru", 7, 3, "fp16", 1, "reverse resets arithmetic", 1, 1, 1, 2, 4),
    way("gru", 24, 1, "fp16", 8, "resets debug", 2, 1, 2, 2, 4),
)


def cases_of(folder: Path, one: Any, resets: bool | None = None) -> st.SearchStrategy[Case]:
    model, head_dim, heads, precision, gap, flags, variables = one
    has_resets = "resets" in flags if resets is None else resets
    kept = next((flag for flag in flags if flag in ("storage", "arithmetic")), "none")
    regime = Regime(alignment_of(2 * head_dim, 2 * gap), "reverse" in flags, has_resets, kept)
    kernels = persistent_kernels(folder, model, head_dim, heads, precision, regime, "debug" in flags, **variables)
    return cases(
        st.just(kernels),
        ("BTD", "TBD"),
        gap,
        kept=("real" if kept == "arithmetic" else kept,),
        reverse=(regime.reverse,),
        has_resets=(regime.resets,),
    )


@pytest.mark.parametrize("one", WAYS, ids=str)
@settings(max_examples=15)  # of them each takes some milliseconds per thread and step
@given(data=st.data())
def test_both_passes_do_what_plain_loops_do(one: Any, folder: Path, data: st.DataObject) -> None:
    case = data.draw(cases_of(folder, one))
    check_forward(case)
    check_backward(case)


@pytest.mark.parametrize("one", [WAYS[0], WAYS[2], WAYS[5]], ids=str)
@settings(max_examples=5)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_whoever_comes_first_the_results_are_the_same_bits(one: Any, folder: Path, data: st.DataObject, seed: int) -> None:
    case = data.draw(cases_of(folder, one))
    assert_same_bits(case, replace(case, seed=seed))


@pytest.mark.parametrize("one", [WAYS[0], WAYS[2], WAYS[5]], ids=str)
@settings(max_examples=5)
@given(data=st.data())
def test_nan_stays_in_its_sequence_and_behind_a_reset(one: Any, folder: Path, data: st.DataObject) -> None:
    check_that_nan_stays(data.draw(cases_of(folder, one)), data)
