"""Drawn cells and calls, an array changed between forward and backward: torch refuses it, or the gradient is right."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from support.drawn_cells import DrawnCall, DrawnCell, calls, cells
from support.examples import examples

pytest.importorskip("torch")

from support.changed_arrays import silently_wrong
from support.drawn_calls import Subject

from minrnn_gen.errors import Infeasible


@settings(max_examples=examples(4))
@given(cells(), calls())
def test_no_change_is_silently_wrong(cell: DrawnCell, call: DrawnCall) -> None:
    try:
        assert silently_wrong(Subject(cell, call)) == []
    except Infeasible:  # too many operations for any candidate
        assume(False)
