"""The persistent kernels of dense cells, run on the host as clusters of threads that wait for each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dense_cases import Case, assert_same_bits, cases, check_backward, check_forward, check_that_nan_stays, products_of
from support.emulated_code import HAS_COMPILER
from support.everyday import one_in
from support.examples import examples
from support.persistent_on_cpu import persistent_kernels

from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import alignment_of
from minrnn_gen.precision import precision_of

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none"
)


def way(
    model: str,
    head_dim: int,
    heads: int,
    precision: str,
    gap: int,
    flags: str,
    *variables: int,
    grid_blocks: int = 1,
    products_per_tile: int = 1,
) -> Any:
    names = ("cluster_blocks", "row_warps", "split_k_warps", "batch_tile", "stages", "presplit_tf32")
    wanted = {"grid_blocks": grid_blocks, "products_per_tile": products_per_tile, **dict(zip(names, variables, strict=False))}
    return (model, head_dim, heads, precision, gap, flags.split(), wanted)


# Cell, units of a head, heads, precision, values of a gap behind rows (8 are aligned), specialization; cluster_blocks,
# row_warps, split_k_warps, batch_tile, stages, and in fp32 by tensor cores presplit_tf32. Heads of less than a warp, of part of
# a tile, and of several warps and blocks.
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
    way("lstm", 16, 1, "fp32", 8, "resets", 1, 1, 1, 8, 4, 1),
    way("lstm", 40, 1, "fp32", 4, "reverse resets arithmetic", 2, 2, 2, 4, 4, 0),
    way("gru", 24, 2, "fp32", 1, "storage", 1, 2, 4, 2, 8, 1),
    way("slstm", 16, 3, "fp32", 8, "reverse resets", 2, 1, 2, 2, 4, 1),
    way("elman", 40, 1, "fp32", 2, "resets storage", 4, 1, 4, 8, 8, 0),
    way("light_gru", 7, 3, "fp32", 1, "reverse resets arithmetic", 1, 1, 1, 4, 4, 1),
    way("lstm", 24, 1, "fp32", 8, "resets fma", 1, 2, 2, 8, 4),
    way("gru", 40, 1, "fp32", 1, "reverse arithmetic fma", 2, 2, 1, 4, 4),
    way("slstm", 16, 3, "fp32", 8, "reverse resets fma", 2, 1, 2, 2, 8),
    way("light_gru", 5, 2, "fp32", 2, "resets storage fma", 1, 1, 1, 8, 4),
    way("lstm", 24, 1, "fp64", 2, "resets arithmetic", 2, 1, 2, 2, 4),
    way("gru", 16, 2, "fp64", 1, "reverse", 1, 1, 1, 4, 4),
    way("elman", 40, 1, "fp64", 2, "reverse resets storage", 1, 4, 2, 8, 8),
    way("lstm", 40, 1, "bf16", 8, "few_registers resets", 1, 3, 1, 2, 4),
    way("lstm", 60, 1, "fp16", 1, "few_registers arithmetic", 2, 2, 1, 2, 2),
    way("gru", 24, 1, "fp16", 8, "resets debug", 2, 1, 2, 2, 4),
    way("lstm", 40, 1, "bf16", 8, "resets", 1, 1, 2, 4, 4, grid_blocks=3),
    way("gru", 40, 1, "fp16", 1, "reverse arithmetic", 1, 2, 1, 8, 2, grid_blocks=2),
    way("slstm", 24, 2, "fp32", 8, "resets", 1, 1, 2, 2, 4, 0, grid_blocks=2),
    way("elman", 60, 1, "fp64", 2, "storage", 1, 2, 2, 4, 4, grid_blocks=2),
    way("light_gru", 24, 1, "fp32", 1, "reverse fma debug", 1, 1, 1, 8, 4, grid_blocks=2),
    way("gru", 40, 1, "fp32", 1, "reverse arithmetic tf32", 2, 2, 2, 4, 4),
    way("lstm", 40, 1, "fp32", 8, "few_registers resets tf32", 1, 3, 1, 2, 4),
    way("light_gru", 33, 1, "fp32", 1, "few_registers reverse storage tf32", 2, 2, 1, 8, 2),
    way("slstm", 16, 3, "fp32", 8, "resets tf32", 2, 1, 2, 2, 8),
    way("elman", 60, 1, "fp32", 4, "resets tf32", 1, 2, 2, 4, 4, grid_blocks=2),
    way("lstm", 40, 1, "bf16", 8, "resets", 2, 3, 1, 4, 4, products_per_tile=2),
    way("gru", 24, 2, "fp16", 1, "reverse resets arithmetic", 1, 4, 1, 8, 4, products_per_tile=2),
    way("slstm", 60, 1, "bf16", 4, "storage resets", 4, 2, 2, 8, 2, products_per_tile=2),
)
ALL_SCOPES = [WAYS[0], WAYS[2], WAYS[5], WAYS[12], WAYS[19], WAYS[21], WAYS[27], WAYS[35]]


def cases_of(folder: Path, one: Any, resets: bool | None = None) -> st.SearchStrategy[Case]:
    model, head_dim, heads, precision, gap, flags, variables = one
    has_resets = "resets" in flags if resets is None else resets
    kept = next((flag for flag in flags if flag in ("storage", "arithmetic")), "none")
    value_bytes = precision_of(precision).storage_bytes
    specialization = Specialization(
        alignment_of(value_bytes * head_dim, value_bytes * gap), "reverse" in flags, has_resets, kept
    )
    product = next((flag for flag in flags if flag in ("fma", "tf32")), "tf32x3")
    gpu = "a100" if variables["grid_blocks"] > 1 else "h200"  # the one without clusters
    bounds = ("few_registers" in flags, "debug" in flags)
    kernels = persistent_kernels(folder, model, head_dim, heads, precision, specialization, product, *bounds, gpu, **variables)
    return cases(
        st.just(kernels),
        ("BTD", "TBD"),
        gap,
        kept=("real" if kept == "arithmetic" else kept,),
        reverse=(specialization.reverse,),
        has_resets=(specialization.resets,),
    )


# Nine tenths of them in the whole matrix only: compiling one takes seconds, and every kind of kernel is emulated elsewhere.
@pytest.mark.parametrize(
    "one",
    [pytest.param(one, marks=pytest.mark.matrix_full if number % 10 else ()) for number, one in enumerate(WAYS)],
    ids=str,
)
@settings(max_examples=examples(7))  # of them each takes some milliseconds per thread and step
@given(data=st.data())
def test_both_passes_do_what_plain_loops_do(one: Any, folder: Path, data: st.DataObject) -> None:
    case = data.draw(cases_of(folder, one))
    check_forward(case)
    check_backward(case)


# Each with the largest error it may have, relative to the sum of all products without their signs: that of a product, and that
# of a sum as often as there are some. The two tf32 that stand for a number are off by 2^-22 of it, twice, and the product of
# the small ones is not there; a tensor core adds up eight products at once and cuts off. Behind the products are sums of warps,
# of chains, of large and small parts, and with the gate.
LAST_SUMS = 8
EXACT = (
    (way("linear", 48, 1, "fp32", 8, "", 2, 2, 1, 8, 4, 1), 3 * 2.0**-22 + (48 / 8 + LAST_SUMS) * 2.0**-23),
    (way("linear", 48, 1, "fp32", 8, "", 1, 3, 1, 2, 4, 0), 3 * 2.0**-22 + (48 / 8 + LAST_SUMS) * 2.0**-23),
    (way("linear", 48, 1, "fp32", 8, "fma", 2, 2, 2, 4, 4), (48 + LAST_SUMS) * 2.0**-24),
    # Of the factors as they are rounded.
    (way("linear", 48, 1, "fp32", 8, "tf32", 2, 2, 1, 8, 4), (48 / 8 + LAST_SUMS) * 2.0**-23),
    (way("linear", 48, 1, "fp32", 8, "few_registers tf32", 1, 3, 1, 2, 4), (48 / 8 + LAST_SUMS) * 2.0**-23),
    (way("linear", 48, 1, "fp64", 2, "", 1, 3, 1, 8, 4), (48 + LAST_SUMS) * 2.0**-53),
)


@pytest.mark.parametrize(("one", "error"), EXACT, ids=str)
@settings(max_examples=examples(7))
@given(data=st.data())
def test_products_are_as_exact_as_their_precision(one: Any, error: float, folder: Path, data: st.DataObject) -> None:
    case = replace(data.draw(cases_of(folder, one)), bias=None, recurrent_bias=None, resets=None)
    random = np.random.default_rng(case.seed)
    # Of all signs and exponents within 2^±20.
    R, initial = (
        (random.normal(size=array.shape) * 2.0 ** random.integers(-20, 20, array.shape)).astype(array.dtype)
        for array in (case.R, np.zeros((len(case.sequences), case.kernels.hidden), case.kernels.real))
    )
    case = replace(case, x=np.zeros_like(case.x), R=R, initial={"h": initial})
    y, exact = case.kernels.forward(case).y, products_of(case, initial)[:, 0, 0]
    size = products_of(replace(case, R=np.abs(R)), np.abs(initial))[:, 0, 0]
    for sequence, (batch, _, _) in enumerate(case.sequences):
        for row in case.rows(sequence)[:1]:
            assert (np.abs(y[batch, row] - exact[sequence]) <= error * size[sequence]).all()


@pytest.mark.parametrize("one", one_in(2, ((scope,) for scope in ALL_SCOPES)), ids=str)
@settings(max_examples=5)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_whoever_comes_first_the_results_are_the_same_bits(one: Any, folder: Path, data: st.DataObject, seed: int) -> None:
    case = data.draw(cases_of(folder, one))
    assert_same_bits(case, replace(case, seed=seed))


# With the same kernels.
@pytest.mark.parametrize("one", one_in(2, ((scope,) for scope in ALL_SCOPES)), ids=str)
@settings(max_examples=5)
@given(data=st.data())
def test_nan_stays_in_its_sequence_and_behind_a_reset(one: Any, folder: Path, data: st.DataObject) -> None:
    check_that_nan_stays(data.draw(cases_of(folder, one)), data)
