"""Reset states and holds of functions and layers: the kernel that takes them, and its further inputs, as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from minrnn_gen.build.altered_cells import altered_recipe
from minrnn_gen.call.altered import (
    check_given,
    check_marks,
    check_reset_states,
    named_reset_states,
    sequence_count,
    sequence_of_step,
    spread,
    spread_holds,
)
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.slots import CU_SEQLENS, RESETS
from minrnn_gen.errors import BadInput
from minrnn_gen.torch.dtypes import STORAGE
from minrnn_gen.torch.tensors import check_tensor, marks_in


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _altered(recipe: str, begins: bool, holds: bool) -> tuple[str, tuple[str, ...]]:
    again = altered_recipe(recipe, begins, holds)
    return again.recipe, tuple(name for name, _ in again.begins)


def altered(recipe: str, begins: bool, holds: bool) -> tuple[str, tuple[str, ...]]:
    """Return the kernel's recipe for calls with reset states, holds or both, and the states whose inputs it takes, in order.

    The input of `holds` comes after these inputs. Raises BadInput for a recipe that has none.
    """
    return _altered(recipe, begins, holds)  # type: ignore[no-any-return]


def _of_ranks(states: Sequence[Any], width: Sequence[int], ends: Any, ranks: Any) -> list[Any]:
    """Return reset states of a call over ranks. Their gradients behave as a weight's: a rank's own part, zero elsewhere.

    Refuses reset states per packed sequence where time is split: no rank knows where its own sequences begin.
    """
    if ranks.time is not None and ends is not None and any(state.dim() > len(width) for state in states):
        raise BadInput(
            "reset_states was given for each sequence of cu_seqlens with a sequence_group; give those of all sequences, "
            f"{list(width)} each, or leave the group out"
        )
    return [ranks.counted_once(state) if ranks.gathers else state for state in states]


def added_inputs(
    interface: Interface, begins: Sequence[str], tensors: Sequence[Any], reset_states: Any, holds: Any, ranks: Any = None
) -> tuple[Any, ...]:
    """Return the further inputs X.* of a call from its `tensors` by slot: for the states that it `begins` from, and for holds.

    `ranks`: the groups of a call over ranks. Raises BadInput for arguments that do not fit.
    """
    hidden = interface.hidden_size // (1 if ranks is None else ranks.shares)
    x, resets, ends = tensors[0], tensors[RESETS], tensors[CU_SEQLENS]
    axes, dtype = interface.channel_axes, STORAGE[interface.precision.name]
    states: list[Any] = []
    if reset_states is not None:
        named = named_reset_states(interface, reset_states, resets)
        check_tensor(resets, "resets")
        check_marks(resets, "resets", interface.x_axes, x)
        for name, state in named.items():
            check_tensor(state, f"reset_states['{name}']")
        check_reset_states(interface, named, sequence_count(resets, ends), hidden)
        states = [named[name] for name in begins]
    if holds is not None:
        holds = checked_holds(holds)
        check_marks(holds, "holds", interface.x_axes, x)
    width = (*interface.directions, hidden)
    return inputs_of(axes, states, width, x, (resets, ends, holds), dtype, ranks)


def checked_holds(holds: Any) -> Any:
    """Return holds as bool; raises BadInput for anything but a tensor of bool, or of numbers 0 and 1."""
    check_tensor(holds, "holds")
    holds = marks_in(holds, "holds")
    if holds.dtype is not torch.bool:
        raise BadInput(f"holds has dtype {holds.dtype}; torch.bool is expected and nothing is cast silently")
    return holds


def inputs_of(
    axes: str,
    states: Sequence[Any],
    width: Sequence[int],
    x: Any,
    marks: tuple[Any, Any, Any],
    dtype: torch.dtype,
    ranks: Any = None,
) -> tuple[Any, ...]:
    """Return inputs X.* of these axes: of reset states, each [directions, B, H] or [directions, H], and of holds, if any.

    `width`: [directions, H]; `marks`: resets, boundaries of packed sequences, and holds; `ranks`: the groups of a call over
    ranks.
    """
    resets, ends, holds = marks
    sequence = None
    if ranks is not None:
        states = _of_ranks(states, width, ends, ranks)
    if ends is not None and states:
        steps = torch.arange(resets.shape[1], device=x.device, dtype=ends.dtype)
        sequence = sequence_of_step(torch, ends.to(x.device), steps)
    added = [spread(torch, axes, resets.to(torch.bool), state.to(dtype), sequence) for state in states]
    if holds is not None:
        added.append(spread_holds(torch, axes, holds, torch.ones(tuple(width), dtype=dtype, device=x.device)))
    return tuple(values.contiguous() for values in added)


def by_layer(
    reset_states: Any, resets: Any, names: Sequence[str], runs: int, count: int, hidden: int, *, batched: bool
) -> tuple[Any, ...]:
    """Return the reset states of layers in the cell's order, each [runs, B, H] or [runs, H], runs those of all layers.

    Raises BadInput for arguments that do not fit.
    """
    check_given(resets)
    if isinstance(reset_states, Mapping):
        raise BadInput(f"reset_states is a mapping; {_wanted(names)} is expected, as hx is")
    states = tuple(reset_states) if isinstance(reset_states, (tuple, list)) else (reset_states,)
    if len(states) != len(names) or any(state is None for state in states):
        count_given = sum(state is not None for state in states)
        raise BadInput(f"reset_states has {count_given} state{'s' * (count_given != 1)}; {_wanted(names)} is expected")
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
