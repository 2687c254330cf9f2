"""A call of a kernel on tensors: recorded by autograd, through the dispatcher, or under transforms of torch.func."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.call.slots import CallSlots
from minrnn_gen.kernel import Kernel
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.torch.operators import calls
from minrnn_gen.torch.operators.dispatch import has_transforms, is_plain, records
from minrnn_gen.torch.operators.kernel_operator import OPERATOR, Straight, returned_count
from minrnn_gen.torch.operators.recorded import RecurrenceFunction
from minrnn_gen.torch.operators.transformed import call


def run(
    recipe: str,
    states: int,
    parameters: int,
    tensors: tuple[Any, ...],
    kernel: Kernel | None = None,
    all_states: bool = False,
) -> Sequence[Any]:
    """Return y, the final states and, with `all_states`, those of all steps; recorded where a tensor requires grad.

    `states` and `parameters` say how many the cell has; `kernel`: the recipe's kernel, if at hand, saves a lookup.
    """
    if is_plain(tensors, takes_transforms=True):
        kernel = kernel or kernel_by(recipe)
        if records(tensors):
            return RecurrenceFunction.of(Straight(kernel, all_states), tensors)  # type: ignore[no-any-return]
        results = calls.forward(kernel, tensors, all_states, all_states)
    elif not torch.compiler.is_compiling() and has_transforms():
        results = [*call(recipe, tensors, all_states)]
    else:
        if not torch.compiler.is_compiling():
            calls.check_tensors(kernel or kernel_by(recipe), tensors)
        saves = records(tensors) or all_states
        slots = CallSlots.of(parameters, states, len(tensors) - CallSlots.of(parameters, states).total)
        results = OPERATOR(recipe, saves, all_states, *slots.by_schema(tensors))
    return results[: returned_count(states, all_states)]


def run_unrecorded(recipe: str, tensors: tuple[Any, ...]) -> list[Any] | None:
    """Return y and the final states as one layer of torch.nn does: in the dtype of y, [layers or directions, B, H].

    None where autograd records the call, or a compiler, mode or transform observes it.
    """
    return None if records(tensors) or not is_plain(tensors, takes_transforms=True) else calls.infer(kernel_by(recipe), tensors)
