"""Loads of a tile in registers are under way together: nothing between them waits for one. Needs NVRTC, no GPU."""

from __future__ import annotations

import re

import pytest
from support.rendered_kernels import builder_of

from minrnn_gen.build.nvrtc import OPTIONS, make_cupy_cache, toolchain_version
from minrnn_gen.codegen.render import render
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.plan.solver import Solution

pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")

# Parts values of 16 bits at the load: ptxas puts each into its register before it goes on.
PARTED = re.compile(r"ld\.global\S*\.v[248]\.[ub]16")


def ptx_of(solution: Solution, rank: int, lowered: object) -> str:
    from cupy.cuda import compiler as cupy_compiler

    make_cupy_cache()
    text = render(solution.plan(rank), lowered, ())
    program = cupy_compiler._NVRTCProgram(text, "kernel.cu", method="ptx")
    ptx, _ = program.compile(("-arch=compute_90", *OPTIONS[:2]))
    return ptx if isinstance(ptx, str) else ptx.decode()


@pytest.mark.parametrize(
    ("kernel_pass", "layout", "precision"),
    [
        pytest.param("backward", "BTD", "bf16"),
        *(
            pytest.param(kernel_pass, layout, precision, marks=pytest.mark.matrix_full)
            for kernel_pass in ("forward", "backward")
            for layout, precision in (("TBD", "fp16"), ("BDT", "bf16"))
        ),
    ],
)
def test_values_of_16_bits_stay_as_they_were_loaded(kernel_pass: KernelPass, layout: str, precision: str) -> None:
    builder = builder_of("ind_rnn", "h200", precision=precision, layout=layout, hidden_size=64)
    for solution in builder.solutions(builder.key_of(kernel_pass, builder.hinted_specialization)):
        wide = [candidate["channels_per_lane"] > 1 or layout == "BDT" for candidate in solution.candidates]
        ptx = ptx_of(solution, wide.index(True), builder.lowered_for(kernel_pass))
        assert "ld.global" in ptx and not PARTED.search(ptx), solution.family.name
