"""A raw scan on host arrays by native code: the kernels of a cell of two gates, on arrays of any shape."""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from minrnn_gen.build.cpu_kernel import CpuKernel, cpu_kernel, why_no_native_code
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.codegen.cpu_source import CpuPass
from minrnn_gen.config.environment import thread_count
from minrnn_gen.errors import CompileFailed, ToolchainMissing
from minrnn_gen.raw_scan.arguments import BackwardCall, Recurrence, ScanCall
from minrnn_gen.raw_scan.arrangement import merged_stride
from minrnn_gen.raw_scan.kernels import KERNELS_HELD, RawPrecision, raw_spec
from minrnn_gen.run.cpu.native import scan_plan
from minrnn_gen.run.cpu.threads import pointwise_schedule
from minrnn_gen.run.cpu.trace import NativeRecorder

LOG = logging.getLogger("minrnn_gen")


class _Rows(NamedTuple):
    """Arrays of a recurrence's shape as [rows, time, channels], with these strides.

    Axes before time are the rows, axes after it the channels; without axes after it, those before it are the channels. Kernels
    treat a complex number as two adjacent channels, the `parts`.
    """

    rows: int
    channels: int
    row: int
    time: int
    channel: int
    parts: int

    def strides(self, name: str) -> dict[str, int]:
        """Return the strides by the names of a kernel."""
        return {f"{name}_row": self.row * self.parts, f"{name}_time": self.time * self.parts, f"{name}_channel": self.channel}


def run_scan(kernel: CpuKernel, call: ScanCall, y: Array, final: Array, recorder: NativeRecorder) -> None:
    """Write `y`, shaped like a, and `final`, of the state's shape and dtype, both contiguous."""
    recurrence = call.recurrence
    rows, (a, b) = _rows_of(recorder, recurrence, call.a, call.b)
    values = _sizes(recurrence, rows) | rows.strides("x") | _contiguous(recurrence).strides("y")
    values |= {"W_a": a.address, "W_b": b.address, "y": y.address, "final_h": final.address}
    recorder.run_kernel(kernel, values | {"initial_h": _state(recorder, call.h0)})


def run_scan_backward(
    kernel: CpuKernel, call: BackwardCall, da: Array, db: Array, dh0: Array, recorder: NativeRecorder
) -> None:
    """Write `da` and `db`, shaped like a, and `dh0`, of the state's shape and dtype, all contiguous."""
    recurrence = call.recurrence
    rows, (a,) = _rows_of(recorder, recurrence, call.a)
    result = _contiguous(recurrence)
    values = _sizes(recurrence, rows) | rows.strides("x") | result.strides("y") | result.strides("dx")
    values |= {"W_a": a.address, "dW_a": da.address, "dW_b": db.address, "dinitial_h": dh0.address}
    values |= {"state_h": recorder.contiguous(call.y).address, "dy": recorder.contiguous(call.dy).address}
    values |= {"initial_h": _state(recorder, call.h0), "dfinal_h": _state(recorder, call.dfinal)}
    recorder.run_kernel(kernel, values)


def kernel_of(recurrence: Recurrence, kernel_pass: CpuPass) -> CpuKernel | None:
    """Return the kernel of a pass, compiled on first use; None where NumPy serves.

    NumPy serves arrays without elements, and all arrays where the compiler is missing or refuses the text.
    """
    precision = recurrence.precision
    if not math.prod(recurrence.shape) or why_no_native_code():
        return None
    return _kernel(precision.name, recurrence.log_a, kernel_pass, cache_folder())


@lru_cache(maxsize=KERNELS_HELD)
def _kernel(precision: RawPrecision, log_a: bool, kernel_pass: CpuPass, folder: Path) -> CpuKernel | None:
    try:
        return cpu_kernel(scan_plan(raw_spec(precision, log_a), kernel_pass), Store(folder))
    except (CompileFailed, ToolchainMissing) as failed:
        LOG.warning("%s; scans of host arrays run in NumPy", failed)
        return None


def _rows_of(recorder: NativeRecorder, recurrence: Recurrence, *arrays: Array) -> tuple[_Rows, tuple[Array, ...]]:
    """View arrays of the recurrence's shape alike; copies them where their strides differ or do not form such a view."""
    views = {_viewed(recurrence, array.strides) for array in arrays}
    (view, *others) = views
    if view is not None and not others:
        return view, arrays
    return _contiguous(recurrence), tuple(map(recorder.contiguous, arrays))


def _contiguous(recurrence: Recurrence) -> _Rows:
    view = _viewed(recurrence, contiguous_strides(recurrence.shape))
    assert view is not None
    return view


def _viewed(recurrence: Recurrence, strides: tuple[int, ...]) -> _Rows | None:
    """Return how arrays with these strides are viewed; None where the axes before time, or those after it, do not merge."""
    shape, axis = recurrence.shape, recurrence.axis
    before, behind = merged_stride(shape[:axis], strides[:axis]), merged_stride(shape[axis + 1 :], strides[axis + 1 :])
    if before is None or behind is None:
        return None
    rows, channels, parts = math.prod(shape[:axis]), math.prod(shape[axis + 1 :]), recurrence.precision.parts
    if channels == 1:
        return _Rows(1, rows, 0, strides[axis], before, parts)
    return _Rows(rows, channels, before, strides[axis], behind, parts)


def _sizes(recurrence: Recurrence, rows: _Rows) -> dict[str, Any]:
    time, channels = recurrence.shape[recurrence.axis], rows.channels * rows.parts
    sizes = {"rows": rows.rows, "time": time, "steps": time, "hidden": channels, "heads": 1, "head_dim": channels}
    return sizes | {"reverse": recurrence.reverse} | pointwise_schedule(rows.rows, channels, time, thread_count())._asdict()


def _state(recorder: NativeRecorder, array: Array | None) -> Any:
    return 0 if array is None else recorder.contiguous(array).address
