"""Subjects of `make fuzz`: each by its name, drawn and held to what it has to be."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from support.drawn_calls import Subject, check
from support.drawn_cells import calls, cells
from support.drawn_vectors import check_drawn_vectors
from support.export_names import check_export, odd_export_names
from support.steps_in_place import check_steps_in_place, stepping_specs

import minrnn_gen
from minrnn_gen.errors import Infeasible

Draw = Callable[[st.SearchStrategy[Any]], Any]


def check_cpu(draw: Draw) -> None:
    """A drawn cell and call on the CPU target, beside the oracle."""
    _check_cell(_subject(draw), lambda subject: subject.on_cpu)


def check_numpy(draw: Draw) -> None:
    """A drawn cell and call in NumPy, beside the oracle."""
    _check_cell(_subject(draw), lambda subject: subject.in_numpy)


def check_emulated(draw: Draw) -> None:
    """A drawn cell and call as emulated kernels, beside the oracle."""
    _check_cell(_subject(draw), lambda subject: subject.emulated)


def _check_cell(subject: Subject, kernel_of: Callable[[Subject], Any]) -> None:
    try:
        verdict = check(subject, kernel_of(subject))
    except Infeasible:  # too many operations for any candidate
        assume(False)
    assert not verdict.wrong, (subject.cell.document, verdict.wrong)


def _subject(draw: Draw) -> Subject:
    cell, call = draw(cells()), draw(calls())
    return Subject(cell, call, other=call.seed % 3)


def check_changes(draw: Draw) -> None:
    """An array changed between forward and backward: refused by torch, or of no consequence."""
    from support.changed_arrays import silently_wrong

    subject = _subject(draw)
    assert not (changed := silently_wrong(subject)), (subject.cell.document, changed)


def check_attributes(draw: Draw) -> None:
    """Attributes of layers set in any order: the layer that would be made so, or a refusal."""
    from support.set_later import check_drawn

    check_drawn(draw)


def check_names(draw: Draw) -> None:
    """An export under a name that means something elsewhere, built and run."""
    kernel = minrnn_gen.compile({"model": "min_gru", "hidden_size": 4, "training": False}, gpu="h200")
    with tempfile.TemporaryDirectory() as folder:
        check_export(kernel, Path(folder), draw(odd_export_names()))


def check_vectors(draw: Draw) -> None:
    """A cell of n values with sums over anything, as emulated kernels, beside float64."""
    with np.errstate(all="ignore"):
        check_drawn_vectors(draw)


def check_steps(draw: Draw) -> None:
    """A step of an export whose states are advanced in place, beside one whose states are not."""
    with tempfile.TemporaryDirectory() as folder:
        check_steps_in_place(draw(stepping_specs()), Path(folder))


# {name: its check, and how many examples a round has of it}
SUBJECTS: dict[str, tuple[Callable[[Draw], None], int]] = {
    "cpu": (check_cpu, 25),
    "numpy": (check_numpy, 25),
    "emulated": (check_emulated, 25),
    "vectors": (check_vectors, 5),
    "steps": (check_steps, 2),
    "names": (check_names, 5),
}
if importlib.util.find_spec("torch") is not None:
    SUBJECTS |= {"changes": (check_changes, 5), "attributes": (check_attributes, 25)}
