"""The rulers of `minrnn-gen calibrate` compile for every GPU that has what they measure, and spill nothing."""

from __future__ import annotations

import pytest

from minrnn_gen.build.nvrtc import compile_source
from minrnn_gen.codegen.render import Microbenchmark, Types, render_microbenchmark
from minrnn_gen.config.gpu_profile import load_profile, profile_names

ENTRIES = {
    "every_gpu": {"nothing", "chase", "block_exchange", "grid_exchange", "transcendentals"},
    "cluster": {"cluster_exchange"},
    "matrix": {"products"},
}
ARCHITECTURES = {profile.arch: profile for profile in map(load_profile, profile_names())}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_rulers_compile(arch: str) -> None:
    pytest.importorskip("cupy", reason="NVRTC comes with it")
    profile = ARCHITECTURES[arch]
    has = {"every_gpu": True, "cluster": profile.has_clusters, "matrix": profile.has_bf16_arithmetic}
    for name, entries in ENTRIES.items():
        if has[name]:
            ruler = Microbenchmark(name, Types(arch, "bfloat16"))
            compiled = compile_source(render_microbenchmark(ruler), ruler)
            assert {kernel.name for kernel in compiled.kernels} == entries
            assert all(kernel.spill_bytes == 0 for kernel in compiled.kernels)
