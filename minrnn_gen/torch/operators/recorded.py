"""Gradients of one order: what records them, and what refuses those of a second order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from minrnn_gen.errors import BadInput
from minrnn_gen.torch.operators.dispatch import NO_FORWARD_MODE, OF_REPLACED, dense_gradients, records

Tensors = Sequence[Any]
"""Tensors in a fixed order, None for those that were not given."""


class Way(Protocol):
    """How a call and its gradients are computed: directly, or through the dispatcher."""

    @property
    def results_count(self) -> int:
        """How many results have gradients; those after them are for the backward."""

    @property
    def returned_count(self) -> int | None:
        """How many results, with and without gradients, the call returns; None for all, as an operator does."""

    def forward(self, tensors: Tensors, /) -> Tensors:
        """Return the results of a call, with those for the backward."""

    def read_again(self, tensors: Tensors, /) -> Tensors:
        """Return `tensors` with None in place of those that the backward does not read."""

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors, /) -> Tensors:
        """Return the gradients of `tensors`, as `read_again` left them, None for what has none.

        `results`: the first one of the forward, and those for the backward; `gradients`: those of the results that have them.
        """


class RecurrenceFunction(torch.autograd.Function):
    """A call whose gradients autograd may ask for once."""

    @classmethod
    def of(cls, way: Way, tensors: Tensors) -> Any:
        """Return the results of a call, recorded. It is `apply` without a look for torch.func, which has been refused."""
        return super(torch.autograd.Function, cls).apply(way, *tensors)

    @staticmethod
    def forward(ctx: Any, way: Way, *tensors: Any) -> Any:
        results = way.forward(tensors)
        count = way.results_count
        extra = results[count:]
        ctx.way, ctx.count = way, len(tensors)
        ctx.save_for_backward(*way.read_again(tensors), results[0], *extra)
        ctx.set_materialize_grads(False)
        returned = tuple(results[: way.returned_count])
        ctx.mark_non_differentiable(*returned[count:])
        return returned

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        saved, count = ctx.saved_tensors, ctx.count
        arriving = gradients[: ctx.way.results_count]
        if all(gradient is None for gradient in arriving):
            return (None,) * (1 + count)
        return (None, *ctx.way.backward(saved[:count], saved[count:], dense_gradients(arriving)))

    @staticmethod
    def jvp(_ctx: Any, *_tangents: Any) -> Any:
        raise BadInput(NO_FORWARD_MODE)


def gradients_once(run: Callable[[], Tensors], tensors: Tensors) -> Tensors:
    """Return the gradients that `run` computes from `tensors`; where autograd records them, asking for theirs is refused."""
    if records(tensors):
        return GradientFunction.apply(run, *tensors)  # type: ignore[no-any-return]
    return run()


class GradientFunction(torch.autograd.Function):
    """A gradient, of which there is none."""

    @staticmethod
    def forward(_ctx: Any, run: Callable[[], Tensors], *_tensors: Any) -> Any:
        return tuple(run())

    @staticmethod
    def backward(_ctx: Any, *_gradients: Any) -> Any:
        raise BadInput(
            "a gradient of a gradient was asked for, which a recurrence of minrnn_gen does not have; differentiate it once, or "
            f"take the equations in torch for that; {OF_REPLACED}"
        )
