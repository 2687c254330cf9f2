"""Requests with gradients: for each array of a call that has one, by the kernels' backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from minrnn_gen.call.slots import X
from minrnn_gen.errors import BadInput
from minrnn_gen.jax.primitive import bind
from minrnn_gen.jax.request import Request
from minrnn_gen.jax.second import backward_reads_states
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.raw_scan.filter_results import PASSED

Arrays = tuple[Any, ...]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def run(request: Request, operands: Arrays) -> Arrays:
    """Return the results of a forward or a step. Gradients go through y and the final states, not through those it keeps."""
    return tuple(bind(request, operands))


def _forward(request: Request, operands: Arrays) -> tuple[Arrays, tuple[Arrays, Arrays]]:
    kernel = kernel_by(request.recipe)
    if not kernel.spec.training:
        raise BadInput("the spec says training: false; leave it out for gradients")
    if request.kind == "step":
        whole = replace(request, kind="forward")
        axes = _time_axes(request)
        of_time = (array if axis is None else jnp.expand_dims(array, axis) for array, axis in zip(operands, axes, strict=True))
        (y, *final), (saved, kept) = _forward(whole, tuple(of_time))
        return (y.squeeze(_time_of_y(request)), *final), (saved, kept)
    saving = replace(request, keeps=request.keeps or backward_reads_states(request.recipe), trains=True)
    results = tuple(bind(saving, operands))
    count = 1 + len(kernel.states)
    returned = results if request.keeps else results[:count]
    return returned, (operands, (results[0], *results[count:]))


def _backward(request: Request, residuals: tuple[Arrays, Arrays], incoming: Arrays) -> tuple[Arrays]:
    operands, saved = residuals
    dy, *dstate = incoming[: 1 + len(request.interface.states)]
    if request.kind == "step":
        dy = jnp.expand_dims(dy, _time_of_y(request))
    backward = replace(request, kind="backward", keeps=len(saved) > 1)
    gradients = dict(zip(request.gradient_slots, bind(backward, (*operands, *saved, dy, *dstate)), strict=True))
    if request.kind == "step":
        for slot, axis in zip(request.slots, _time_axes(request), strict=True):
            gradients[slot] = gradients[slot] if axis is None else gradients[slot].squeeze(axis)
    return (tuple(gradients.get(slot) for slot in request.slots),)


run.defvjp(_forward, _backward)


def _time_axes(request: Request) -> list[int | None]:
    """Return the axis of time that each operand of a step has in the same call over time, None where it has none."""
    interface = request.interface
    slots = interface.slots
    axes = {X: interface.x_axes.index("t"), **dict.fromkeys(range(slots.total)[slots.shared], interface.shared_axes.index("t"))}
    axes |= dict.fromkeys(range(slots.total)[slots.inputs], interface.channel_axes.index("t"))
    return [axes.get(slot) for slot in request.slots]


def _time_of_y(request: Request) -> int:
    return {"BTD": 1, "TBD": 0, "BDT": 2}[request.interface.layout]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def run_raw(request: Request, operands: Arrays) -> Arrays:
    """Return y and the final state of a raw scan or a filter."""
    return tuple(bind(request, operands))


def _forward_raw(request: Request, operands: Arrays) -> tuple[Arrays, tuple[Arrays, Any]]:
    y, final = bind(request, operands)
    return (y, final), (operands, y)


def _backward_raw(request: Request, residuals: tuple[Arrays, Any], incoming: Sequence[Any]) -> tuple[Arrays]:
    operands, y = residuals
    if request.kind == "filter":
        backward = replace(request, kind="filter_backward", present=(True,) * len(PASSED["filter_backward"]))
        gradients = bind(backward, (*operands[:3], y, *incoming))
        return (tuple(gradients[: len(operands)]),)
    a, _, *h0 = operands
    backward = replace(request, kind="scan_backward", present=(True, bool(h0)))
    # Gradients of complex numbers are the conjugates of torch's, which the kernels compute.
    dy, dfinal = map(_conjugate, incoming)
    da, db, dh0 = map(_conjugate, bind(backward, (a, *h0, y, dy, dfinal)))
    return ((da, db, dh0) if h0 else (da, db),)


run_raw.defvjp(_forward_raw, _backward_raw)


def _conjugate(array: Any) -> Any:
    return jnp.conj(array) if jnp.iscomplexobj(array) else array
