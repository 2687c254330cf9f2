"""Means and norms over units in the kernels themselves, thread by thread: of a head, of all, and within rounds of products."""

from __future__ import annotations

from typing import Any

import pytest
from support.everyday import one_in
from support.norm_cells import EVERY_CELL, GATES_TOGETHER, OF_BOTH, OF_ROUNDS

from minrnn_gen.build.target import Target
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import Verification

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
]


@pytest.mark.parametrize(("cell", "options", "gpu"), one_in(8, WAYS))
def test_kernels_with_norms_are_right(cell: dict[str, Any] | str, options: dict[str, Any], gpu: str) -> None:
    """Against float64, without a race, whatever the order in which threads run."""
    spec = load_spec({"model": cell, "batch": 3, "time": 5, **options})
    verdicts = list(Verification(spec, Target.named(gpu), candidates=1).run())
    assert verdicts and [verdict for verdict in verdicts if not verdict.is_right] == []


def test_every_cell_with_norms_is_tried() -> None:
    assert {cell["name"] for cell, _, _ in WAYS if not isinstance(cell, str)} == {cell["name"] for cell in EVERY_CELL}
