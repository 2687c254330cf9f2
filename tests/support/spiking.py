"""Spiking neurons as loops over time in torch, from their publications, for autograd to differentiate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch


class Spike(torch.autograd.Function):
    """1 where `fires`, else 0, with the gradient `slope(over)`."""

    @staticmethod
    def forward(ctx: Any, over: Any, fires: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Any:
        ctx.save_for_backward(over)
        ctx.slope = slope
        return fires(over).to(over.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (over,) = ctx.saved_tensors
        return gradients[0] * ctx.slope(over), None, None


def spike_from(over: Any, slope: Callable[[Any], Any]) -> Any:
    return Spike.apply(over, lambda one: one >= 0, slope)


def spike_above(over: Any, slope: Callable[[Any], Any]) -> Any:
    return Spike.apply(over, lambda one: one > 0, slope)


def arctan(alpha: float) -> Callable[[Any], Any]:
    return lambda u: alpha / 2 / (1 + (math.pi / 2 * alpha * u) ** 2)


def logistic(alpha: float) -> Callable[[Any], Any]:
    return lambda u: alpha * torch.sigmoid(alpha * u) * (1 - torch.sigmoid(alpha * u))


def results(spikes: Any, states: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return spikes, final states and the gradients of a weighed sum of all, by names."""
    weights = torch.linspace(-1, 1, spikes.numel(), dtype=torch.float64).reshape(spikes.shape)
    loss = (spikes * weights).sum() + sum(state.square().sum() for state in states)
    gradients = torch.autograd.grad(loss, list(tensors.values()), allow_unused=True, materialize_grads=True)
    found = {"spikes": spikes, **{f"state {place}": state for place, state in enumerate(states)}}
    found |= {f"gradient of {name}": one for name, one in zip(tensors, gradients, strict=True)}
    return {name: one.detach() for name, one in found.items()}


def assert_equal(ours: Mapping[str, Any], theirs: Mapping[str, Any], roundoffs: float = 256) -> None:
    """Compare results: spikes exactly, and the rest to roundoffs of its dtype, relative to the largest."""
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        other = theirs[name]
        if name == "spikes":
            assert torch.equal(one.to(other.dtype), other) and set(one.unique().tolist()) == {0.0, 1.0}
            continue
        bound = roundoffs * torch.finfo(one.dtype).eps * max(1.0, float(other.abs().max()))
        assert float((one - other).abs().max()) <= bound, name
