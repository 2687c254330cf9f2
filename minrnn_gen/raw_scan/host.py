"""A raw scan on host arrays: native code where there is a compiler, else NumPy."""

from __future__ import annotations

from typing import Any

from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.config.environment import runs_native_code
from minrnn_gen.raw_scan import cpu, native
from minrnn_gen.raw_scan.arguments import BackwardCall, ScanCall
from minrnn_gen.raw_scan.results import ScanGradients, ScanResult, results_of
from minrnn_gen.run.cpu.trace import CpuRecorder, CpuTraceCache

# What native code did before on arrays of a key, by every scan of this process.
SCANS = CpuTraceCache[ScanResult]()
BACKWARDS = CpuTraceCache[ScanGradients]()


def scan(call: ScanCall, keyed: KeyedArrays | None) -> tuple[Any, Any]:
    """Return (y, final), contiguous."""
    recorder = CpuRecorder(Store(cache_folder()), call.a, keyed)
    (y,), final = results_of(recorder, call.recurrence, 1)
    if kernel := native.kernel_of(call.recurrence, "forward"):
        native.run_scan(kernel, call, y, final, recorder)
        SCANS.keep(keyed, runs_native_code(), recorder.finish(ScanResult(y, final)))
    else:
        cpu.run_scan(call, y, final)
    return y.owner, final.owner


def scan_backward(call: BackwardCall, keyed: KeyedArrays | None) -> tuple[Any, Any, Any]:
    """Return (da, db, dh0), contiguous."""
    recorder = CpuRecorder(Store(cache_folder()), call.a, keyed)
    (da, db), dh0 = results_of(recorder, call.recurrence, 2)
    if kernel := native.kernel_of(call.recurrence, "backward"):
        native.run_scan_backward(kernel, call, da, db, dh0, recorder)
        BACKWARDS.keep(keyed, runs_native_code(), recorder.finish(ScanGradients(da, db, dh0)))
    else:
        cpu.run_scan_backward(call, da, db, dh0)
    return da.owner, db.owner, dh0.owner
