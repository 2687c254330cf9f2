"""`minrnn_gen.scan` and `minrnn_gen.scan_backward`."""

from __future__ import annotations

from typing import Any

from minrnn_gen.call.key import is_on_cpu
from minrnn_gen.raw_scan import maps
from minrnn_gen.raw_scan.arguments import check_scan, check_scan_backward, keyed_scan
from minrnn_gen.raw_scan.map_arguments import Form
from minrnn_gen.raw_scan.results import ScanGradients, ScanResult, results_of
from minrnn_gen.run.recording.replay import TraceCache

# Kept runs by the key of their arrays, shared by all scans of this process.
SCANS = TraceCache[ScanResult, None]()
BACKWARDS = TraceCache[ScanGradients, None]()


def scan(
    a: Any,
    b: Any,
    h0: Any = None,
    *,
    form: Form = "scalar",
    log_a: bool = False,
    reverse: bool = False,
    axis: int = 1,
) -> tuple[Any, Any]:
    """Return (y, final) of h[t] = a[t] h[t-1] + b[t] along `axis`, starting from `h0`; y[t] is h[t].

    a, b and y have one shape and dtype: float64, float32, float16, bfloat16, complex64 or complex128. h0 (zeros where None)
    and final have that shape without `axis`, and the dtype of the arithmetic: float32 for 16-bit a, else a's own. With `log_a`,
    a holds the logarithms of the coefficients; with `reverse`, t runs from the last to the first, and y stays at its own t.
    Arrays may have any strides; CUDA arrays run a compiled kernel on the caller's current stream, others native code, or NumPy.

    With another `form`, states are vectors of m values along the last axis of b, y, h0 and final, in float32 or float64, and a
    are maps. "full": a is [..., m, m] in addition to b's axes before m, of 2 to 4 values; states are carried in float64, the
    dtype of h0 and final. "rotation": m is 2, a holds (p, q) of [[p, -q], [q, p]] in the shape of b. "dual": the same of
    [[p, 0], [q, p]]. Without the axes up to time, a is constant: [C, m, m] or [C, 2] for b [B, T, C, m].
    Raises BadInput for arrays that do not fit.
    """
    if form != "scalar":
        return maps.scan(a, b, h0, form, scan, log_a=log_a, reverse=reverse, axis=axis)
    keyed = keyed_scan((a, b, h0), log_a=log_a, reverse=reverse, axis=axis)
    replay = SCANS.replay(keyed)
    if replay is not None:
        y, final = replay.result
        return y, final
    if keyed is not None and is_on_cpu(a):
        from minrnn_gen.raw_scan import host  # NumPy is imported only where a host array comes in

        if again := host.SCANS.replay(host.kept(keyed)):
            return again.result
    call = check_scan(a, b, h0, log_a=log_a, reverse=reverse, axis=axis)
    if call.a.device is None:
        from minrnn_gen.raw_scan import host

        return host.scan(call, keyed)
    from minrnn_gen.raw_scan import device

    recorder = device.recorder_for(call.recurrence, call.a, keyed)
    (written,), last = results_of(recorder.new_array, call.recurrence, 1)
    device.run_scan(call, written, last, recorder)
    finished = recorder.finish(ScanResult(written, last), None)
    SCANS.keep(finished.replay)
    y, final = finished.result
    return y, final


def scan_backward(
    a: Any,
    y: Any,
    dy: Any,
    h0: Any = None,
    dfinal: Any = None,
    *,
    form: Form = "scalar",
    log_a: bool = False,
    reverse: bool = False,
    axis: int = 1,
) -> tuple[Any, Any, Any]:
    """Return (da, db, dh0), the gradients of sum(dy y) + sum(dfinal final), from the y of `scan` with the same arguments.

    dy is like y, and dfinal (zeros where None) like final; da and db are like a, dh0 like final. With `log_a`, da is the
    gradient of log a. Complex gradients follow torch's convention: delta[t] = dy[t] + conj(a[t+1]) delta[t+1],
    db[t] = delta[t], da[t] = delta[t] conj(h[t-1]), dh0 = conj(a[0]) delta[0]. In 16-bit dtypes y, rounded, stands for h.
    With another `form`, that of the scan, delta[t] = dy[t] + A[t+1]' delta[t+1], and the gradient of a is in a's shape.
    Raises BadInput for arrays that do not fit. Source: Martin & Cundy, arXiv 1709.04057.
    """
    if form != "scalar":
        return maps.scan_backward(a, y, dy, h0, dfinal, form, scan_backward, log_a=log_a, reverse=reverse, axis=axis)
    keyed = keyed_scan((a, y, dy, h0, dfinal), log_a=log_a, reverse=reverse, axis=axis)
    replay = BACKWARDS.replay(keyed)
    if replay is not None:
        da, db, dh0 = replay.result
        return da, db, dh0
    if keyed is not None and is_on_cpu(a):
        from minrnn_gen.raw_scan import host

        if again := host.BACKWARDS.replay(host.kept(keyed)):
            return again.result
    call = check_scan_backward(a, y, dy, h0, dfinal, log_a=log_a, reverse=reverse, axis=axis)
    if call.a.device is None:
        from minrnn_gen.raw_scan import host

        return host.scan_backward(call, keyed)
    from minrnn_gen.raw_scan import device

    recorder = device.recorder_for(call.recurrence, call.a, keyed)
    (by_a, by_b), by_h0 = results_of(recorder.new_array, call.recurrence, 2)
    device.run_scan_backward(call, by_a, by_b, by_h0, recorder)
    finished = recorder.finish(ScanGradients(by_a, by_b, by_h0), None)
    BACKWARDS.keep(finished.replay)
    da, db, dh0 = finished.result
    return da, db, dh0
