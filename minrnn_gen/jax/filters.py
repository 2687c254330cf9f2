"""`minrnn_gen.jax.lfilter` and `sosfilt`: linear filters with exact gradients."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from minrnn_gen.errors import BadInput
from minrnn_gen.jax.arrays import as_array, carried_dtype, check_real, is_traced
from minrnn_gen.jax.differentiable import run_raw
from minrnn_gen.jax.request import Request
from minrnn_gen.raw_scan.filter_arguments import ZERO_FIRST, channels_of, check_sections, filtered_by_sections


def lfilter(x: Any, a: Any, b: Any, zi: Any = None) -> Any:
    """Return y, or (y, zf) where `zi` is given, of a linear filter along the last axis of x, with gradients of all arrays.

    Equation, shapes and dtypes are those of `minrnn_gen.torch.lfilter`; it is computed in float64 without JAX's x64 mode too,
    where coefficients and states are float32 outside of it. There is no derivative in forward mode and none of a gradient.
    Raises BadInput for wrong arguments, and on a CPU where a[0] is 0, for tracers an error of JAX when the program runs.
    Source: Oppenheim & Schafer, Discrete-Time Signal Processing, section 6.3.
    """
    x, a, b = as_array(x, "x"), as_array(a, "a"), as_array(b, "b")
    for name, array in {"x": x, "a": a, "b": b}.items():
        check_real(array, name)
    channels = channels_of(x.shape, {"a": a.shape, "b": b.shape})
    order = max(a.shape[-1], b.shape[-1]) - 1
    if zi is not None:
        zi = as_array(zi, "zi")
        check_real(zi, "zi", (*x.shape[:-1], order))
    if _is_on_cpu(a) and not bool((a[..., 0] != 0).all()):
        raise BadInput(ZERO_FIRST)
    if not x.size:
        return x if zi is None else (x, zi)
    shape = (math.prod(x.shape[:-1]) // channels, channels)
    # Sixteen bits are computed as float32, which holds them.
    rows = x.reshape(*shape, x.shape[-1]).astype(jnp.promote_types(x.dtype, jnp.float32))
    # A filter of order 0 only multiplies.
    state = (zi.reshape(*shape, order).astype(carried_dtype()),) if zi is not None and order else ()
    request = Request("filter", (True, True, True, bool(state)))
    y, zf = run_raw(request, (rows, _wide(b, channels, order), _wide(a, channels, order), *state))
    y = y.reshape(x.shape).astype(x.dtype)
    return y if zi is None else (y, zf[..., :order].reshape(zi.shape).astype(zi.dtype))


def sosfilt(sos: Any, x: Any, zi: Any = None) -> Any:
    """Return y, or (y, zf) where `zi` is given, of second-order sections in sequence, with gradients of all arrays.

    Shapes are those of `minrnn_gen.torch.sosfilt`. Each section is `lfilter`, and passes a signal of x's dtype to the next.
    Raises what `lfilter` does.
    """
    x, sos = as_array(x, "x"), as_array(sos, "sos")
    check_real(x, "x")
    check_real(sos, "sos")
    count = check_sections(sos.shape)
    if zi is not None:
        zi = as_array(zi, "zi")
        check_real(zi, "zi", (count, *x.shape[:-1], 2))
    return filtered_by_sections(lfilter, jnp.stack, sos, x, zi)


def _wide(array: Any, channels: int, order: int) -> Any:
    """Return coefficients as [channels, order + 1], of at least the first order, padded with zeros."""
    missing = max(order, 1) + 1 - array.shape[-1]
    padded = jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, missing)])
    return jnp.broadcast_to(padded.astype(carried_dtype()), (channels, padded.shape[-1]))


def _is_on_cpu(array: Any) -> bool:
    """Say whether values are known without waiting for a GPU."""
    return not is_traced(array) and all(device.platform == "cpu" for device in array.devices())
