"""The states after every step as one tensor; gradients go through its outputs, and not through its other states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.errors import BadInput
from minrnn_gen.torch.operators.dispatch import dense_gradients, refuse_transforms


def stacked(y: Any, others: Sequence[Any], names: Sequence[str]) -> Any:
    """Return [y, *others] as one tensor; a backward that meets a gradient of `others`, called `names[1:]`, raises BadInput.

    So do transforms of torch.func.
    """
    if not others:
        return y.unsqueeze(0)
    refuse_transforms(y)
    return _Stacked.apply(y, tuple(others), tuple(names))


class _Stacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Any, others: tuple[Any, ...], names: tuple[str, ...]) -> Any:
        ctx.names = names
        return torch.stack((y, *others))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None, None]:
        (gradient,) = dense_gradients([gradient])
        # A slice's gradient arrives with zeros everywhere else: only the values say which states were used.
        is_wrong = gradient[1:].any()
        if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
            # Nothing can be read back while a graph is captured; a gradient that cannot be right is NaN.
            return torch.where(is_wrong, float("nan"), gradient[0]), None, None
        if is_wrong:
            output, *others = ctx.names
            raise BadInput(
                f"a loss depends on {', '.join(others)} at every step, and only {output}, states[0], has a gradient there; "
                f"take the others from the last states, the second result"
            )
        return gradient[0], None, None
