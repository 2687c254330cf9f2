"""Means and norms over units in the kernels themselves, thread by thread: of a head, of all, and within rounds of products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.norm_cells import EVERY_CELL, GATES_TOGETHER, MIXED_LISTS, OF_BOTH, OF_ROUNDS
from support.round_cells import RESET_BEFORE
from support.small_problems import DENSE, Problem, prepare

from minrnn_gen.build.target import Target
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import STEP, STEP_SIGNATURE
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.kernel import interpreted
from minrnn_gen.interpret.library import Memory
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import Verification
from minrnn_gen.plan.dense import persistent
from minrnn_gen.plan.problem import KernelPass, Sizes
from minrnn_gen.run.dense.launch import CALL_BYTES

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

# A unit for each thread and more, one head and several, every precision, layout and direction.
WAYS: list[tuple[dict[str, Any] | str, dict[str, Any], str]] = [
    ("layer_norm_lstm", {"hidden_size": 24, "precision": "fp32"}, "h100"),
    (OF_ROUNDS, {"hidden_size": 24, "heads": 2, "precision": "fp32"}, "h100"),
    (OF_BOTH, {"hidden_size": 150, "heads": 2, "precision": "bf16", "layout": "TBD", "recurrent_gradient_clip": 0.05}, "h200"),
    (GATES_TOGETHER, {"hidden_size": 24, "heads": 2, "precision": "fp64", "direction": "bidirectional", "layout": "BDT"}, "t4"),
    (OF_BOTH, {"hidden_size": 24, "heads": 3, "precision": "fp32"}, "a100"),
    (OF_ROUNDS, {"hidden_size": 70, "precision": "fp64", "layout": "TBD", "direction": "reverse"}, "a100"),
    ("layer_norm_lstm", {"hidden_size": 200, "precision": "fp16", "input_size": 8}, "h200"),
    (GATES_TOGETHER, {"hidden_size": 600, "precision": "bf16"}, "h100"),
    # All steps in one launch: a cluster, one of which some blocks have no units, a grid; with means over all of one head.
    ("layer_norm_lstm", {"hidden_size": 320, "precision": "bf16"}, "h100"),
    (OF_ROUNDS, {"hidden_size": 72, "precision": "fp32", "layout": "TBD"}, "h200"),
    (GATES_TOGETHER, {"hidden_size": 200, "precision": "fp16", "direction": "reverse"}, "a100"),
    (OF_BOTH, {"hidden_size": 72, "precision": "fp64", "recurrent_gradient_clip": 0.05}, "h200"),
    (OF_ROUNDS, {"hidden_size": 150, "precision": "fp32", "fp32_product": "tf32"}, "a100"),
]


@pytest.mark.parametrize(("cell", "options", "gpu"), one_in(13, WAYS))
def test_kernels_with_norms_are_right(cell: dict[str, Any] | str, options: dict[str, Any], gpu: str) -> None:
    """Against float64, without a race, whatever the order in which threads run."""
    spec = load_spec({"model": cell, "batch": 3, "time": 5, **options})
    verdicts = list(Verification(spec, Target.named(gpu), candidates=1).run())
    assert verdicts and [verdict for verdict in verdicts if not verdict.is_right] == []


def test_every_cell_with_norms_is_tried() -> None:
    assert {cell["name"] for cell, _, _ in WAYS if not isinstance(cell, str)} == {cell["name"] for cell in EVERY_CELL}


@pytest.mark.matrix_full
@pytest.mark.parametrize("kernel_pass", ["forward", "backward"])
@pytest.mark.parametrize(("grid_blocks", "hidden_size"), [(5, 80), (9, 140), (11, 176), (17, 272), (19, 300)])
def test_means_are_those_of_any_number_of_blocks(grid_blocks: int, hidden_size: int, kernel_pass: str) -> None:
    """Lanes share the blocks' means, some of them one more than others."""
    spec = {"model": MIXED_LISTS, "hidden_size": hidden_size, "gpu": "a100"}
    wanted = DENSE | {"grid_blocks": grid_blocks, "row_warps": 1}
    prepared = prepare(Problem("norms", tuple(spec.items()), tuple(wanted.items()), kernel_pass, "long"))
    assert grid_blocks in {plan.variables.get("grid_blocks") for plan in prepared.plans}


@pytest.mark.parametrize("kernel_pass", ["forward", "backward"])
@pytest.mark.parametrize("cell", [OF_ROUNDS, RESET_BEFORE], ids=lambda cell: cell["name"])
def test_a_step_of_a_call_of_zeros_touches_nothing(
    cell: dict[str, Any], kernel_pass: KernelPass, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As steps are enqueued before their graph is captured, on memory that is zero."""
    monkeypatch.setattr(persistent, "refusal", lambda _: "too large")
    kernel = interpreted(load_spec({"model": cell, "hidden_size": 24, "precision": "fp32"}), Target.named("h100"))
    builder = kernel.builder
    step = kernel.backend.load(builder.choose(kernel_pass, builder.hinted_specialization, Sizes(2, 40)))
    assert step.plan.strategy == "stepwise"
    call = np.zeros(CALL_BYTES, np.uint8)
    for index in range(4):
        arguments = pack(STEP_SIGNATURE, {"call": call.ctypes.data, "step_in_chunk": index})
        assert step.launch(2, arguments, 1, [Memory("call", call.ctypes.data, call.nbytes, is_given=True)], STEP) == ()
