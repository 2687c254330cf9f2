"""`minrnn_gen.jax.scan`: the raw scan, with gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from minrnn_gen.errors import BadInput
from minrnn_gen.jax.arrays import as_array, carried_dtype, check_static, described
from minrnn_gen.jax.differentiable import run_raw
from minrnn_gen.jax.over_time import scan_over_time
from minrnn_gen.jax.request import Request
from minrnn_gen.raw_scan.arguments import check_scan
from minrnn_gen.raw_scan.map_arguments import Form, check_form, check_pairs, check_scan_of_maps
from minrnn_gen.raw_scan.pairs import Library, Pairs

_LIBRARY = Library(jnp.stack, jnp.concatenate, jnp.zeros_like, lambda pairs: jax.lax.complex(pairs[..., 0], pairs[..., 1]))


def scan(
    a: Any,
    b: Any,
    h0: Any = None,
    *,
    form: Form = "scalar",
    log_a: bool = False,
    reverse: bool = False,
    axis: int = 1,
    axis_name: str | None = None,
) -> tuple[Any, Any]:
    """Return (y, final) of h[t] = a[t] h[t-1] + b[t] along `axis`, with gradients of a, b and h0.

    Shapes, dtypes and forms are those of `minrnn_gen.scan`; gradients of complex arrays are JAX's. Of form "full"
    states are float32 without JAX's x64 mode, but carried in float64 within a call. There is no derivative in forward mode
    and none of a gradient. With `axis_name` a and b are this device's pieces of time in a `jax.shard_map` over that axis, but
    h0 and the final state are of the whole; for form "scalar" alone.
    Raises BadInput for arguments that do not fit.
    """
    for name, value in (("log_a", log_a), ("reverse", reverse), ("axis", axis)):
        check_static(value, name)
    form = check_form(form, log_a)
    a, b = as_array(a, "a"), as_array(b, "b")
    h0 = None if h0 is None else as_array(h0, "h0")
    if form != "scalar":
        return _scan_of_maps(form, a, b, h0, reverse, axis, axis_name)
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
    y, final = run_raw(request, (a, b) if h0 is None else (a, b, h0))
    return y, final


def _scan_of_maps(form: Form, a: Any, b: Any, h0: Any, reverse: bool, axis: int, axis_name: str | None) -> tuple[Any, Any]:
    if axis_name is not None:
        raise BadInput(f"axis_name is given with form {form!r}, whose maps are not composed over devices; leave it out")
    if form == "full":
        return _scan_of_full_maps(a, b, h0, reverse, axis)
    index, _ = check_pairs(a, b, axis, reverse, h0=h0)
    y, final = Pairs(_LIBRARY, scan, form, index, reverse).forward(jnp.broadcast_to(a, b.shape), b, h0)
    return y, final


def _scan_of_full_maps(a: Any, b: Any, h0: Any, reverse: bool, axis: int) -> tuple[Any, Any]:
    carried = carried_dtype()
    call = check_scan_of_maps(a, b, h0, reverse=reverse, axis=axis, inspect=described, carried=carried.name)
    recurrence = call.recurrence
    h0 = jnp.zeros(recurrence.state_shape, carried) if h0 is None else h0
    if not b.size:
        return b, h0
    request = Request("scan", (True, True, True), reverse=reverse, axis=recurrence.axis, form="full")
    y, final = run_raw(request, (jnp.broadcast_to(a, (*b.shape, recurrence.size)), b, h0))
    return y, final
