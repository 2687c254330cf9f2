"""Steps and calls over time on slots of a pool, and places of drafts, as operators of torch that write in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.call.slots import RESETS, CallSlots
from minrnn_gen.errors import BadInput
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.run.cache import next_places
from minrnn_gen.torch.operators import calls
from minrnn_gen.torch.operators.dispatch import below_autograd, define, is_plain, records
from minrnn_gen.torch.operators.recorded import Tensors

_SCHEMA = (
    "step_on_pool(str recipe, Tensor x, Tensor? R, Tensor? weight, Tensor? bias, Tensor? recurrent_bias, Tensor[] streams, "
    "Tensor[] parameters, Tensor(a!)[] pool, Tensor slots, Tensor? into_slots, int pad_slot) -> Tensor"
)

_FORWARD_SCHEMA = (
    "forward_on_pool(str recipe, Tensor x, Tensor? R, Tensor? weight, Tensor? bias, Tensor? recurrent_bias, Tensor? resets, "
    "Tensor? lengths, Tensor? cu_seqlens, Tensor[] streams, Tensor[] parameters, Tensor(a!)[] pool, Tensor slots, "
    "Tensor? into_slots, Tensor? has_state, int pad_slot) -> Tensor"
)

_PLACES_SCHEMA = (
    "next_places(str recipe, Tensor(a!) drafts, int places, Tensor slots, Tensor? accepted, Tensor? lengths, int pad_slot, "
    "int time) -> (Tensor, Tensor)"
)


def places_of_draft(recipe: str, drafts: Any, places: int, rows: tuple[Any, Any, Any], pad_slot: int, time: int) -> Any:
    """Return the places of the steps of a draft, and note it in `drafts`, as `run.cache.next_places` does."""
    arguments = (recipe, drafts, places, *rows, pad_slot, time)
    return _places(*arguments) if is_plain((drafts, *rows)) else PLACES(*arguments)


def _places(recipe: str, drafts: Any, places: int, *arguments: Any) -> Any:
    *rows, pad_slot, time = arguments
    return tuple(next_places(kernel_by(recipe).executor, places, drafts, tuple(rows), pad_slot, time))


def _fake_places(_recipe: str, drafts: Any, _places: int, slots: Any, *arguments: Any) -> Any:
    return tuple(drafts.new_empty((arguments[-1], slots.shape[0]), dtype=torch.int64) for _ in range(2))


def _record_places(*arguments: Any) -> Any:
    return below_autograd(PLACES, *arguments)


def step_on_pool(
    recipe: str, parameters: int, states: int, tensors: tuple[Any, ...], slots: Any, into_slots: Any, pad_slot: int
) -> Any:
    """Run one step of a call whose states are a pool, and return y; `parameters` and `states` say how many the cell has."""
    if is_plain((*tensors, slots, into_slots)):
        return calls.step_on_pool(kernel_by(recipe), tensors, slots, into_slots, pad_slot)
    lists = _lists(CallSlots.of(parameters, states), tensors)
    return OPERATOR(recipe, *tensors[:RESETS], *lists, slots, into_slots, pad_slot)


def forward_on_pool(
    recipe: str, parameters: int, states: int, tensors: tuple[Any, ...], rows: tuple[Any, Any, Any, int]
) -> Any:
    """Run a call over time whose states are a pool, and return y.

    `rows`: slots, into_slots, has_state and pad_slot; `parameters` and `states`: as of `step_on_pool`.
    """
    if is_plain((*tensors, *rows[:3])):
        return calls.forward_on_pool(kernel_by(recipe), tensors, *rows)
    first = CallSlots.of(parameters, states)
    return OVER_TIME(recipe, *tensors[: first.parameters.start], *_lists(first, tensors), *rows)


def _lists(slots: CallSlots, tensors: tuple[Any, ...]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the streams, the parameters and the pool of a call, which an operator takes as lists."""
    return [*tensors[slots.states.stop :]], [*tensors[slots.parameters]], [*tensors[slots.states]]


def _tensors(call: Sequence[Any]) -> Tensors:
    """Return the tensors of a call in the order of its slots."""
    x, R, weight, bias, recurrent_bias, *sequences, streams, parameters, pool = call
    return (x, R, weight, bias, recurrent_bias, *(sequences or (None,) * 3), *parameters, *pool, *streams)


def _refuse_gradients(what: str, call: Sequence[Any]) -> None:
    if records(_tensors(call)):
        raise BadInput(f"{what} on slots has no gradients, and an argument requires one; call it under torch.no_grad()")


def _run_over_time(recipe: str, *arguments: Any) -> Any:
    *call, slots, into_slots, has_state, pad_slot = arguments
    return calls.forward_on_pool(kernel_by(recipe), _tensors(call), slots, into_slots, has_state, pad_slot)


def _fake_over_time(recipe: str, x: Any, *_: Any) -> Any:
    kernel = kernel_by(recipe)
    rows, time = (x.shape[kernel.interface.x_axes.index(axis)] for axis in "bt")
    return x.new_empty(kernel.interface.y_shape(rows, time), dtype=calls.storage_dtype(kernel))


def _record_over_time(recipe: str, *arguments: Any) -> Any:
    *call, _slots, _into_slots, _has_state, _pad_slot = arguments
    _refuse_gradients("a call", call)
    return below_autograd(OVER_TIME, recipe, *arguments)


def _run(recipe: str, *arguments: Any) -> Any:
    *call, slots, into_slots, pad_slot = arguments
    return calls.step_on_pool(kernel_by(recipe), _tensors(call), slots, into_slots, pad_slot)


def _fake(recipe: str, x: Any, *_: Any) -> Any:
    kernel = kernel_by(recipe)
    return x.new_empty(kernel.interface.step_shape(x.shape[0]), dtype=calls.storage_dtype(kernel))


def _record(recipe: str, *arguments: Any) -> Any:
    *call, _slots, _into_slots, _pad_slot = arguments
    _refuse_gradients("a step", call)
    return below_autograd(OPERATOR, recipe, *arguments)


OVER_TIME: Any = define(_FORWARD_SCHEMA, _run_over_time, _fake_over_time, _record_over_time)
OPERATOR: Any = define(_SCHEMA, _run, _fake, _record)
PLACES: Any = define(_PLACES_SCHEMA, _places, _fake_places, _record_places)
