"""The kernels of raw scans keep what their plans promise, complex ones too, on architectures with and without clusters."""

from __future__ import annotations

import pytest
from support.rendered_kernels import profile

from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.build.target import Target
from minrnn_gen.config.gpu_profile import profile_bytes
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelPass, Sizes
from minrnn_gen.raw_scan.arrangement import RawLayout
from minrnn_gen.raw_scan.kernels import RawPrecision, raw_builder

pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")

FULL = pytest.mark.matrix_full


def check_promise(
    precision: RawPrecision,
    layout: RawLayout,
    hidden_size: int,
    log_a: bool,
    gpu: str,
    kernel_pass: KernelPass,
    specialization: Specialization,
) -> None:
    target = Target(profile(gpu), profile_bytes(gpu), "spec")
    builder = raw_builder(precision, hidden_size, layout, log_a, target)
    built = builder.build(builder.key_of(kernel_pass, specialization, Sizes(max(1, 8 * 1536 // hidden_size), 16384)))
    assert built.resources is not None
    (kernel,) = built.resources
    assert kernel.spill_bytes == 0 and kernel.shared_bytes == built.plan.budget.shared_bytes
    assert kernel.registers <= built.plan.budget.registers_per_thread


# Every day each pass in each layout, with one precision on one GPU.
@pytest.mark.parametrize(
    ("precision", "layout", "hidden_size", "kernel_pass", "gpu"),
    [
        pytest.param(
            *(precision, layout, size, kernel_pass, gpu), marks=() if (p + s + k) % 2 == 0 and (s + k + g) % 2 == 0 else FULL
        )
        for p, precision in enumerate(("complex64", "complex128"))
        for s, (layout, size) in enumerate((("BTD", 1536), ("BDT", 1)))
        for k, kernel_pass in enumerate(("forward", "backward"))
        for g, gpu in enumerate(("a100", "h100"))
    ],
)
def test_a_complex_scan_keeps_its_promise(
    precision: RawPrecision, layout: RawLayout, hidden_size: int, kernel_pass: KernelPass, gpu: str
) -> None:
    check_promise(precision, layout, hidden_size, False, gpu, kernel_pass, Specialization(16))


SCANS: tuple[tuple[RawPrecision, RawLayout, int, bool, Specialization], ...] = (
    ("complex64", "BTD", 33, False, Specialization(8, reverse=True)),
    ("complex64", "BTD", 64, False, Specialization(16, resets=False)),
    ("complex128", "BTD", 64, False, Specialization(16, resets=False)),
    ("complex64", "BDT", 1, False, Specialization(8, reverse=True)),
    ("bf16", "BTD", 1536, True, Specialization(16)),
    ("fp16", "BDT", 1, True, Specialization(2)),
    ("fp32", "BTD", 1, False, Specialization(4)),
    ("fp64", "BDT", 1, True, Specialization(16, reverse=True)),
)


# Every day one pass of each, in turn.
@pytest.mark.parametrize(
    ("precision", "layout", "hidden_size", "log_a", "specialization", "kernel_pass"),
    [
        pytest.param(*scan, kernel_pass, marks=() if (number + turn) % 2 else FULL)
        for number, scan in enumerate(SCANS)
        for turn, kernel_pass in enumerate(("forward", "backward"))
    ],
)
def test_a_scan_keeps_its_promise(
    precision: RawPrecision,
    layout: RawLayout,
    hidden_size: int,
    log_a: bool,
    specialization: Specialization,
    kernel_pass: KernelPass,
) -> None:
    check_promise(precision, layout, hidden_size, log_a, "h200", kernel_pass, specialization)
