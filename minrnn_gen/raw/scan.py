"""`minrnn_gen.scan` and `minrnn_gen.scan_backward`."""

from __future__ import annotations

from typing import Any

from minrnn_gen import cuda
from minrnn_gen.arrays import Array, numpy_dtype
from minrnn_gen.raw.arguments import Recurrence, check_scan, check_scan_backward


def scan(a: Any, b: Any, h0: Any = None, *, log_a: bool = False, reverse: bool = False, axis: int = 1) -> tuple[Any, Any]:
    """Return (y, final) of h[t] = a[t] h[t-1] + b[t] along `axis`, starting from `h0`; y[t] is h[t].

    a, b and y have one shape and dtype: float64, float32, float16, bfloat16, complex64 or complex128. h0 (zeros where None)
    and final have that shape without `axis`, and the dtype of the arithmetic: float32 for 16-bit a, else a's own. With `log_a`,
    a holds the logarithms of the coefficients; with `reverse`, t runs from the last to the first, and y stays at its own t.
    Arrays may have any strides; CUDA arrays run a compiled kernel on the caller's current stream, others NumPy.
    Raises BadInput for arrays that do not fit.
    """
    call = check_scan(a, b, h0, log_a=log_a, reverse=reverse, axis=axis)
    (y,), final = _results(call.recurrence, call.a, 1)
    if call.a.device is None:
        from minrnn_gen.raw import host  # NumPy is imported only where a host array comes in

        host.run_scan(call, y, final)
    else:
        from minrnn_gen.raw import device

        device.run_scan(call, y, final)
    return y.owner, final.owner


def scan_backward(
    a: Any,
    y: Any,
    dy: Any,
    h0: Any = None,
    dfinal: Any = None,
    *,
    log_a: bool = False,
    reverse: bool = False,
    axis: int = 1,
) -> tuple[Any, Any, Any]:
    """Return (da, db, dh0), the gradients of sum(dy y) + sum(dfinal final), given the y of `scan` with the same arguments.

    dy is like y, and dfinal (zeros where None) like final; da and db are like a, dh0 like final. With `log_a`, da is the
    gradient of log a. Complex gradients follow torch's convention: delta[t] = dy[t] + conj(a[t+1]) delta[t+1],
    db[t] = delta[t], da[t] = delta[t] conj(h[t-1]), dh0 = conj(a[0]) delta[0]. In 16-bit dtypes y, rounded, stands for h.
    Raises BadInput for arrays that do not fit. Source: Martin & Cundy, arXiv 1709.04057.
    """
    call = check_scan_backward(a, y, dy, h0, dfinal, log_a=log_a, reverse=reverse, axis=axis)
    (da, db), dh0 = _results(call.recurrence, call.a, 2)
    if call.a.device is None:
        from minrnn_gen.raw import host

        host.run_scan_backward(call, da, db, dh0)
    else:
        from minrnn_gen.raw import device

        device.run_scan_backward(call, da, db, dh0)
    return da.owner, db.owner, dh0.owner


def _new(like: Array, shape: tuple[int, ...], dtype: str) -> Array:
    """Allocate an uninitialised array of the library and in the memory of `like`."""
    if like.library != "numpy":
        return cuda.new_array(like, shape, dtype)
    import numpy

    return cuda.inspect(numpy.empty(shape, numpy_dtype(dtype)), "result")


def _results(recurrence: Recurrence, like: Array, count: int) -> tuple[tuple[Array, ...], Array]:
    """Allocate `count` arrays shaped like `like`, and one of the state's shape and dtype."""
    rows = tuple(_new(like, like.shape, like.dtype) for _ in range(count))
    return rows, _new(like, recurrence.state_shape, recurrence.precision.arithmetic_dtype)
