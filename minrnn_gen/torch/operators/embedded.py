"""`recurrence` of kernels with projected units: that of the kernels that serve them, on tensors with zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.joined import joined
from minrnn_gen.kernel import Kernel
from minrnn_gen.run.embedded import EmbeddedExecutor


def embedded_recurrence(recurrence: Callable[..., Any], kernel: Kernel, arguments: CallArguments) -> tuple[Any, ...]:
    """Return what `recurrence` does of the kernel that serves another: y, the final state, and perhaps all states.

    Raises BadInput as it does.
    """
    assert kernel.embedded is not None and isinstance(kernel.executor, EmbeddedExecutor)
    embedding = replace(kernel.executor.embedding, library=torch)
    x, R, *others = embedding.arguments(joined(kernel.interface, arguments, torch))
    names = CallArguments._fields[2:]
    y, final, *states = recurrence(kernel.embedded, x, R, **dict(zip(names, others, strict=True)))
    of_steps = [dict(zip(kernel.states, embedding.over_time(tuple(value.values())), strict=True)) for value in states]
    return embedding.y(y), dict(zip(kernel.states, embedding.final(tuple(final.values())), strict=True)), *of_steps
