"""Inputs X.* in the kernels themselves, thread by thread, of every family that reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.input_cells import DIAGONAL, EVERY_CELL, GAPS, HIGHWAY, IN_ROUNDS, LINEAR, NORMED

from minrnn_gen.build.target import Target
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.cases import Case, inputs_of
from minrnn_gen.interpret.kernel import interpreted
from minrnn_gen.interpret.toolchain import has_compiler
from minrnn_gen.interpret.verify import Verification

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")

# Scans along channels, time and by all blocks, behind a projection; dense cells in a block, a cluster, a grid, of many
# sequences and step by step; diagonal ones.
WAYS: list[tuple[dict[str, Any] | str, dict[str, Any], str]] = [
    (HIGHWAY, {"hidden_size": 24, "precision": "fp32", "layout": "BDT", "direction": "reverse"}, "h200"),
    (GAPS, {"hidden_size": 24, "precision": "fp32"}, "a100"),
    (HIGHWAY, {"hidden_size": 40, "precision": "bf16", "direction": "bidirectional"}, "h100"),
    (GAPS, {"hidden_size": 48, "heads": 2, "batch": 64, "precision": "bf16"}, "h100"),
    (HIGHWAY, {"hidden_size": 24, "precision": "fp64", "layout": "TBD", "input_size": 8}, "t4"),
    (DIAGONAL, {"hidden_size": 24, "precision": "fp32", "layout": "BDT"}, "h100"),
    (DIAGONAL, {"hidden_size": 33, "precision": "fp16", "direction": "bidirectional"}, "h200"),
    (IN_ROUNDS, {"hidden_size": 24, "precision": "fp32"}, "h100"),
    (IN_ROUNDS, {"hidden_size": 18, "precision": "fp64", "layout": "BDT", "direction": "reverse"}, "t4"),
    (LINEAR, {"hidden_size": 24, "precision": "fp32"}, "h100"),
    (LINEAR, {"hidden_size": 24, "precision": "fp64", "batch": 3}, "t4"),
    (NORMED, {"hidden_size": 24, "heads": 2, "precision": "fp32"}, "h100"),
    ("zoneout_lstm", {"hidden_size": 24, "precision": "fp32", "layout": "TBD"}, "h200"),
    ("sru", {"hidden_size": 40, "precision": "fp16"}, "h200"),
]


@pytest.mark.parametrize(("cell", "options", "gpu"), one_in(14, WAYS))
def test_kernels_with_inputs_are_right(cell: Any, options: dict[str, Any], gpu: str) -> None:
    """Against float64, without a race, whatever the order in which threads run."""
    spec = load_spec({"model": cell, "batch": 3, "time": 5, **options})
    verdicts = list(Verification(spec, Target.named(gpu), candidates=1).run())
    assert verdicts and [verdict for verdict in verdicts if not verdict.is_right] == []


def test_every_cell_with_inputs_is_tried() -> None:
    assert {cell["name"] for cell in EVERY_CELL} <= {cell if isinstance(cell, str) else cell["name"] for cell, _, _ in WAYS}


@pytest.mark.parametrize("cell", one_in(3, [GAPS, HIGHWAY, DIAGONAL]), ids=lambda cell: cell["name"])
def test_packed_sequences_read_their_own_rows(cell: dict[str, Any]) -> None:
    kernel = interpreted(load_spec({"model": cell, "hidden_size": 24, "precision": "fp32"}), Target.named("h100"))
    call = inputs_of(kernel.interface, Case(1, 12)).forward
    ends = np.array([0, 5, 5, 12])
    state = {name: np.repeat(array, 3, axis=0) for name, array in call.pop("state").items()}
    y, final, saved = kernel.forward(**call, state=state, cu_seqlens=ends)
    gradients = kernel.backward(saved, np.ones_like(y))
    for begin, end, sequence in ((0, 5, 0), (5, 12, 2)):
        own = {name: np.ascontiguousarray(array[:, begin:end]) for name, array in call["inputs"].items()}
        of_sequence = {name: array[sequence : sequence + 1] for name, array in state.items()}
        piece = {**call, "x": np.ascontiguousarray(call["x"][:, begin:end]), "inputs": own, "state": of_sequence}
        y_own, final_own, saved_own = kernel.forward(**piece)
        np.testing.assert_allclose(y[:, begin:end], y_own, rtol=2e-5, atol=2e-5)
        for name, last in final_own.items():
            np.testing.assert_allclose(final[name][sequence], last[0], rtol=2e-5, atol=2e-5)
        gradients_own = kernel.backward(saved_own, np.ones_like(y_own))
        for name, gradient in gradients_own["inputs"].items():
            np.testing.assert_allclose(gradients["inputs"][name][:, begin:end], gradient, rtol=1e-4, atol=1e-4)
