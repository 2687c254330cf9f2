"""The program of a plain call, planned from its spec alone and printed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.everyday import one_in
from support.rendered_kernels import builder_of

from minrnn_gen.cell.files import library_names, vector_library_names
from minrnn_gen.errors import BadInput
from minrnn_gen.plan.problem import KernelPass, Sizes
from minrnn_gen.run.recording.plain_program import plain_program

SPECS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"hidden_size": 64, "precision": "bf16"}) for name in library_names()),
    *((name, {"hidden_size": 64, "state_size": 16, "precision": "fp32"}) for name in vector_library_names()),
    ("gru", {"hidden_size": 64, "heads": 2, "layout": "BDT", "precision": "bf16"}),
    ("min_gru", {"hidden_size": 64, "input_size": 48, "direction": "bidirectional", "precision": "bf16"}),
]


def test_a_program_names_its_arrays() -> None:
    builder = builder_of("gru", hidden_size=64, input_size=32, precision="bf16")
    assert plain_program(builder, "forward", Sizes(3, 40)).splitlines()[:4] == [
        "program of a forward with batch 3, time 40",
        "buffers",
        "  y: bfloat16 [3, 40, 64]",
        "  final[0]: float32 [3, 64]",
    ]
    backward = plain_program(builder, "backward", Sizes(3, 40))
    assert re.search(r"\n  multiply \S.* by weight to dx, \[120, 192\] x \[192, 32\]\n", backward)
    assert re.search(r"\n  launch \w+_backward, \d+ blocks of \d+ threads, on projected, R, bias", backward)


def test_steps_one_by_one_are_a_loop() -> None:
    text = plain_program(builder_of("lstm", hidden_size=2048, precision="fp64"), "forward", Sizes(2, 24))
    assert "\n  repeat for i0 from 0 to 24\n    multiply " in text


@pytest.mark.parametrize(("model", "spec"), one_in(6, SPECS), ids=str)
@pytest.mark.parametrize("kernel_pass", ["forward", "backward", "step"])
def test_every_plain_call_has_a_program(model: str, spec: dict[str, Any], kernel_pass: KernelPass) -> None:
    builder = builder_of(model, **spec)
    if kernel_pass == "step" and spec.get("direction") == "bidirectional":
        with pytest.raises(BadInput, match="a step needs one direction"):
            plain_program(builder, kernel_pass, Sizes(2, 20))
        return
    text = plain_program(builder, kernel_pass, Sizes(2, 20))
    assert "launch " in text and "an array" not in text
    # Whatever is read was allocated, or is an array of the call.
    allocated = set(re.findall(r"^  (slot \d+):", text, re.MULTILINE))
    assert set(re.findall(r"slot \d+", text)) <= allocated


def test_a_spec_without_training_has_no_backward() -> None:
    with pytest.raises(BadInput, match="a backward needs training: true"):
        plain_program(builder_of("gru", hidden_size=64, training=False), "backward", Sizes(2, 20))
