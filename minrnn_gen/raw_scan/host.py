"""A raw scan on host arrays: native code where there is a compiler, else NumPy."""

from __future__ import annotations

from functools import partial

from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.config.environment import runs_native_code
from minrnn_gen.gpu import memory
from minrnn_gen.raw_scan import cpu, native
from minrnn_gen.raw_scan.arguments import BackwardCall, ScanCall
from minrnn_gen.raw_scan.results import ScanGradients, ScanResult, results_of
from minrnn_gen.run.cpu.trace import NativeRecorder, keyed_by_threads
from minrnn_gen.run.recording.replay import TraceCache

# Kept native runs by the key of their arrays, shared by all scans of this process.
SCANS = TraceCache[ScanResult, None]()
BACKWARDS = TraceCache[ScanGradients, None]()


def kept(keyed: KeyedArrays) -> KeyedArrays | None:
    """Return arrays with the key of their kept call; None where NumPy serves."""
    return keyed_by_threads(keyed) if runs_native_code() else None


def scan(call: ScanCall, keyed: KeyedArrays | None) -> ScanResult:
    """Return (y, final), contiguous."""
    kernel = native.kernel_of(call.recurrence, "forward")
    if kernel is None:
        (y,), final = results_of(partial(memory.new_array, call.a), call.recurrence, 1)
        cpu.run_scan(call, y, final)
        return ScanResult(y.owner, final.owner)
    recorder = NativeRecorder(Store(cache_folder()), call.a, keyed)
    (y,), final = results_of(recorder.new_array, call.recurrence, 1)
    native.run_scan(kernel, call, y, final, recorder)
    return recorder.run(SCANS, ScanResult(y, final)).result


def scan_backward(call: BackwardCall, keyed: KeyedArrays | None) -> ScanGradients:
    """Return (da, db, dh0), contiguous."""
    kernel = native.kernel_of(call.recurrence, "backward")
    if kernel is None:
        (da, db), dh0 = results_of(partial(memory.new_array, call.a), call.recurrence, 2)
        cpu.run_scan_backward(call, da, db, dh0)
        return ScanGradients(da.owner, db.owner, dh0.owner)
    recorder = NativeRecorder(Store(cache_folder()), call.a, keyed)
    (da, db), dh0 = results_of(recorder.new_array, call.recurrence, 2)
    native.run_scan_backward(kernel, call, da, db, dh0, recorder)
    return recorder.run(BACKWARDS, ScanGradients(da, db, dh0)).result
