"""Reset states and holds in the kernels themselves, thread by thread, against loops written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from support.everyday import one_in
from support.needed import needed

from minrnn_gen.build.target import Target
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.kernel import interpreted
from minrnn_gen.interpret.toolchain import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
# The loops compute their gradients by torch's autograd.
loops = needed("support.altered_calls")
BY_NAME = {case.name: case for case in loops.CASES}

# Scans along channels and time; diagonal cells; dense ones in a block, and step by step, with products of one round and of two.
WAYS: list[tuple[str, str, dict[str, Any], str]] = [
    ("two_leaks", "ragged", {"hidden_size": 8, "direction": "bidirectional"}, "h200"),
    ("lstm", "ragged", {"hidden_size": 8, "batch": 3}, "h100"),
    ("entangled", "packed", {"hidden_size": 8}, "h100"),
    ("min_gru", "plain", {"hidden_size": 8, "layout": "BDT", "direction": "reverse"}, "h100"),
    ("gru_reset_before", "ragged", {"hidden_size": 8, "direction": "bidirectional"}, "a100"),
    ("gru", "packed", {"hidden_size": 8, "heads": 2}, "t4"),
    ("entangled", "ragged", {"hidden_size": 8, "layout": "BDT"}, "t4"),
    ("min_gru", "packed", {"hidden_size": 8}, "t4"),
    ("layer_norm_lstm", "ragged", {"hidden_size": 8}, "h100"),
    ("of_both", "packed", {"hidden_size": 8}, "h200"),
    ("gru", "plain", {"hidden_size": 8, "batch": 64, "layout": "TBD"}, "h100"),
]


@pytest.mark.parametrize(("name", "kind", "options", "gpu"), one_in(9, WAYS))
def test_kernels_begin_and_hold_as_loops_do(name: str, kind: str, options: dict[str, Any], gpu: str) -> None:
    case = BY_NAME[name]
    spec = load_spec({"model": case.model, "batch": 3, "time": 6, "precision": "fp32", **options})
    kernel = interpreted(spec, Target.named(gpu))
    for of_each in (True, False):
        problem = loops.drawn(kernel.interface, kind, of_each, 10 + of_each, holds=of_each)
        loops.check(kernel, case, problem, {"rtol": 1e-4, "atol": 1e-5}, {"rtol": 1e-3, "atol": 1e-4})


def test_every_cell_is_tried() -> None:
    assert {*BY_NAME} == {name for name, *_ in WAYS}
