"""Single steps whose blocks wait for each other, in one launch of their own."""

from __future__ import annotations

from typing import Any

from support.norm_cells import GATES_TOGETHER, OF_ROUNDS
from support.round_cells import DEEP, OF_TWO_STATES, RESET_BEFORE

# Cell, units, heads, sequences, and the rest of the spec: R beyond the chip, a layout of no kernel over time, one block of a
# head, and R so small that a kernel over time takes longer.
STEPS: list[tuple[Any, int, int, int, dict[str, Any]]] = [
    (RESET_BEFORE, 1024, 1, 1, {"precision": "fp32"}),
    (RESET_BEFORE, 4096, 1, 1, {"precision": "bf16"}),
    (RESET_BEFORE, 512, 1, 5, {"precision": "bf16", "layout": "BDT"}),
    (RESET_BEFORE, 24, 3, 40, {"precision": "fp64", "layout": "BDT"}),
    (DEEP, 510, 1, 4, {"precision": "fp16", "layout": "BDT"}),
    (DEEP, 768, 12, 16, {"precision": "fp32", "layout": "BDT"}),
    (OF_TWO_STATES, 99, 3, 2, {"precision": "bf16", "layout": "BDT"}),
    ("layer_norm_lstm", 512, 1, 4, {"precision": "fp32"}),
    (GATES_TOGETHER, 300, 1, 3, {"precision": "bf16", "layout": "BDT"}),
    (OF_ROUNDS, 640, 1, 2, {"precision": "fp64"}),
    ("lstm_projected", 512, 1, 3, {"precision": "fp32", "projection_size": 256}),
    ("block_gru", 512, 8, 4, {"precision": "fp32", "projection_size": 512}),
    (RESET_BEFORE, 512, 1, 1, {"precision": "fp32"}),
]
