"""Autograd functions that record gradients and second gradients, and refuse third ones."""

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
        """The number of results that have gradients; the results after them are for the backward."""

    @property
    def returned_count(self) -> int | None:
        """The number of results that the call returns, with and without gradients; None for all, as an operator does."""

    def forward(self, tensors: Tensors, /) -> Tensors:
        """Return the results of a call, the backward's included."""

    def read_again(self, tensors: Tensors, /) -> Tensors:
        """Return `tensors` with None for each that the backward does not read."""

    def backward(self, tensors: Tensors, results: Tensors, gradients: Tensors, /) -> Tensors:
        """Return the gradients of `tensors`, as `read_again` left them, None for tensors without one.

        `results`: the forward's first result, and its results for the backward; `gradients`: of the results that have them.
        """


class RecurrenceFunction(torch.autograd.Function):
    """A call that autograd records as one node."""

    @classmethod
    def of(cls, way: Way, tensors: Tensors) -> Any:
        """Return the results of a call, recorded: `apply` without its check for torch.func, which was refused before."""
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


Twice = Callable[[Tensors, Tensors, Any], Tensors]
"""Returns second gradients, those of a gradient's input tensors: from these, the gradients of its results, and what it kept.

The last is None where nothing was kept, or where it was written since.
"""

_NO_SECOND = (
    "a gradient of a gradient was asked for, which this call of minrnn_gen does not have; differentiate it once, or take the "
    f"equations in torch for that; {OF_REPLACED}"
)
_NO_THIRD = (
    "a third derivative of a recurrence of minrnn_gen was asked for, which has two; take the outermost one by differences of "
    f"second derivatives, or take the equations in torch for that; {OF_REPLACED}"
)


def gradients_once(run: Callable[[], Tensors], tensors: Tensors) -> Tensors:
    """Return the gradients that `run` computes from `tensors`; where autograd records, gradients of them are refused."""
    return gradients_twice(run, None, tensors)


def gradients_twice(
    run: Callable[[], Tensors],
    twice: Twice | None,
    tensors: Tensors,
    why: str = _NO_SECOND,
    keeping: Callable[[], tuple[Tensors, Any]] | None = None,
) -> Tensors:
    """Return and record `run`'s gradients from `tensors`; `twice` computes theirs, or None refuses them with `why`.

    Recorded gradients come from `keeping`, if there is such a function, which also returns what `twice` reads of them.
    """
    if records(tensors):
        return GradientFunction.apply(keeping or (lambda: (run(), None)), twice, why, *tensors)  # type: ignore[no-any-return]
    return run()


class GradientFunction(torch.autograd.Function):
    """Gradients as a node of autograd, whose own gradients `twice` computes; None refuses them."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[], tuple[Tensors, Any]], twice: Twice | None, why: str, *tensors: Any) -> Any:
        ctx.twice, ctx.why = twice, why
        ctx.set_materialize_grads(False)
        if twice is not None:
            ctx.save_for_backward(*tensors)
        results, kept = run()
        # Not as a saved tensor, which may not be written: gradients are clipped in place.
        ctx.kept = None if kept is None else (kept.detach(), kept._version)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if ctx.twice is None:
            raise BadInput(ctx.why)
        tensors, along = ctx.saved_tensors, dense_gradients(gradients)
        if all(tangent is None for tangent in along):
            return (None,) * (3 + len(tensors))
        kept = None if ctx.kept is None or ctx.kept[0]._version != ctx.kept[1] else ctx.kept[0]
        second = gradients_twice(lambda: ctx.twice(tensors, along, kept), None, (*tensors, *along), _NO_THIRD)
        return (None, None, None, *second)
