"""`minrnn_gen.scan` and `minrnn_gen.scan_backward` of maps, for all forms except scalar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.key import KeyedArrays, is_on_cpu, keyed
from minrnn_gen.gpu.memory import cast
from minrnn_gen.raw_scan.arguments import inspected
from minrnn_gen.raw_scan.map_arguments import (
    CARRIED,
    MapBackwardCall,
    check_form,
    check_pairs,
    check_scan_of_maps,
    check_scan_of_maps_backward,
)
from minrnn_gen.raw_scan.pairs import Library, Pairs
from minrnn_gen.raw_scan.results import ScanGradients

_COMPLEX = {"float32": "complex64", "float64": "complex128"}


def scan(
    a: Any, b: Any, h0: Any, form: Any, of_numbers: Callable[..., tuple[Any, Any]], *, log_a: Any, reverse: Any, axis: Any
) -> tuple[Any, Any]:
    """Return (y, final) of maps of a form; `of_numbers` is the scan of numbers."""
    form = check_form(form, log_a)
    if form != "full":
        a, b, h0 = _inspected(a=a, b=b, h0=h0)
        index, is_constant = check_pairs(a, b, axis, reverse, h0=h0)
        dtype, (a, b, h0) = _dtype_of(b), _widened(is_constant, a, b, h0)
        pairs = Pairs(_library_of(b), of_numbers, form, index, reverse)
        y, final = pairs.forward(_module_of(b).broadcast_to(a, b.shape), b, h0)
        return cast(y, dtype), cast(final, dtype)
    from minrnn_gen.raw_scan import maps_host  # NumPy is imported only where a host array comes in

    own = _keyed((a, b, h0), reverse, axis)
    if again := maps_host.SCANS.replay(maps_host.kept(own)):
        return again.result
    call = check_scan_of_maps(a, b, h0, reverse=reverse, axis=axis)
    if call.b.device is None:
        return maps_host.scan(call, own)
    from minrnn_gen.raw_scan import maps_device

    return maps_device.scan(call)


def scan_backward(
    a: Any,
    y: Any,
    dy: Any,
    h0: Any,
    dfinal: Any,
    form: Any,
    of_numbers: Callable[..., tuple[Any, Any, Any]],
    *,
    log_a: Any,
    reverse: Any,
    axis: Any,
) -> tuple[Any, Any, Any]:
    """Return (da, db, dh0) of maps of a form; `of_numbers` is the backward of the scan of numbers."""
    form = check_form(form, log_a)
    if form != "full":
        a, y, dy, h0, dfinal = _inspected(a=a, y=y, dy=dy, h0=h0, dfinal=dfinal)
        index, is_constant = check_pairs(a, y, axis, reverse, "y", h0=h0, dfinal=dfinal)
        dtype, (a, y, dy, h0, dfinal) = _dtype_of(y), _widened(is_constant, a, y, dy, h0, dfinal)
        pairs = Pairs(_library_of(y), of_numbers, form, index, reverse)
        da, db, dh0 = pairs.backward(_module_of(y).broadcast_to(a, y.shape), y, dy, h0, dfinal)
        da = da.sum(tuple(range(index + 1))) if is_constant else da
        return cast(da, dtype), cast(db, dtype), cast(dh0, dtype)
    from minrnn_gen.raw_scan import maps_host

    own = _keyed((a, y, dy, h0, dfinal), reverse, axis)
    again = maps_host.BACKWARDS.replay(maps_host.kept(own))
    if again is None:
        call = check_scan_of_maps_backward(a, y, dy, h0, dfinal, reverse=reverse, axis=axis)
        da, db, dh0 = _scan_backward(call, own)
    else:
        da, db, dh0 = again.result
    # Constant maps have gradients for each row, in double precision.
    is_constant = tuple(da.shape) != tuple(a.shape)
    return cast(da.sum(0), _dtype_of(a)) if is_constant else da, db, dh0


def _scan_backward(call: MapBackwardCall, own: KeyedArrays | None) -> ScanGradients:
    if call.y.device is None:
        from minrnn_gen.raw_scan import maps_host

        return maps_host.scan_backward(call, own)
    from minrnn_gen.raw_scan import maps_device

    return maps_device.scan_backward(call)


def _keyed(arrays: Sequence[Any], reverse: Any, axis: Any) -> KeyedArrays | None:
    """Return arrays in host memory, unchecked, in the order of their slots, with their key; None without one."""
    if not (type(reverse) is bool and type(axis) is int and is_on_cpu(arrays[0])):
        return None
    return keyed(("full", reverse, axis), [*arrays])


def _inspected(**arrays: Any) -> list[Any]:
    """Return arrays as the arrays of NumPy, CuPy or torch that they are or share memory with; None stays None."""
    return [None if array is None else inspected(array, name).owner for name, array in arrays.items()]


def _widened(is_constant: bool, *arrays: Any) -> list[Any]:
    """Return arrays in double precision where powers of one map would repeat the same rounding error.

    NumPy and GPUs compose maps; native code runs step by step.
    """
    on_host = inspected(arrays[0], "a").device is None
    is_widened = bool(why_no_native_code()) if on_host else is_constant
    return [cast(array, CARRIED) if is_widened and array is not None else array for array in arrays]


def _dtype_of(array: Any) -> str:
    return str(array.dtype).removeprefix("torch.")


def _module_of(array: Any) -> Any:
    return sys.modules[type(array).__module__.partition(".")[0]]


def _library_of(array: Any) -> Library:
    module = _module_of(array)

    def as_complex(pairs: Any) -> Any:
        if hasattr(module, "view_as_complex"):
            return module.complex(pairs[..., 0], pairs[..., 1])
        whole = module.ascontiguousarray(pairs)
        return whole.view(numpy_dtype(_COMPLEX[whole.dtype.name]))[..., 0]

    return Library(module.stack, module.concatenate, module.zeros_like, as_complex)
