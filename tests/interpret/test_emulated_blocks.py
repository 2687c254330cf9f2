"""Cells of coupled states in the kernels that run them, thread by thread."""

from __future__ import annotations

from typing import Any

import pytest

from minrnn_gen.build.target import Target
from minrnn_gen.cell.files import coupled_library_names
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import Verification

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

WAYS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("biquad", {"hidden_size": 3, "precision": "fp32", "layout": "BDT"}, "h200"),
    ("complex_lru", {"hidden_size": 40, "precision": "bf16", "direction": "bidirectional"}, "h100"),
    ("conv_min_gru", {"hidden_size": 24, "precision": "fp32", "layout": "TBD", "input_size": 8}, "h200"),
    ("holt", {"hidden_size": 33, "precision": "fp16", "direction": "reverse"}, "a100"),
    ("linoss", {"hidden_size": 24, "precision": "fp64"}, "t4"),
)


@pytest.mark.matrix_full
@pytest.mark.parametrize(("model", "options", "gpu"), WAYS)
def test_kernels_of_coupled_states_are_right(model: str, options: dict[str, Any], gpu: str) -> None:
    """Against float64, without a race, whatever the order in which threads run."""
    spec = load_spec({"model": model, "batch": 3, "time": 5, **options})
    verdicts = list(Verification(spec, Target.named(gpu), candidates=1).run())
    assert verdicts and [verdict for verdict in verdicts if not verdict.is_right] == []


def test_every_coupled_cell_is_tried() -> None:
    assert tuple(model for model, _, _ in WAYS) == coupled_library_names()
