"""Reset states and holds of a call: checked, and laid out as inputs X.* of the kernel that takes them.

The functions compute with a library's own namespace, `xp`: that of NumPy, CuPy, torch or JAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minrnn_gen.call.array import is_tensor
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.known_names import known_names
from minrnn_gen.errors import BadInput

ROWS_AXES = 2  # of resets: batch and time


def check_given(resets: Any) -> None:
    """Refuse reset states where there are no resets."""
    if resets is None:
        raise BadInput("reset_states was given without resets; give resets, which mark the steps that begin from them")


def named_reset_states(interface: Interface, reset_states: Any, resets: Any) -> dict[str, Any]:
    """Return the reset states of all states by name; raises BadInput if some or the resets are absent."""
    check_given(resets)
    named = known_names(reset_states, interface.states, "reset_states")
    for name in interface.states:
        if named.get(name) is None:
            raise BadInput(f"reset_states lacks '{name}'; give all of {', '.join(interface.states)}, or leave it out for zeros")
    return named


def check_marks(marks: Any, name: str, axes: str, x: Any) -> None:
    """Refuse marks of steps whose rows differ from those of x, which has the axes `axes`."""
    if len(x.shape) != len(axes):
        return  # which is refused with all the others
    shape = [x.shape[axes.index(axis)] for axis in "bt"]
    if list(marks.shape) != shape:
        raise BadInput(f"{name} has shape {list(marks.shape)}; {shape} is expected, [batch, time]")


def sequence_count(resets: Any, ends: Any) -> int:
    """Return the number of sequences that `resets` [B, T] belong to; `ends`: boundaries of packed sequences, else None."""
    return int(resets.shape[0]) if ends is None else max(int(ends.shape[0]) - 1, 0)


def check_reset_states(interface: Interface, named: Mapping[str, Any], sequences: int, hidden: int | None = None) -> None:
    """Refuse reset states of another dtype than states or x, or with neither a row for each sequence nor one for all.

    `hidden`: the units of each direction in the call, if not all.
    """
    hidden, precision = hidden or interface.hidden_size, interface.precision
    dtypes = tuple(dict.fromkeys((precision.arithmetic_dtype, precision.storage_dtype)))
    of_each, of_all = (*interface.directions, sequences, hidden), (*interface.directions, hidden)
    for name, array in named.items():
        if str(array.dtype).removeprefix("torch.") not in dtypes:
            expected = f"{' or '.join(dtypes)} is expected and nothing is cast silently"
            raise BadInput(f"reset_states['{name}'] has dtype {array.dtype}; {expected}")
        if tuple(array.shape) not in (of_each, of_all):
            raise BadInput(
                f"reset_states['{name}'] has shape {list(array.shape)}; {list(of_each)} is expected, or {list(of_all)} for all "
                "sequences"
            )


def sequence_of_step(xp: Any, ends: Any, steps: Any) -> Any:
    """Return the packed sequence that each of `steps` is in; `ends` are the boundaries of all."""
    later = {"right": True} if xp.__name__ == "torch" else {"side": "right"}
    sequence = xp.searchsorted(ends[1:], steps, **later)
    return xp.clip(sequence, 0, max(ends.shape[0] - 2, 0))


def spread_holds(xp: Any, axes: str, holds: Any, like: Any) -> Any:
    """Return 1 at held steps and 0 at all others in the axes of an input X.*; like: [directions, H], of its dtype."""
    return spread(xp, axes, holds, xp.ones_like(like))


def spread(xp: Any, axes: str, resets: Any, states: Any, sequence: Any = None) -> Any:
    """Return the reset states at the steps with a reset and 0 at all others, in the axes of an input X.*.

    states: [directions, B, H] or [directions, H], without directions where `axes` have none; resets: [B, T]. `sequence`: for
    packed sequences, the sequence of each step.
    """
    is_directed = "d" in axes
    own = ("d" if is_directed else "") + ("bh" if len(states.shape) == ROWS_AXES + is_directed else "h")
    if sequence is not None and "b" in own:
        states, own = states[..., sequence, :], own.replace("b", "t")
    marks, values = in_axes(resets, "bt", axes), in_axes(states, own, axes)
    return xp.where(marks, values, xp.zeros_like(values))


def gathered(xp: Any, axes: str, resets: Any, gradient: Any, rows: int, sequence: Any = None) -> Any:
    """Return the gradient of reset states, [directions, B, H], from the gradient of the result of `spread`: summed over resets.

    `rows`: how many sequences there are.
    """
    marks = in_axes(resets, "bt", axes)
    kept = xp.where(marks, gradient, xp.zeros_like(gradient))
    order = ("d" if "d" in axes else "") + "bth"
    kept = permuted(kept, [axes.index(axis) for axis in order])
    if sequence is None:
        return kept.sum(-2)
    by_step = permuted(kept[..., 0, :, :], [len(order) - 3, *range(len(order) - 3), len(order) - 2])
    of_sequences = xp.zeros((rows, *by_step.shape[1:]), dtype=by_step.dtype, **_beside(by_step))
    if xp.__name__ == "torch":
        of_sequences.index_add_(0, sequence, by_step)
    else:
        xp.add.at(of_sequences, sequence, by_step)
    return permuted(of_sequences, [*range(1, len(order) - 2), 0, len(order) - 2])


def _beside(array: Any) -> dict[str, Any]:
    return {"device": array.device} if type(array).__module__ == "torch" else {}


def in_axes(array: Any, own: str, axes: str) -> Any:
    """View an array, whose axes are letters of `axes`, in all of these axes, with size 1 where the array lacks an axis."""
    ordered = permuted(array, [own.index(axis) for axis in axes if axis in own])
    sizes = iter(ordered.shape)
    return ordered.reshape(tuple(next(sizes) if axis in own else 1 for axis in axes))


def permuted(array: Any, order: Sequence[int]) -> Any:
    """View an array with its axes in another order."""
    return array.permute(*order) if is_tensor(array) else array.transpose(*order)
