"""Scans of full maps in programs for a GPU: a cell of coupled states in float64, between copies that XLA makes.

They are the kernels of `raw_scan.maps_device`. Arrays are float64 here, also without JAX's x64 mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax.numpy as jnp

from minrnn_gen.call.slots import X
from minrnn_gen.jax.request import Request
from minrnn_gen.raw_scan.maps_device import ORDERS, MapKernel, recipe_of_maps

Run = Callable[[Request, Sequence[Any]], Sequence[Any]]

_recipe_of = lru_cache(recipe_of_maps)


def full_maps_on_device(run: Run, request: Request, operands: Sequence[Any]) -> list[Any]:
    """Return the results of a request of form "full", whose operands are in float64; `run` has the cell's results."""
    a, h0, *others = operands if request.kind == "scan_backward" else (operands[0], operands[2], operands[1])
    b = others[0]
    rows, time = math.prod(b.shape[: request.axis]), b.shape[request.axis]
    size, channels = b.shape[-1], math.prod(b.shape[request.axis + 1 : -1])
    maps = a.reshape(rows, time, channels, size, size)
    others = [other.reshape(rows, -1, channels, size) for other in others]
    initial = h0.reshape(rows, channels, size)
    if request.kind == "scan":
        every, final = _states(run, maps, others[0], initial, request.reverse)
        return [every.reshape(b.shape), final.reshape(h0.shape)]
    # delta[t] = dy[t] + A[t+1]' delta[t+1], as in `raw_scan.maps_device.scan_backward`.
    y, dy, dfinal = others
    transposed, against = maps.swapaxes(-1, -2), not request.reverse
    arriving, dh0 = _states(run, transposed, (transposed @ dy[..., None])[..., 0], dfinal[:, 0], against)
    delta = dy + _before(arriving, dfinal, against)
    da = delta[..., :, None] * _before(y, initial[:, None], request.reverse)[..., None, :]
    return [da.reshape(a.shape), delta.reshape(b.shape), dh0.reshape(h0.shape)]


def _states(run: Run, maps: Any, b: Any, initial: Any, reverse: bool) -> tuple[Any, Any]:
    """Return the states [rows, T, C, m] and the last of them [rows, C, m]."""
    rows, time, channels, size = b.shape
    kernel = MapKernel(size, channels, False, reverse)
    recipe, (to_x, from_y) = _recipe_of(kernel), ORDERS[kernel.layout]
    request = Request("forward", (), recipe, keeps=True)
    names, slots = request.interface.states, request.interface.slots
    flat: list[Any] = [None] * slots.total
    flat[X] = jnp.concatenate([maps.reshape(rows, time, channels, size**2), b], -1).transpose(to_x)
    flat[slots.states] = [initial[..., int(name[1:])] for name in names]
    request = Request("forward", tuple(array is not None for array in flat), recipe, keeps=True)
    _, *states = run(request, [array for array in flat if array is not None])
    placed = [names.index(f"s{row}") for row in range(size)]
    every = jnp.stack([states[size + place].transpose(from_y) for place in placed], -1)
    return every, jnp.stack([states[place] for place in placed], -1)


def _before(values: Any, initial: Any, reverse: bool) -> Any:
    """Return the values [rows, T, C, m] before each step; `initial` is [rows, 1, C, m]."""
    parts = (values[:, 1:], initial) if reverse else (initial, values[:, :-1])
    return jnp.concatenate(parts, 1)
