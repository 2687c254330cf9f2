"""The states that a forward writes after every step: all, or those that its backward reads, in the order of the cell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from minrnn_gen.build.builder import Builder
from minrnn_gen.call.array import Array
from minrnn_gen.plan.kernel_plan import StatesOut

StatesAsked = StatesOut | Literal["read"]
"""What a forward writes after every step: all states in a dtype, those that a backward of a dense cell reads, or none."""


def states_read(builder: Builder) -> tuple[str, ...]:
    """Return the states that a backward reads in addition to y."""
    return builder.lowered_backward.needs_saved_states


def asked_by_backward(builder: Builder) -> StatesAsked:
    """Return what a forward is asked to write where a backward follows."""
    if not states_read(builder):
        return "none"
    return "read" if builder.cell_shape.has_matrix else "storage"


def kept_by_name(builder: Builder, kept: Sequence[Array]) -> dict[str, Array | None]:
    """Return the arrays by the names of all states, None for a state that was not written."""
    states = builder.cell_shape.states
    names = states if len(kept) in (0, len(states)) else states_read(builder)
    written = dict(zip(names, kept, strict=True)) if kept else {}
    return {name: written.get(name) for name in states}
