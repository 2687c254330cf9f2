"""The same text of every kind of kernel, compiled for the GPU and for the host, gives the same but for the order of sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import ModuleType

import pytest
from support.device_arrays import moved
from support.kernel_kinds import KINDS, Call, Kind, made, results_of, times_of
from support.small_problems import WantedBuilder

from minrnn_gen.build.artifact import BuiltKernel
from minrnn_gen.build.nvrtc import compile_source
from minrnn_gen.interpret.cases import PIECE_STEPS, Inputs
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import backward_of, forward_of, share_of
from minrnn_gen.kernel import Kernel
from minrnn_gen.plan.problem import KernelKey

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_compiler(), reason="the host half is compiled by a C++ compiler, and there is none"),
]

# What small heads are not planned for where there are clusters.
LARGE = (
    Kind("large grid", {"model": "lstm", "hidden_size": 1024, "precision": "bf16"}, {"grid_blocks": 64, "batch_tile": 2}),
    Kind("large grid fp32", {"model": "elman", "hidden_size": 768}, {"grid_blocks": 48, "batch_tile": 2}),
    Kind("large step by step", {"model": "gru", "hidden_size": 512, "precision": "fp64"}, {}),
)
GIVEN = frozenset({"bias", "state", "dstate", "lengths"})


@dataclass(frozen=True)
class CompiledBuilder(WantedBuilder):
    """Builds what runs on the host for the GPU: the same plans, the same text to the byte."""

    def build(self, key: KernelKey) -> BuiltKernel:
        built = super().build(key)
        compiled = compile_source(built.source, built.plan)
        return replace(built, cubin=compiled.cubin, resources=compiled.kernels)


def on_gpu_of(kernel: Kernel, wanted: Mapping[str, int]) -> Kernel:
    """Return the same kernel for the GPU."""
    host = kernel.builder
    builder = CompiledBuilder(host.spec, host.target, host.store, wanted=tuple(wanted.items()))
    return Kernel(builder, (builder.build(KernelKey.of(kernel.plan)),))


def call_of(kind: Kind, kernel: Kernel, with_resets: bool) -> Call:
    time = 5 if "large" in kind.name else times_of(kernel.plan)[0]
    if kernel.plan.problem.layout == "BDT" and "vectors" in kind.name:
        time = max(time - time % PIECE_STEPS, PIECE_STEPS)
    given = GIVEN & {"state", "dstate"} if kind.is_raw else GIVEN | ({"resets"} if with_resets else set())
    return Call(kernel.plan.variables.get("batch_tile", 2) + 1, time, 0.0, given)


@pytest.mark.parametrize("with_resets", [False, True], ids=["plain", "resets"])
@pytest.mark.parametrize("kind", [*KINDS, *LARGE], ids=str)
def test_a_gpu_computes_what_the_host_does(cupy: ModuleType, kind: Kind, with_resets: bool) -> None:
    # For the GPU at hand, whatever the kind is planned for elsewhere.
    here = replace(kind, spec={**kind.spec, "gpu": None})
    its = made(here)
    kernel = on_gpu_of(its.kernel, kind.wanted)
    inputs = call_of(kind, its.kernel, with_resets).inputs(its.kernel)
    on_gpu = Inputs(*(moved(one, cupy.asarray) for one in (inputs.forward, inputs.dy, inputs.dstate, inputs.step)))
    forward, saved = forward_of(kernel, on_gpu)
    found = forward, backward_of(kernel, on_gpu, saved)
    for results, expected in zip(found, results_of(its.kernel, inputs), strict=True):
        for name, one in expected.items():
            # Both are as far as this from the exact result at most; sums of products, and functions, differ by less.
            assert share_of(cupy.asnumpy(results[name]), one, its.slack) <= 1, name
    assert all(kernel.plans[key].variables == plan.variables for key, plan in its.kernel.plans.items())
