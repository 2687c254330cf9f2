"""`recurrence` of kernels with projected units, by the kernels that serve them, on tensors padded with zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.joined import joined
from minrnn_gen.call.reshaped_arrays import checked_arrays
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.run.embedded import EmbeddedExecutor
from minrnn_gen.torch.tensors import autocasts, check_tensor


def embedded_recurrence(
    recurrence: Callable[..., Any], kernel: Kernel, arguments: CallArguments, *, folds: bool = False
) -> tuple[Any, ...]:
    """Return the results of `recurrence` by the serving kernel: y, the final state, and perhaps all states.

    `folds`: a kernel with one product for two may serve. Raises BadInput as `recurrence` does.
    """
    x = arguments.x
    arguments = checked_arrays(kernel.interface, joined(kernel.interface, arguments, torch), partial(_beside, x), autocasts(x))
    if folds and (folded := _folded(recurrence, kernel, arguments)) is not None:
        return folded
    assert kernel.embedded is not None and isinstance(kernel.executor, EmbeddedExecutor)
    embedding = replace(kernel.executor.embedding, library=torch)
    _, R, *others = embedding.arguments(arguments)
    names = CallArguments._fields[2:]
    y, final, *states = recurrence(kernel.embedded, x, R, **dict(zip(names, others, strict=True)))
    of_steps = [dict(zip(kernel.states, embedding.over_time(tuple(value.values())), strict=True)) for value in states]
    return embedding.y(y), dict(zip(kernel.states, embedding.final(tuple(final.values())), strict=True)), *of_steps


def _folded(recurrence: Callable[..., Any], kernel: Kernel, arguments: CallArguments) -> tuple[Any, ...] | None:
    """Return the results of a kernel with the output's product folded into the others; None where there is no such kernel."""
    if arguments.state is not None or kernel.folded is None:
        return None
    output, (inner, folding) = kernel.states[0], kernel.folded
    if not folding.serves(arguments):
        return None
    folding = replace(folding, library=torch)
    matrices = folding.parts(arguments.R)
    x, R, *others = folding.arguments(arguments, matrices)
    y, final = recurrence(inner, x, R, **dict(zip(CallArguments._fields[2:], others, strict=True)))
    final = {name: folding.last(state, matrices[1]) if name == output else state for name, state in final.items()}
    return folding.over_time(y, matrices[1].to(y.dtype)), final


def _beside(x: Any, value: Any, name: str) -> Any:
    """Return a tensor that is where x is; raises BadInput for what is none, and for one that is elsewhere."""
    check_tensor(value, name)
    if value.device != x.device:
        raise BadInput(f"{name} is on {value.device}, but x is on {x.device}; move one of them")
    return value
