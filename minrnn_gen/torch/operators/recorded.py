"""Gradients: what records them and their own, and what refuses those of a third order."""

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


Twice = Callable[[Tensors, Tensors], Tensors]
"""Returns the gradients of what a gradient was computed from, of those tensors and of the gradients of its results."""

_NO_SECOND = (
    "a gradient of a gradient was asked for, which this call of minrnn_gen does not have; differentiate it once, or take the "
    f"equations in torch for that; {OF_REPLACED}"
)
_NO_THIRD = (
    "a third derivative of a recurrence of minrnn_gen was asked for, which has two; take the outermost one by differences of "
    f"second derivatives, or take the equations in torch for that; {OF_REPLACED}"
)


def gradients_once(run: Callable[[], Tensors], tensors: Tensors) -> Tensors:
    """Return the gradients that `run` computes from `tensors`; where autograd records them, asking for theirs is refused."""
    return gradients_twice(run, None, tensors)


def gradients_twice(run: Callable[[], Tensors], twice: Twice | None, tensors: Tensors, why: str = _NO_SECOND) -> Tensors:
    """Return the gradients that `run` computes from `tensors`, recorded, theirs by `twice`; refused without, saying `why`."""
    if records(tensors):
        return GradientFunction.apply(run, twice, why, *tensors)  # type: ignore[no-any-return]
    return run()


class GradientFunction(torch.autograd.Function):
    """A gradient, and its own gradients, of which there are none."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[], Tensors], twice: Twice | None, why: str, *tensors: Any) -> Any:
        ctx.twice, ctx.why = twice, why
        ctx.set_materialize_grads(False)
        if twice is not None:
            ctx.save_for_backward(*tensors)
        return tuple(run())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.twice is None:
            raise BadInput(ctx.why)
        tensors, along = ctx.saved_tensors, dense_gradients(gradients)
        if all(tangent is None for tangent in along):
            return (None,) * (3 + len(tensors))
        second = gradients_twice(lambda: ctx.twice(tensors, along), None, (*tensors, *along), _NO_THIRD)
        return (None, None, None, *second)
