"""`minrnn_gen.jax.scan`: the raw scan, with gradients."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from minrnn_gen.jax.arrays import as_array, check_static, described
from minrnn_gen.jax.differentiable import run_scan
from minrnn_gen.jax.over_time import scan_over_time
from minrnn_gen.jax.request import Request
from minrnn_gen.raw_scan.arguments import check_scan


def scan(
    a: Any,
    b: Any,
    h0: Any = None,
    *,
    log_a: bool = False,
    reverse: bool = False,
    axis: int = 1,
    axis_name: str | None = None,
) -> tuple[Any, Any]:
    """Return (y, final) of h[t] = a[t] h[t-1] + b[t] along `axis`, with gradients of a, b and h0.

    Shapes and dtypes are those of `minrnn_gen.scan`; gradients of complex arrays are JAX's. There is no derivative in forward
    mode and none of a gradient. With `axis_name` a and b are this device's pieces of time in a `jax.shard_map` over that axis,
    but h0 and the final state are of the whole. Raises BadInput for what does not fit.
    """
    for name, value in (("log_a", log_a), ("reverse", reverse), ("axis", axis)):
        check_static(value, name)
    a, b = as_array(a, "a"), as_array(b, "b")
    h0 = None if h0 is None else as_array(h0, "h0")
    recurrence = check_scan(a, b, h0, log_a=log_a, reverse=reverse, axis=axis, inspect=described).recurrence
    carried = jnp.dtype(recurrence.precision.arithmetic_dtype)
    if not a.size:
        return a * b, jnp.zeros(recurrence.state_shape, carried) if h0 is None else h0
    if axis_name is not None and h0 is None:
        h0 = jnp.zeros(recurrence.state_shape, carried)
    present = (True, True, h0 is not None)
    request = Request("scan", present, log_a=log_a, reverse=reverse, axis=recurrence.axis)
    if axis_name is not None:
        y, final = scan_over_time(request, axis_name, a, b, h0)
        return y, final
    y, final = run_scan(request, (a, b) if h0 is None else (a, b, h0))
    return y, final
