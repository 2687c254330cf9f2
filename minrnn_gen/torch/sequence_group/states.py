"""All states of a cell as one array, as ranks send them: along the first axis, or along the last where shapes differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.call.interface import Interface


def states_axis(interface: Interface) -> int:
    """Return the axis along which one array holds all states: the first, or the last where their shapes differ."""
    return -1 if interface.vector_states and interface.vector_states != interface.states else 0


def together(interface: Interface, states: Sequence[Any]) -> Any:
    """Return states as one array: [states, sequences, hidden] or, where some have n values, [1, sequences, hidden, values]."""
    if len(states) == 1:
        return states[0].unsqueeze(0)
    return together_as(interface, interface.states, states)


def together_shape(interface: Interface, sequences: int) -> tuple[int, ...]:
    """Return the shape of all states of a number of sequences as one array."""
    first = interface.shape_of_state(interface.states[0], sequences)
    if states_axis(interface) == 0:
        return (len(interface.states), *first)
    values = sum(interface.state_size if name in interface.vector_states else 1 for name in interface.states)
    return (1, sequences, interface.hidden_size, values)


def together_as(interface: Interface, names: Sequence[str], arrays: Sequence[Any]) -> Any:
    """Return arrays shaped like the states of these names as one array, laid out like the states."""
    if states_axis(interface) == 0:
        return torch.stack(tuple(arrays))
    pairs = zip(names, arrays, strict=True)
    wide = (array if name in interface.vector_states else array.unsqueeze(-1) for name, array in pairs)
    return torch.cat(tuple(wide), -1).unsqueeze(0)


def apart(interface: Interface, array: Any) -> list[Any]:
    """Return the states, or arrays shaped like them, that one array holds."""
    return apart_as(interface, interface.states, array)


def apart_as(interface: Interface, names: Sequence[str], array: Any) -> list[Any]:
    """Return the arrays, shaped like the states of these names, that one array holds."""
    if states_axis(interface) == 0:
        return [*array.unbind()]
    sizes = [interface.state_size if name in interface.vector_states else 1 for name in names]
    parts = zip(names, array[0].split(sizes, -1), strict=True)
    return [part if name in interface.vector_states else part.squeeze(-1) for name, part in parts]
