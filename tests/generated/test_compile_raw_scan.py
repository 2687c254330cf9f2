"""The kernels of raw scans keep what their plans promise, complex ones too, on architectures with and without clusters."""

from __future__ import annotations

import pytest
from planning import profile

from minrnn_gen.build import Target
from minrnn_gen.compiler import toolchain_version
from minrnn_gen.errors import Infeasible
from minrnn_gen.gpu_profile import profile_bytes
from minrnn_gen.plan.kernel_plan import Regime
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.precision import precision_of
from minrnn_gen.raw.arrangement import RawLayout
from minrnn_gen.raw.kernels import RawPrecision, raw_builder

pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")


@pytest.mark.parametrize("gpu", ["a100", "h100"])
@pytest.mark.parametrize("kernel_pass", ["forward", "backward"])
@pytest.mark.parametrize(("layout", "hidden_size"), [("BTD", 1536), ("BTD", 33), ("BDT", 1)])
@pytest.mark.parametrize("precision", ["complex64", "complex128"])
def test_a_complex_scan_keeps_its_promise(
    precision: RawPrecision, layout: RawLayout, hidden_size: int, kernel_pass: KernelPass, gpu: str
) -> None:
    target = Target(profile(gpu), profile_bytes(gpu), "spec")
    builder = raw_builder(precision, hidden_size, layout, False, target)
    alignment = precision_of(precision).storage_bytes if hidden_size == 33 else 16
    built = builder.build(kernel_pass, Regime(alignment))
    assert built.resources is not None
    (kernel,) = built.resources
    assert kernel.spill_bytes == 0 and kernel.shared_bytes == built.plan.shared_bytes
    assert kernel.registers <= built.plan.registers_per_thread
    print(precision, layout, hidden_size, kernel_pass, gpu, kernel, built.plan.registers_estimated, len(built.dropped), dict(built.plan.variables), built.seconds)
