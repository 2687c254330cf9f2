"""`minrnn_gen.scan` and `minrnn_gen.scan_backward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from minrnn_gen.call.array import Array
from minrnn_gen.raw_scan.arguments import Recurrence, check_scan, check_scan_backward, keyed_scan
from minrnn_gen.run.replay import TraceCache, TraceRecorder


class ScanResult(NamedTuple):
    """What a scan gives."""

    y: Any
    final: Any

    def mapped(self, change: Callable[[Any], Any]) -> ScanResult:
        """Return the results with every entry changed."""
        return ScanResult(change(self.y), change(self.final))


class ScanGradients(NamedTuple):
    """What a scan's backward gives."""

    a: Any
    b: Any
    h0: Any

    def mapped(self, change: Callable[[Any], Any]) -> ScanGradients:
        """Return the results with every entry changed."""
        return ScanGradients(change(self.a), change(self.b), change(self.h0))


# What was run before on arrays of a key, by every scan of this process.
SCANS = TraceCache[ScanResult, None]()
BACKWARDS = TraceCache[ScanGradients, None]()


def scan(a: Any, b: Any, h0: Any = None, *, log_a: bool = False, reverse: bool = False, axis: int = 1) -> tuple[Any, Any]:
    """Return (y, final) of h[t] = a[t] h[t-1] + b[t] along `axis`, starting from `h0`; y[t] is h[t].

    a, b and y have one shape and dtype: float64, float32, float16, bfloat16, complex64 or complex128. h0 (zeros where None)
    and final have that shape without `axis`, and the dtype of the arithmetic: float32 for 16-bit a, else a's own. With `log_a`,
    a holds the logarithms of the coefficients; with `reverse`, t runs from the last to the first, and y stays at its own t.
    Arrays may have any strides; CUDA arrays run a compiled kernel on the caller's current stream, others NumPy.
    Raises BadInput for arrays that do not fit.
    """
    keyed = keyed_scan((a, b, h0), log_a=log_a, reverse=reverse, axis=axis)
    replay = SCANS.replay(keyed)
    if replay is not None:
        y, final = replay.result
        return y, final
    call = check_scan(a, b, h0, log_a=log_a, reverse=reverse, axis=axis)
    recorder = TraceRecorder(call.a, keyed)
    (written,), last = _results(call.recurrence, recorder, 1)
    if call.a.device is None:
        from minrnn_gen.raw_scan import cpu  # NumPy is imported only where a host array comes in

        cpu.run_scan(call, written, last)
    else:
        from minrnn_gen.raw_scan import device

        device.run_scan(call, written, last, recorder)
        SCANS.keep(recorder.finish(ScanResult(written, last), None))
    return written.owner, last.owner


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
    keyed = keyed_scan((a, y, dy, h0, dfinal), log_a=log_a, reverse=reverse, axis=axis)
    replay = BACKWARDS.replay(keyed)
    if replay is not None:
        da, db, dh0 = replay.result
        return da, db, dh0
    call = check_scan_backward(a, y, dy, h0, dfinal, log_a=log_a, reverse=reverse, axis=axis)
    recorder = TraceRecorder(call.a, keyed)
    (by_a, by_b), by_h0 = _results(call.recurrence, recorder, 2)
    if call.a.device is None:
        from minrnn_gen.raw_scan import cpu

        cpu.run_scan_backward(call, by_a, by_b, by_h0)
    else:
        from minrnn_gen.raw_scan import device

        device.run_scan_backward(call, by_a, by_b, by_h0, recorder)
        BACKWARDS.keep(recorder.finish(ScanGradients(by_a, by_b, by_h0), None))
    return by_a.owner, by_b.owner, by_h0.owner


def _results(recurrence: Recurrence, recorder: TraceRecorder, count: int) -> tuple[tuple[Array, ...], Array]:
    """Allocate `count` arrays shaped like a, and one of the state's shape and dtype."""
    precision = recurrence.precision
    rows = tuple(recorder.new_array(recurrence.shape, precision.storage_dtype) for _ in range(count))
    return rows, recorder.new_array(recurrence.state_shape, precision.arithmetic_dtype)
