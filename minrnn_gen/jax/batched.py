"""Requests under vmap: more rows of the batch, more heads, or run in sequence.

Without a mapped weight, the mapped axis joins the batch. With one, and in a backward, which has a weight's gradient for each
element, elements are heads of one wider call, or groups of a cell with n values per channel. Elements with their own boundaries
and weights run in sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from minrnn_gen.build.widened_recipes import with_heads
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.slots import CU_SEQLENS, X, has_gradient
from minrnn_gen.jax.request import Request, Shaped
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.raw_scan.filter_results import FILTER_PASSES, PASSED

# The letter of the axis n, since n is that of heads here; k is that of groups, whose channels share inputs S.*.
_VALUES = "v"
# The axes of a filter's arrays but signals.
_OF_FILTER = {"b": "ck", "a": "ck", "zi": "ncv", "dzf": "ncv"}

Bind = Callable[[Request, Sequence[Any]], Sequence[Any]]


def batched(bind: Bind, request: Request, operands: Sequence[Any], axes: Sequence[int | None]) -> list[Any]:
    """Return the results of a request for each element of the mapped `axes` of its operands, None where there is none.

    The results have the mapped axis first.
    """
    count = next(operand.shape[axis] for operand, axis in zip(operands, axes, strict=True) if axis is not None)
    mapped = [axis is not None for axis in axes]
    first = [operand if axis is None else jnp.moveaxis(operand, axis, 0) for operand, axis in zip(operands, axes, strict=True)]
    if not count:
        of_one = [
            Shaped(shape[is_mapped:], dtype) for (shape, dtype), is_mapped in zip(map(Shaped.of, first), mapped, strict=True)
        ]
        return [jnp.zeros((0, *result.shape), result.dtype) for result in request.results(of_one)]
    whole = [
        array if is_mapped else jnp.broadcast_to(array, (count, *array.shape))
        for array, is_mapped in zip(first, mapped, strict=True)
    ]
    if request.kind in FILTER_PASSES:
        # Coefficients of each element, or gradients of them, are those of more channels; signals alone are more rows.
        into = "c" if mapped[1] or mapped[2] or request.kind == "filter_backward" else "n"
        shared = set() if into == "c" else {1, 2}
        arrays = [first[place] if place in shared else array for place, array in enumerate(whole)]
        return _folded(bind, request, request, arrays, into, shared, count)
    if not request.recipe:
        return list(bind(replace(request, axis=request.axis + 1), whole))
    slots = request.slots
    weights = [place for place, slot in enumerate(slots) if _is_weight(request, slot)]
    boundaries = [place for place, slot in enumerate(slots) if not has_gradient(slot)]
    is_packed = request.present[CU_SEQLENS]
    sums_weights = request.kind == "backward" and bool(weights)
    if not is_packed and not sums_weights and not any(mapped[place] for place in weights):
        arrays = [array if place in weights else whole[place] for place, array in enumerate(first)]
        return _folded(bind, request, request, arrays, "b", set(weights), count)
    wider = None if any(mapped[place] for place in boundaries) else _with_heads(request, count)
    if wider is not None:
        arrays = [array if place in boundaries else whole[place] for place, array in enumerate(first)]
        return _folded(bind, request, wider, arrays, "hnk", set(boundaries), count)
    return [*jax.lax.map(lambda element: tuple(bind(request, element)), tuple(whole))]


def _is_weight(request: Request, slot: int) -> bool:
    """Say whether a slot has an array that all sequences share."""
    return X < slot < request.interface.slots.states.start and has_gradient(slot)


def _with_heads(request: Request, count: int) -> Request | None:
    """Return the request with `count` times the heads, or None where no spec has so many channels, or heads need each other."""
    means_over_all = kernel_by(request.recipe).builder.cell_shape.means_over_all
    recipe = with_heads(request.recipe, count, request.interface, means_over_all)
    return None if recipe is None else replace(request, recipe=recipe)


def _folded(
    bind: Bind, request: Request, wider: Request, arrays: Sequence[Any], into: str, shared: set[int], count: int
) -> list[Any]:
    """Run a `wider` request on arrays whose mapped axis, their first, is folded into an axis, one of the letters `into`.

    `shared`: the indices of arrays without a mapped axis.
    """
    operand_axes, result_axes = _axes_of(request)
    pairs = enumerate(zip(arrays, operand_axes, strict=True))
    folded = [array if place in shared else _fold(array, axes, into) for place, (array, axes) in pairs]
    results = bind(wider, folded)
    return [_unfold(result, axes, into, count) for result, axes in zip(results, result_axes, strict=True)]


def _axes_of(request: Request) -> tuple[list[str], list[str]]:
    """Return a letter for each axis of the operands and of the results, two where channels of both directions share one."""
    if request.kind in FILTER_PASSES:
        operands = [_OF_FILTER.get(name, "nct") for name in PASSED[request.kind]]
        state = _OF_FILTER["zi"]
        results = ["nct", state] if request.kind == "filter" else ["nct", _OF_FILTER["b"], _OF_FILTER["a"], state]
        return [operands[slot] for slot in request.slots], results
    interface = request.interface
    directions = "d" if interface.directions else ""
    is_step = request.kind == "step"
    states = [f"{directions}bh{_values(name in interface.vector_states)}" for name in interface.states]
    x = f"b{interface.gate_axes}" if is_step else interface.x_axes
    of_group = interface.shared_axes.replace("n", _VALUES).replace("t", "" if is_step else "t")
    vectors = (f"{directions}gnoi", "", interface.gate_axes, f"{directions}gno")
    by_slot = [
        x,
        *vectors,
        "bt",
        "b",
        "s",
        *(f"{directions}h{_values(name in interface.vector_parameters)}" for name in interface.parameters),
        *states,
        *(of_group for _ in interface.shared),
        *(interface.channel_axes.replace("t", "" if is_step else "t") for _ in interface.inputs),
    ]
    of_call = [by_slot[slot] for slot in request.slots]
    y = "bh" if is_step else _of_channels(interface, Y_AXES[interface.layout])
    of_steps = (interface.states_axes(name).replace("n", _VALUES) for name in (interface.states if request.keeps else ()))
    kept = [_of_channels(interface, axes) for axes in of_steps]
    if request.kind == "backward":
        return [*of_call, y, *kept, y, *states], [by_slot[slot] for slot in request.gradient_slots]
    return of_call, [y, *states, *kept]


def _values(has_axis: bool) -> str:
    return _VALUES if has_axis else ""


def _of_channels(interface: Interface, axes: str) -> str:
    return axes.replace("h", "dh" if interface.directions else "h")


def _fold(array: Any, axes: str, into: str) -> Any:
    """Merge the first axis into the axis of the letter, as its outer part; both directions' channels are merged again."""
    at = _place(axes, into)
    if array.ndim == len(axes):  # one axis of channels for two directions
        channels = axes.index("d") + 1
        array = array.reshape(*array.shape[:channels], 2, -1, *array.shape[channels + 1 :])
        merged = _fold(array, axes, into)
        return merged.reshape(*merged.shape[: channels - 1], -1, *merged.shape[channels + 1 :])
    moved = jnp.moveaxis(array, 0, at)
    return moved.reshape(*moved.shape[:at], moved.shape[at] * moved.shape[at + 1], *moved.shape[at + 2 :])


def _unfold(array: Any, axes: str, into: str, count: int) -> Any:
    """Undo `_fold`."""
    at = _place(axes, into)
    if array.ndim < len(axes):
        channels = axes.index("d")
        array = array.reshape(*array.shape[:channels], 2, -1, *array.shape[channels + 1 :])
        split = _unfold(array, axes, into, count)
        return split.reshape(*split.shape[: channels + 1], -1, *split.shape[channels + 3 :])
    split = array.reshape(*array.shape[:at], count, array.shape[at] // count, *array.shape[at + 1 :])
    return jnp.moveaxis(split, at, 0)


def _place(axes: str, into: str) -> int:
    return next(axes.index(letter) for letter in into if letter in axes)
