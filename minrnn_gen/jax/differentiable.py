"""Raw scans and filters with gradients, by their backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from minrnn_gen.jax.primitive import bind
from minrnn_gen.jax.request import Request
from minrnn_gen.raw_scan.filter_results import PASSED

Arrays = tuple[Any, ...]


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
