"""Scans of full maps on host arrays: native code where there is a compiler, else NumPy."""

from __future__ import annotations

import logging
import math
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from minrnn_gen.build.cpu_kernel import CpuKernel, cpu_kernel, why_no_native_code
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.codegen.cpu_maps import WidePlan, maps_plan
from minrnn_gen.codegen.cpu_source import CpuPass
from minrnn_gen.config.environment import runs_native_code, thread_count
from minrnn_gen.errors import CompileFailed, ToolchainMissing
from minrnn_gen.gpu import memory
from minrnn_gen.raw_scan import maps_cpu
from minrnn_gen.raw_scan.kernels import KERNELS_HELD
from minrnn_gen.raw_scan.map_arguments import CARRIED, MapBackwardCall, MapCall, MapRecurrence
from minrnn_gen.raw_scan.results import ScanGradients, ScanResult
from minrnn_gen.run.cpu.threads import pointwise_schedule
from minrnn_gen.run.cpu.trace import NativeRecorder, keyed_by_threads
from minrnn_gen.run.recording.replay import TraceCache

LOG = logging.getLogger("minrnn_gen")
# Kept native runs by the key of their arrays, shared by all scans of this process.
SCANS = TraceCache[ScanResult, None]()
BACKWARDS = TraceCache[ScanGradients, None]()


def kept(keyed: KeyedArrays | None) -> KeyedArrays | None:
    """Return arrays with the key of their kept call; None where NumPy serves."""
    return keyed_by_threads(keyed) if keyed is not None and runs_native_code() else None


def scan(call: MapCall, keyed: KeyedArrays | None) -> ScanResult:
    """Return (y, final), contiguous."""
    recurrence = call.recurrence
    kernel = _kernel_of(recurrence, "forward")
    if kernel is None:
        new = partial(memory.new_array, call.b)
        y, final = new(recurrence.shape, recurrence.dtype), new(recurrence.state_shape, CARRIED)
        maps_cpu.run_scan(call, y, final)
        return ScanResult(y.owner, final.owner)
    recorder = NativeRecorder(Store(cache_folder()), call.b, keyed)
    y, final = recorder.new_array(recurrence.shape, recurrence.dtype), recorder.new_array(recurrence.state_shape, CARRIED)
    values = _sizes(recurrence) | {"h": y.address, "final": final.address}
    recorder.run_kernel(kernel, values | _addresses(recorder, A=call.a, b=call.b, h0=call.h0))
    return recorder.run(SCANS, ScanResult(y, final)).result


def scan_backward(call: MapBackwardCall, keyed: KeyedArrays | None) -> ScanGradients:
    """Return (da, db, dh0), contiguous; da of constant maps is in double precision, for each row: [rows, ..., m, m]."""
    recurrence = call.recurrence
    kernel = _kernel_of(recurrence, "backward")
    rows = (recurrence.rows,) if recurrence.is_constant else ()
    of_a = ((*rows, *recurrence.map_shape), CARRIED if recurrence.is_constant else recurrence.dtype)
    if kernel is None:
        new = partial(memory.new_array, call.y)
        da, db, dh0 = new(*of_a), new(recurrence.shape, recurrence.dtype), new(recurrence.state_shape, CARRIED)
        maps_cpu.run_scan_backward(call, da, db, dh0)
        return ScanGradients(da.owner, db.owner, dh0.owner)
    recorder = NativeRecorder(Store(cache_folder()), call.y, keyed)
    da, db = recorder.new_array(*of_a), recorder.new_array(recurrence.shape, recurrence.dtype)
    dh0 = recorder.new_array(recurrence.state_shape, CARRIED)
    values = _sizes(recurrence) | {"dA": da.address, "db": db.address, "dh0": dh0.address}
    arrays = _addresses(recorder, A=call.a, y=call.y, dy=call.dy, h0=call.h0, dfinal=call.dfinal)
    recorder.run_kernel(kernel, values | arrays)
    return recorder.run(BACKWARDS, ScanGradients(da, db, dh0)).result


def native_kernel(plan: WidePlan, elements: int) -> CpuKernel | None:
    """Return a kernel, compiled on first use; None where NumPy serves.

    NumPy serves arrays without elements, and all arrays where the compiler is missing or refuses the text.
    """
    if not elements or why_no_native_code():
        return None
    return _compiled(plan, cache_folder())


@lru_cache(maxsize=KERNELS_HELD)
def _compiled(plan: WidePlan, folder: Path) -> CpuKernel | None:
    try:
        return cpu_kernel(plan, Store(folder))
    except (CompileFailed, ToolchainMissing) as failed:
        LOG.warning("%s; scans of maps and filters of host arrays run in NumPy", failed)
        return None


def _kernel_of(recurrence: MapRecurrence, kernel_pass: CpuPass) -> CpuKernel | None:
    plan = maps_plan(kernel_pass, recurrence.dtype, recurrence.size, recurrence.is_constant)
    return native_kernel(plan, math.prod(recurrence.shape))


def _sizes(recurrence: MapRecurrence) -> dict[str, Any]:
    rows, time, channels = recurrence.rows, recurrence.time, recurrence.channels
    sizes = {"rows": rows, "time": time, "steps": time, "hidden": channels, "reverse": recurrence.reverse}
    return sizes | pointwise_schedule(rows, channels, time, thread_count())._asdict()


def _addresses(recorder: NativeRecorder, **arrays: Array | None) -> dict[str, Any]:
    return {name: 0 if array is None else recorder.contiguous(array).address for name, array in arrays.items()}
