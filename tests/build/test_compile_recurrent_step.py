"""The step of dense cells keeps what its plan promises, on every GPU: offline, without a GPU."""

from __future__ import annotations

import itertools

import pytest
from support.everyday import one_in
from support.rendered_kernels import builder_of
from test_compile_alternating import MODELS

from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.config.gpu_profile import profile_names
from minrnn_gen.errors import PromiseBroken
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.precision import PRECISION_NAMES

pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")

HEADS_AND_SIZES = ((1, 512), (12, 768), (1, 1024), (3, 99))
DECODED = tuple(MODELS)
# Every day each cell on every fifth GPU; the rest is part of the whole matrix.
CASES = tuple(
    pytest.param(
        model,
        gpu,
        PRECISION_NAMES[(m + g // 2) % 4],
        *HEADS_AND_SIZES[(m + g) % 4],
        marks=() if (m + g) % 10 == 1 else pytest.mark.matrix_full,
    )
    for (m, model), (g, gpu) in itertools.product(enumerate(DECODED), enumerate(profile_names()))
)


@pytest.mark.parametrize(("model", "gpu", "precision", "heads", "hidden_size"), CASES)
def test_the_kernel_that_is_taken_keeps_its_promise(model: str, gpu: str, precision: str, heads: int, hidden_size: int) -> None:
    builder = builder_of(MODELS[model], gpu, precision=precision, heads=heads, hidden_size=hidden_size)
    for batch in (1, 4):
        built = builder.build(builder.key_of("step", builder.hinted_specialization, Sizes(batch, 1)))
        assert built.plan.strategy == "decode" and built.dropped == ()
        assert built.resources is not None
        for kernel in built.resources:
            assert kernel.spill_bytes == 0 and 0 < kernel.registers <= built.plan.budget.registers_per_thread


@pytest.mark.parametrize(
    ("model", "precision", "hidden_size"), one_in(3, [("lstm", "bf16", 512), ("heavy", "fp64", 33), ("gru", "fp32", 1024)])
)
def test_so_do_other_candidates(model: str, precision: str, hidden_size: int) -> None:
    builder = builder_of(MODELS[model], precision=precision, hidden_size=hidden_size)
    solution = builder.solve(builder.key_of("step", builder.hinted_specialization))
    ranks = range(0, len(solution.candidates), max(1, len(solution.candidates) // 4))
    broken = []
    for rank in ranks:
        try:
            builder.build_candidate(solution, rank)
        except PromiseBroken as promise:
            broken.append(str(promise))
    assert broken == [], "the estimate of registers is wrong"


def test_steps_are_planned_for_their_batches() -> None:
    """Few sequences are spread over all SMs, unit by unit; of many, a block has more than one."""
    builder = builder_of("lstm", "h200", precision="bf16", hidden_size=512)
    few, many = (
        builder.solve(builder.key_of("step", builder.hinted_specialization, Sizes(batch, 1))).plan().variables
        for batch in (1, 17)
    )
    assert few["units"] * few["warps"] * builder.target.profile.sm_count >= 512 > 0
    assert few["batch_tile"] == 1 and many["batch_tile"] > 1
