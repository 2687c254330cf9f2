"""Both kernels of every file for dense cells keep what their plan promises, on every GPU: offline, without a GPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.everyday import one_in
from support.norm_cells import GATES_TOGETHER, OF_BOTH, OF_ROUNDS
from support.rendered_kernels import builder_of
from support.uncompiled_kernels import nothing_compiled

from minrnn_gen.build.nvrtc import toolchain_version
from minrnn_gen.cell.files import library_names
from minrnn_gen.cell.lowering_steps import LoweredSteps
from minrnn_gen.config.gpu_profile import profile_names
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.precision import PRECISION_NAMES

pytestmark = pytest.mark.skipif(toolchain_version() is None, reason="NVRTC is not installed (the extras cuda13 and cuda12)")

# Parameters, a gate without a product, and functions that are long in float64.
HEAVY: dict[str, Any] = {
    "name": "heavy",
    "equations": (
        "a = softplus(W.a + R.a) * exp(-abs(u))\nb = logsigmoid(W.b + R.b * v)\nc = log1p(abs(W.c + R.c)) / (1 + a)\n"
        "s[t] = exp(b) * s[t-1] + silu(W.d) * c\nn[t] = sqrt(abs(n[t-1]) + a) - expm1(b)\n"
        "h[t] = tanh(s[t]) * sigmoid(W.e + R.e) + u * n[t] * h[t-1]"
    ),
    "parameters": ["u", "v"],
    "states": ["h", "s", "n"],
}
DENSE = ("elman", "gru", "lstm", "slstm", "peephole_lstm", "recurrent_lif", "gru_reset_before", "layer_norm_lstm")
MODELS = {**{name: name for name in DENSE}, "heavy": HEAVY}
NORMED = {"layer_norm_lstm"}
HEADS_AND_SIZES = ((1, 512), (4, 768), (3, 33))
# Every day every other cell on one GPU; the rest is part of the whole matrix.
CASES = tuple(
    pytest.param(model, gpu, precision, *sizes, marks=() if (m + 2 * g) % 20 == 1 else pytest.mark.matrix_full)
    for (m, model), (g, gpu) in itertools.product(enumerate(MODELS), enumerate(profile_names()))
    for precision, sizes in [(PRECISION_NAMES[(m + g) % 4], HEADS_AND_SIZES[(m + g) % 3])]
)


def test_these_are_the_dense_cells() -> None:
    lowered = {name: builder_of(name).lowered for name in library_names()}
    assert {name for name, one in lowered.items() if isinstance(one, LoweredSteps) and one.recurrent_gates} == set(DENSE)


@pytest.mark.parametrize(("model", "gpu", "precision", "heads", "hidden_size"), CASES)
def test_both_kernels_keep_their_promise(model: str, gpu: str, precision: str, heads: int, hidden_size: int) -> None:
    # The text is the same in every layout, and in this one nothing is persistent.
    sizes = {"heads": heads, "hidden_size": hidden_size, "layout": "BDT"}
    builder = builder_of(MODELS[model], gpu, precision=precision, **sizes)
    passes: tuple[KernelPass, ...] = ("forward", "backward")
    for kernel_pass in passes:
        built = builder.build(builder.key_of(kernel_pass, builder.hinted_specialization))
        plan = built.plan
        assert built.resources is not None and built.dropped == ()
        assert plan.problem.heads == heads and bool(plan.budget.shared_bytes) == (model in NORMED)
        assert sorted(kernel.name for kernel in built.resources) == [f"{plan.symbol}_begin", f"{plan.symbol}_step"]
        for kernel in built.resources:
            assert kernel.spill_bytes == 0 and 0 < kernel.registers <= plan.budget.registers_per_thread


@pytest.mark.parametrize("model", MODELS)
def test_where_a_step_has_no_kernel_of_its_own_it_is_a_forward_of_one(model: str) -> None:
    """And its source is the same for all layouts and directions, but for the header."""
    sources = set()
    for kernel_pass, layout, direction in (("forward", "BTD", "forward"), ("step", "BDT", "reverse")):
        builder = builder_of(MODELS[model], "t4", layout=layout, direction=direction)  # where nothing is persistent
        *_, solution = builder.solutions(builder.key_of(kernel_pass, builder.hinted_specialization))
        assert solution.family.name == ("normed_forward" if model in NORMED else "stepwise_forward")
        with nothing_compiled():
            source = builder.build_candidate(solution, 0).source
        sources.add("\n".join(line for line in source.splitlines() if not line.startswith("//")))
    assert len(sources) == 1


def test_a_backward_says_what_it_reads_and_what_it_computes_again() -> None:
    """The LSTM's backward recomputes the products of its output; it reads the cell state as saved."""
    builder = builder_of("lstm")
    plan = builder.solve(builder.key_of("backward", builder.hinted_specialization)).plan()
    assert plan.problem.saved_values == ("y", "state c")
    assert plan.problem.recomputed_values[:4] == ("product i", "product f", "product z", "product o")
    assert {"i", "f", "z", "o"} <= set(plan.problem.recomputed_values)
    forward = builder.solve(builder.key_of("forward", builder.hinted_specialization)).plan()
    assert forward.problem.saved_values == forward.problem.recomputed_values == ()
    scan = builder_of("qrnn")
    assert scan.solve(scan.key_of("backward", scan.hinted_specialization)).plan().problem.saved_values == ("state c",)
    assert scan.solve(scan.key_of("backward", scan.hinted_specialization)).plan().problem.recomputed_values == ("f", "o", "z")


@pytest.mark.parametrize("cell", one_in(3, [OF_ROUNDS, OF_BOTH, GATES_TOGETHER]), ids=lambda cell: cell["name"])
def test_norms_of_more_units_than_threads_keep_their_promise(cell: dict[str, Any]) -> None:
    builder = builder_of(cell, "h100", precision="fp64", hidden_size=700)
    built = builder.build(builder.key_of("backward", builder.hinted_specialization))
    assert built.plan.name == "normed_backward" and built.dropped == ()
