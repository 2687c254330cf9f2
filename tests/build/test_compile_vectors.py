"""Kernels for n values per channel, compiled for the GPU without one: within their promises, and nothing in local memory."""

from __future__ import annotations

import pytest

from minrnn_gen.build.builder import builder_of
from minrnn_gen.build.nvrtc import broken_promises, compile_source
from minrnn_gen.codegen.render import render
from minrnn_gen.config.spec import load_spec
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.run.target import target_of

pytest.importorskip("cupy")

# Of Mamba's state size an SM has room for two warps in each of its partitions at least, of a forward.
REGISTERS_MOST = {"forward": 168, "backward": 255, "step": 96}


# Every day each cell, each pass and each precision.
@pytest.mark.parametrize(
    ("model", "precision", "kernel_pass"),
    [
        pytest.param(model, precision, kernel_pass, marks=() if (m + p + k) % 4 == 1 else pytest.mark.matrix_full)
        for m, model in enumerate(("selective", "gated_linear", "s4d"))
        for p, precision in enumerate(("fp32", "bf16"))
        for k, kernel_pass in enumerate(("forward", "backward", "step"))
    ],
)
def test_sixteen_values_stay_in_registers(model: str, precision: str, kernel_pass: KernelPass) -> None:
    sizes = {"hidden_size": 2048, "state_size": 16, "batch": 8, "time": 4096}
    spec = load_spec({"model": model, "precision": precision, "gpu": "h200", **sizes})
    builder = builder_of(spec, target_of(spec))
    solution = builder.solve(builder.key_of(kernel_pass, builder.hinted_specialization))
    plan = solution.plan()
    (resources,) = (compiled := compile_source(render(plan, builder.lowered_for(kernel_pass), ()), plan)).kernels
    assert not broken_promises(plan, compiled.kernels)
    assert resources.stack_bytes == 0 and resources.registers <= REGISTERS_MOST[kernel_pass]
