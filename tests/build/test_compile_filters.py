"""The kernels of filters keep what their plans promise, on every GPU: offline, without a GPU."""

from __future__ import annotations

import itertools

import pytest
from support.everyday import one_in

from minrnn_gen.build.nvrtc import compile_source, toolchain_version
from minrnn_gen.build.target import Target
from minrnn_gen.codegen.render import render
from minrnn_gen.config.gpu_profile import load_profile, profile_bytes, profile_names
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelPass, Sizes
from minrnn_gen.plan.scan.filter import ORDER_MOST
from minrnn_gen.precision import PrecisionName, precision_of
from minrnn_gen.raw_scan.filter_kernels import filter_builder

pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")

PASSES: tuple[KernelPass, ...] = ("filter", "filter_backward")
PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "fp64")
SIZES = (Sizes(64, 1 << 19), Sizes(2, 4096))
# Every day each order once, with each pass and precision, and of both sizes the best candidate and the last; the rest is part
# of the whole matrix.
CASES = one_in(101, itertools.product(PASSES, PRECISIONS, range(1, ORDER_MOST + 1), profile_names(), SIZES, (True, False)))


@pytest.mark.parametrize(("kernel_pass", "precision", "order", "gpu", "sizes", "is_best"), CASES)
def test_what_is_chosen_keeps_its_promise(
    kernel_pass: KernelPass, precision: PrecisionName, order: int, gpu: str, sizes: Sizes, is_best: bool
) -> None:
    builder = filter_builder(precision, order, Target(load_profile(gpu), profile_bytes(gpu), "spec"))
    alignment = precision_of(precision).storage_bytes
    solution = builder.solve(builder.key_of(kernel_pass, Specialization(alignment), sizes))
    plan = solution.plan(0 if is_best else len(solution.candidates) - 1)
    (kernel,) = compile_source(render(plan, builder.lowered_for(kernel_pass), ()), plan).kernels
    assert kernel.spill_bytes == 0 and 0 < kernel.registers <= plan.budget.registers_per_thread
    assert kernel.shared_bytes == plan.budget.shared_bytes
