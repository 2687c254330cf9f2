"""Rounds of products in the kernels themselves, thread by thread: in blocks, clusters and grids, and step by step."""

from __future__ import annotations

from typing import Any

import pytest
from support.everyday import one_in
from support.round_cells import DEEP, EVERY_CELL, OF_TWO_STATES, PRODUCT_ALONE, RESET_BEFORE

from minrnn_gen.build.target import Target
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import Verification

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

# In a block and in a cluster; over a grid where there are no clusters; in float64; step by step; in both directions.
WAYS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (RESET_BEFORE, {"hidden_size": 24, "precision": "fp32"}, "h100"),
    (DEEP, {"hidden_size": 40, "heads": 2, "precision": "bf16"}, "h100"),
    (DEEP, {"hidden_size": 24, "precision": "fp32"}, "a100"),
    (RESET_BEFORE, {"hidden_size": 18, "precision": "fp64", "layout": "TBD", "direction": "reverse"}, "h200"),
    (OF_TWO_STATES, {"hidden_size": 24, "precision": "bf16"}, "h200"),
    (OF_TWO_STATES, {"hidden_size": 24, "precision": "fp64"}, "t4"),
    (DEEP, {"hidden_size": 16, "precision": "fp16", "layout": "BDT", "direction": "bidirectional"}, "h100"),
    (RESET_BEFORE, {"hidden_size": 24, "precision": "bf16", "recurrent_gradient_clip": 0.05, "input_size": 8}, "t4"),
    (PRODUCT_ALONE, {"hidden_size": 24, "precision": "bf16"}, "h100"),
    (PRODUCT_ALONE, {"hidden_size": 24, "precision": "fp64"}, "t4"),
    (DEEP, {"hidden_size": 320, "precision": "bf16"}, "h100"),
]


@pytest.mark.parametrize(("cell", "options", "gpu"), one_in(11, WAYS))
def test_kernels_with_rounds_are_right(cell: dict[str, Any], options: dict[str, Any], gpu: str) -> None:
    """Against float64, without a race, whatever the order in which threads run."""
    spec = load_spec({"model": cell, "batch": 3, "time": 5, **options})
    verdicts = list(Verification(spec, Target.named(gpu), candidates=1).run())
    assert verdicts and [verdict for verdict in verdicts if not verdict.is_right] == []


def test_every_cell_of_rounds_is_tried() -> None:
    assert {cell["name"] for cell, _, _ in WAYS} == {cell["name"] for cell in EVERY_CELL}
