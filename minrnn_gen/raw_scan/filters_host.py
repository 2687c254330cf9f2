"""Linear filters along rows in host memory: native code where there is a compiler, else NumPy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.codegen.cpu_maps import filter_plan
from minrnn_gen.config.environment import thread_count
from minrnn_gen.gpu import memory
from minrnn_gen.raw_scan import filters_cpu
from minrnn_gen.raw_scan.filter_results import RESULTS, FilterPass, shape_of
from minrnn_gen.raw_scan.maps_host import native_kernel
from minrnn_gen.run.cpu.threads import pointwise_schedule
from minrnn_gen.run.cpu.trace import NativeRecorder
from minrnn_gen.run.recording.replay import TraceCache

# The results of a pass, by their names in native code.
_NAMES: Mapping[FilterPass, tuple[str, ...]] = {"filter": ("filtered", "zf"), "filter_backward": ("dx", "db", "da", "dzi")}


def run(
    kernel_pass: FilterPass,
    calls: TraceCache[Any, None],
    arrays: Mapping[str, Array | None],
    keyed: KeyedArrays | None,
) -> Any:
    """Return the results of a pass, each of its kind; the call is kept in `calls`."""
    x, b = arrays["x"], arrays["b"]
    assert x is not None and b is not None
    results, order = RESULTS[kernel_pass], b.shape[1] - 1
    backward = kernel_pass == "filter_backward"
    kernel = native_kernel(filter_plan("backward" if backward else "forward", x.dtype, order), math.prod(x.shape))
    if kernel is None:
        written = results.mapped(lambda kind: memory.new_array(x, *shape_of(kind, x, order)))
        filters_cpu.PASSES[kernel_pass](arrays, *written)
        return written.mapped(lambda array: array.owner)
    recorder = NativeRecorder(Store(cache_folder()), x, keyed)
    written = results.mapped(lambda kind: recorder.new_array(*shape_of(kind, x, order)))
    values = {name: 0 if array is None else recorder.contiguous(array).address for name, array in arrays.items()}
    values |= {name: array.address for name, array in zip(_NAMES[kernel_pass], written, strict=True)}
    rows, time = x.shape[0] * x.shape[1], x.shape[2]
    values |= {"rows": rows, "time": time, "steps": time, "hidden": 1, "channels": x.shape[1]}
    recorder.run_kernel(kernel, values | pointwise_schedule(rows, 1, time, thread_count())._asdict())
    return recorder.run(calls, written).result
