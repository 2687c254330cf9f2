"""The backward of a scan reads what it needs and no more: every input is memory traffic."""

from __future__ import annotations

import pytest
from support.cell_evaluation import built_in, cell_of

from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.lowering import LoweredScanBackward, lower_scan_backward
from minrnn_gen.errors import BadInput


def lowered(cell: Cell) -> LoweredScanBackward:
    return lower_scan_backward(cell, classify(cell))


GATED = ("previous_h", "delta_h")
INPUTS = {
    "min_gru": (("W_z", "gradient_y"), ("W_z", "W_h", *GATED)),
    "min_gru_log": (("W_z", "gradient_y"), ("W_z", "W_h", *GATED)),
    "min_gru_tanh": (("W_z", "gradient_y"), ("W_z", "W_h", *GATED)),
    "min_lstm": (("W_f", "W_i", "gradient_y"), ("W_f", "W_i", "W_h", *GATED)),
    "min_lstm_log": (("W_f", "W_i", "gradient_y"), ("W_f", "W_i", "W_h", *GATED)),
    "hgrn": (("W_f", "gradient_y"), ("W_f", "W_i", *GATED)),
    "rg_lru": (("W_r", "parameter_decay", "gradient_y"), ("W_r", "W_i", "W_x", "parameter_decay", *GATED)),
    "qrnn": (
        ("W_f", "W_o", "gradient_y"),
        ("W_z", "W_f", "W_o", "state_c", "previous_c", "gradient_y", "delta_c"),
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_what_a_built_in_cell_reads(name: str) -> None:
    backward, cell = lowered(built_in(name)), built_in(name)
    adjoint, gradients = INPUTS[name]
    assert (set(backward.adjoint.inputs), set(backward.gradients.inputs)) == (set(adjoint), set(gradients))
    assert (backward.read_gates, backward.read_states, backward.looks_back) == (cell.gates, cell.states, ())
    assert (backward.output_state, backward.needs_saved_states) == ((None, ("c",)) if name == "qrnn" else ("h", ()))
    (state,) = cell.states
    assert [label for label, _ in backward.adjoint.results] == [f"a_{state}", f"e_{state}"]
    expected = [f"gradient_W_{gate}" for gate in cell.gates] + [f"gradient_parameter_{each}" for each in cell.parameters]
    assert [label for label, _ in backward.gradients.results] == expected


def test_a_gradient_that_is_passed_on_costs_nothing() -> None:
    backward = lowered(cell_of("h[t] = W.a * h[t-1] + W.b"))
    assert dict(backward.adjoint.results) == {"a_h": "W_a", "e_h": "gradient_y"}
    assert dict(backward.gradients.results) == {"gradient_W_a": "gradient_W_a", "gradient_W_b": "delta_h"}
    assert (backward.operation_count, backward.transcendental_count) == (1, 0)
    assert backward.read_gates == ("a",)


def test_an_output_that_looks_back_says_so() -> None:
    backward = lowered(cell_of("h[t] = W.f * h[t-1] + W.h\nc[t] = W.f * c[t-1] + 1", output="h[t] - h[t-1] * W.o + c[t]"))
    assert backward.looks_back == ("h",)
    assert [label for label, _ in backward.adjoint.results] == ["a_h", "e_h", "a_c", "e_c", "f_h"]
    assert backward.output_state is None and backward.needs_saved_states == ("h", "c")


def test_a_state_that_depends_on_no_other_step_is_computed_again() -> None:
    backward = lowered(cell_of("m[t] = tanh(W.m)\nh[t] = m[t] * h[t-1] + W.h", output="h[t] * m[t]"))
    assert not {"state_m", "previous_m"} & {*backward.adjoint.inputs, *backward.gradients.inputs}
    assert backward.needs_saved_states == ("h",)


def test_a_state_under_another_name_is_still_the_output() -> None:
    assert lowered(cell_of("h[t] = W.f * h[t-1] + W.h\nq = h[t]", output="q")).output_state == "h"


def test_a_cell_that_is_no_scan_has_no_backward_scan() -> None:
    cell = built_in("gru")
    with pytest.raises(BadInput, match="gru has no scan"):
        lower_scan_backward(cell, classify(cell))
