"""The persistent kernels of dense cells keep what their plan promises, with clusters and without: offline, without a GPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from support.everyday import in_turn
from support.rendered_kernels import builder_of

from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.plan.solver import ATTEMPTS_AT_ONCE

pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")

FULL = pytest.mark.matrix_full
MODELS, GPUS = ("lstm", "gru", "slstm", "elman"), ("h100", "a100", "rtx4090", "b200")
# Less than a tile, an uneven number of tiles, one block, and several.
HEAD_DIMS = (16, 40, 64, 128, 256)
# Every head size on every GPU and of every cell; every day every other cell, and the others in wider precisions.
CASES = tuple(
    pytest.param(model, GPUS[(m + d) % 4], head_dim, {"precision": "bf16"}, marks=() if (m + 2 * d) % 10 == 0 else FULL)
    for (m, model), (d, head_dim) in itertools.product(enumerate(MODELS), enumerate(HEAD_DIMS))
)
PASSES: tuple[KernelPass, ...] = ("forward", "backward")


# Every way to multiply in fp32 and fp64, on every GPU and of every cell; odd sizes have rows at multiples of one value.
WIDE: tuple[dict[str, Any], ...] = ({"precision": "fp32"}, {"precision": "fp32", "fp32_product": "fma"}, {"precision": "fp64"})
WIDE_GPUS = ("h200", "h100", "a100", "rtx4090", "b200", "rtx5090")
# Every day each cell once, with each way to multiply and each size; the rest is part of the whole matrix.
WIDE_CASES = tuple(
    pytest.param(model, gpu, head_dim, WIDE[(m + g + s) % 3], marks=() if s == (m + 2 * g) % 3 and m + g == 4 else FULL)
    for (m, model), (g, gpu), (s, head_dim) in itertools.product(
        enumerate(MODELS), enumerate(WIDE_GPUS), enumerate((16, 33, 128))
    )
)

# One product in tf32 for each of fp32: heads of a block, of clusters, of which shared memory has a part, and of a grid.
TF32 = {"precision": "fp32", "fp32_product": "tf32"}
TF32_EVERY_DAY = {("elman", "h100", 256)}
TF32_CASES = tuple(
    pytest.param(*case, TF32, marks=() if case in TF32_EVERY_DAY else FULL)
    for case in itertools.product(MODELS, WIDE_GPUS, (16, 33, 128, 256, 512, 768))
)


@pytest.mark.parametrize(("model", "gpu", "head_dim", "spec"), (*CASES, *WIDE_CASES, *TF32_CASES))
def test_the_kernel_that_is_taken_keeps_its_promise(model: str, gpu: str, head_dim: int, spec: dict[str, Any]) -> None:
    builder = builder_of(model, gpu, hidden_size=head_dim, **spec)
    for kernel_pass in PASSES:
        # With all that a specialization may add to the text.
        kept: Any = "arithmetic" if kernel_pass == "forward" else "none"
        specialization = replace(builder.hinted_specialization, resets=True, reverse=True, states_out=kept)
        built = builder.build(builder.key_of(kernel_pass, specialization))
        assert built.resources is not None and built.dropped == ()
        assert built.plan.is_persistent == (not built.plan.prediction.passed_over)
        for kernel in built.resources:
            assert kernel.spill_bytes == 0 and 0 < kernel.registers <= built.plan.budget.registers_per_thread


# A model's hidden size in heads, and layers of one head up to more than fits; rows at multiples of 2, 4, 8 and 16 bytes.
LAYERS = ((12, 64), (6, 128), (3, 256), (4, 48), (1, 32), (1, 33), (1, 100), (1, 256), (1, 512), (1, 640), (1, 768), (1, 1024))
LAYER_GPUS, PRECISIONS, BATCHES = ("h200", "h100", "a100", "rtx4090"), ("bf16", "fp16", "fp32"), (16, 1, 64)
# The largest that are persistent, and of each kind of the others one.
FIRST_HOLDS = (
    ("lstm", "h200", (1, 512), "bf16"), ("gru", "h100", (1, 768), "fp16"), ("slstm", "h200", (1, 640), "bf16"),
    ("elman", "h100", (1, 1024), "bf16"), ("lstm", "h100", (1, 768), "bf16"), ("gru", "a100", (3, 256), "bf16"),
    ("lstm", "rtx4090", (6, 128), "fp16"), ("slstm", "a100", (12, 64), "fp32"), ("slstm", "rtx4090", (1, 33), "bf16"),
)  # fmt: skip
EVERY_DAY = FIRST_HOLDS[::6]
LAYER_CASES = tuple(
    pytest.param(
        *case,
        BATCHES[(number + number // 3 + number // 36) % len(BATCHES)],
        marks=() if case in EVERY_DAY else FULL,
    )
    for number, case in enumerate(itertools.product(MODELS, LAYER_GPUS, LAYERS, PRECISIONS))
)


@pytest.mark.parametrize(("model", "gpu", "layer", "precision", "batch"), LAYER_CASES)
def test_training_gets_what_was_planned_first(model: str, gpu: str, layer: tuple[int, int], precision: str, batch: int) -> None:
    """Nobody waits long for kernels that are then thrown away: the first holds, or else one of those that are tried next."""
    heads, head_dim = layer
    builder = builder_of(model, gpu, hidden_size=heads * head_dim, heads=heads, precision=precision, batch=batch, time=1024)
    for kernel_pass in PASSES:
        kept: Any = "arithmetic" if kernel_pass == "forward" else "none"
        built = builder.build(builder.key_of(kernel_pass, replace(builder.hinted_specialization, states_out=kept)))
        assert len(built.dropped) <= (0 if (model, gpu, layer, precision) in FIRST_HOLDS else ATTEMPTS_AT_ONCE), built.dropped
        assert built.resources is not None and all(kernel.spill_bytes == 0 for kernel in built.resources)


@pytest.mark.parametrize(("model", "head"), in_turn(MODELS, [("h100", 256), ("a100", 64), ("rtx4090", 64), ("b200", 128)]))
def test_heads_of_these_sizes_are_persistent(model: str, head: tuple[str, int]) -> None:
    gpu, head_dim = head
    builder = builder_of(model, gpu, precision="fp16", hidden_size=4 * head_dim, heads=4)
    for kernel_pass in PASSES:
        assert builder.solve(builder.key_of(kernel_pass, builder.hinted_specialization)).plan().is_persistent, kernel_pass


@pytest.mark.parametrize(
    ("spec", "head"), in_turn((*WIDE, TF32), [("lstm", "h200", 128), ("gru", "b200", 128), ("slstm", "a100", 32)]), ids=str
)
def test_wide_heads_of_these_sizes_are_persistent(spec: dict[str, Any], head: tuple[str, str, int]) -> None:
    model, gpu, head_dim = head
    builder = builder_of(model, gpu, hidden_size=4 * head_dim, heads=4, **spec)
    for kernel_pass in PASSES:
        plan = builder.solve(builder.key_of(kernel_pass, builder.hinted_specialization)).plan()
        assert plan.is_persistent, (kernel_pass, plan.prediction.passed_over)
        assert plan.problem.matrix_product == spec.get("fp32_product", "tf32x3" if spec["precision"] == "fp32" else "fma")


def test_the_reason_is_said_where_a_kernel_is_not_persistent() -> None:
    for spec, reason in (
        ({"precision": "fp32", "fp32_product": "fma", "hidden_size": 1024}, "units_of_head"),
        ({"precision": "bf16", "layout": "BDT"}, "layout BDT"),
        ({"precision": "fp64", "layout": "BDT"}, "layout BDT"),
    ):
        builder = builder_of("lstm", **spec)
        plan = builder.solve(builder.key_of("forward", builder.hinted_specialization)).plan()
        assert not plan.is_persistent and reason in plan.prediction.passed_over
    on_sm_80 = builder_of("lstm", "a100", precision="bf16", hidden_size=8192)
    plan = on_sm_80.solve(on_sm_80.key_of("forward", on_sm_80.hinted_specialization)).plan()
    assert not plan.is_persistent and "units_of_head" in plan.prediction.passed_over
    for precision in ("fp16", "fp32"):
        old = builder_of("lstm", "t4", precision=precision, hidden_size=64)
        assert "sm_80" in old.solve(old.key_of("forward", old.hinted_specialization)).plan().prediction.passed_over
