"""Kernels of steps on pools keep what their plans promise: offline, without a GPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from support.rendered_kernels import builder_of

from minrnn_gen.build.nvrtc import broken_promises, compile_source, toolchain_version
from minrnn_gen.codegen.render import render
from minrnn_gen.config.gpu_profile import profile_names
from minrnn_gen.plan.kernel_plan import StatesOut
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.precision import PRECISION_NAMES

ATTEMPTS = 3
PASSES: tuple[KernelPass, ...] = ("step", "slots", "drafts")
pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")

SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_lstm", "hidden_size": 512},
    {"model": "ind_rnn", "hidden_size": 512},
    {"model": "selective", "hidden_size": 2048, "state_size": 16},
    {"model": "lstm", "hidden_size": 256},
)
CASES = [
    pytest.param(spec, precision, gpu, marks=() if (precision, gpu, s % 2) == ("bf16", "h200", 1) else pytest.mark.matrix_full)
    for s, spec in enumerate(SPECS)
    for precision in PRECISION_NAMES
    for gpu in profile_names()
    if (precision, gpu) != ("bf16", "t4")
]


@pytest.mark.parametrize(("spec", "precision", "gpu"), CASES)
def test_one_of_the_best_candidates_keeps_its_promise(spec: dict[str, Any], precision: str, gpu: str) -> None:
    sizes = dict(spec)
    builder = builder_of(sizes.pop("model"), gpu, precision=precision, **sizes)
    pools: tuple[StatesOut, ...] = ("arithmetic", *(("storage",) if precision in ("bf16", "fp16") else ()))
    replays = (False, True) if builder.cell_source.has_vectors else (False,)
    kinds = ((kernel_pass, again) for kernel_pass in PASSES for again in (replays if kernel_pass == "step" else (False,)))
    for (kernel_pass, again), pool in itertools.product(kinds, pools):
        on_pool = replace(builder.hinted_specialization, pool=pool, replays=again)
        solution, lowered = builder.solve(builder.key_of(kernel_pass, on_pool)), builder.lowered_for(kernel_pass)
        best = map(solution.plan, range(min(ATTEMPTS, len(solution.candidates))))
        assert any(not broken_promises(plan, compile_source(render(plan, lowered, ()), plan).kernels) for plan in best)
