"""States that resets begin from, of functions and layers: the kernel that adds them, and what it adds, as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from minrnn_gen.build.reset_cells import resetting_recipe
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.reset_states import check_marks, check_shape, named_reset_states, sequence_of_step, spread
from minrnn_gen.call.slots import CU_SEQLENS, RESETS
from minrnn_gen.errors import BadInput
from minrnn_gen.torch.dtypes import STATES, STORAGE
from minrnn_gen.torch.tensors import check_tensor


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _resetting(recipe: str) -> tuple[str, tuple[str, ...]]:
    again = resetting_recipe(recipe)
    return again.recipe, tuple(name for name, _ in again.inputs)


def resetting(recipe: str) -> tuple[str, tuple[str, ...]]:
    """Return the recipe of the kernel of calls with reset states, and which states it adds, in the order of its inputs.

    Raises BadInput for a recipe that has none.
    """
    return _resetting(recipe)  # type: ignore[no-any-return]


def added_inputs(interface: Interface, read: Sequence[str], tensors: Sequence[Any], reset_states: Any) -> tuple[Any, ...]:
    """Return the further inputs X.* of a call, whose `tensors` are by slot, from the states that its resets begin from.

    Raises BadInput for what does not fit.
    """
    x, resets, ends = tensors[0], tensors[RESETS], tensors[CU_SEQLENS]
    named = named_reset_states(interface, reset_states, resets)
    check_tensor(resets, "resets")
    check_marks(resets)
    count = resets.shape[0] if ends is None else max(ends.shape[0] - 1, 0)
    precision = interface.precision.name
    for name, state in named.items():
        check_tensor(state, f"reset_states['{name}']")
        if state.dtype not in (STATES[precision], STORAGE[precision]):
            expected = " or ".join(dict.fromkeys(map(str, (STATES[precision], STORAGE[precision]))))
            raise BadInput(
                f"reset_states['{name}'] has dtype {state.dtype}; {expected} is expected and nothing is cast silently"
            )
        check_shape(state, name, interface.directions, interface.hidden_size, count)
    return spread_states(interface.channel_axes, [named[name] for name in read], x, resets, ends, STORAGE[precision])


def spread_states(axes: str, states: Sequence[Any], x: Any, resets: Any, ends: Any, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return the reset states, each [directions, B, H] or [directions, H], as inputs X.* of these axes."""
    sequence = None
    if ends is not None:
        steps = torch.arange(resets.shape[1], device=x.device, dtype=ends.dtype)
        sequence = sequence_of_step(torch, ends.to(x.device), steps)
    marks = resets.to(torch.bool)
    return tuple(spread(torch, axes, marks, state.to(dtype), sequence).contiguous() for state in states)


def by_layer(
    reset_states: Any, resets: Any, names: Sequence[str], runs: int, count: int, hidden: int, *, batched: bool
) -> tuple[Any, ...]:
    """Return the reset states of layers in the cell's order, each [runs, B, H] or [runs, H], runs those of all layers.

    Raises BadInput for what does not fit.
    """
    if resets is None:
        raise BadInput("reset_states was given without resets; give resets, which mark the steps that begin from them")
    if isinstance(reset_states, Mapping):
        raise BadInput(f"reset_states is a mapping; {_wanted(names)} is expected, as hx is")
    states = tuple(reset_states) if isinstance(reset_states, tuple | list) else (reset_states,)
    if len(states) != len(names) or any(state is None for state in states):
        raise BadInput(f"reset_states has {sum(state is not None for state in states)} states; {_wanted(names)} is expected")
    of_each, of_all = (runs, count, hidden), (runs, hidden)
    allowed = (of_each, of_all) if batched else (of_all,)
    for name, state in zip(names, states, strict=True):
        check_tensor(state, f"reset_states of state {name}")
        if tuple(state.shape) not in allowed:
            expected = " or ".join(str(list(shape)) for shape in allowed)
            raise BadInput(f"reset_states of state {name} has shape {list(state.shape)}; {expected} is expected")
    return states


def _wanted(names: Sequence[str]) -> str:
    return f"a tuple of {len(names)} tensors, {', '.join(names)}," if len(names) > 1 else "a tensor"
