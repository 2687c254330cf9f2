"""The kernel of dropout keeps what its plan promises, on every GPU: offline, without a GPU."""

from __future__ import annotations

import itertools

import pytest
from support.everyday import one_in
from support.rendered_kernels import builder_of

from minrnn_gen.build.nvrtc import compile_source, toolchain_version
from minrnn_gen.codegen.render import render
from minrnn_gen.config.gpu_profile import load_profile, profile_names
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.precision import PRECISION_NAMES, precision_of

pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")

# Every day each precision and alignment on a few GPUs; the rest is part of the whole matrix.
CASES = one_in(
    27,
    (
        (precision, gpu, alignment)
        for precision, gpu, alignment in itertools.product(PRECISION_NAMES, profile_names(), (2, 4, 8, 16))
        if alignment >= precision_of(precision).storage_bytes
    ),
)


@pytest.mark.parametrize(("precision", "gpu", "alignment"), CASES)
def test_every_candidate_keeps_its_promise(precision: str, gpu: str, alignment: int) -> None:
    builder = builder_of("ind_rnn", gpu, precision=precision)
    solution = builder.solve(builder.key_of("dropout", Specialization(alignment)))
    for rank in range(len(solution.candidates)):
        plan = solution.plan(rank)
        (kernel,) = compile_source(render(plan, builder.lowered_for("dropout"), ()), plan).kernels
        assert kernel.spill_bytes == 0 and 0 < kernel.registers <= plan.budget.registers_per_thread
        assert kernel.registers <= plan.budget.registers_estimated and kernel.shared_bytes == plan.budget.shared_bytes == 0


@pytest.mark.parametrize("gpu", profile_names())
@pytest.mark.parametrize("model", ["lstm", "min_gru", "ind_rnn"])
def test_one_kernel_serves_all_sizes_with_enough_bytes_in_flight(gpu: str, model: str) -> None:
    builder, profile = builder_of(model, gpu, precision="bf16"), load_profile(gpu)
    (kernel,) = builder.classes("dropout", Specialization(16)).sizes.kernels
    plan = builder.solve(builder.key_of("dropout", Specialization(16))).plan()
    assert kernel.family == plan.entry == "dropout" and plan.prediction.passed_over == ""
    assert plan.budget.blocks_per_sm * plan.launch.threads * plan.launch.copy_bytes >= profile.bytes_in_flight_per_sm
