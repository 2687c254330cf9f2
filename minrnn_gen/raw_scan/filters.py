"""Linear filters along rows in host memory, and their gradients: native code where there is a compiler, else NumPy.

y[t] = b[0] x[t] + ... + b[n] x[t-n] - a[1] y[t-1] - ... - a[n] y[t-n], divided by a[0], with scipy's initial state zi of the
transposed direct form II: zi[t] is added to y[t] in the first n steps, and zf is what the steps so far add to the next n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.call.key import is_on_cpu, keyed
from minrnn_gen.codegen.cpu_maps import filter_plan
from minrnn_gen.codegen.cpu_source import CpuPass
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import memory
from minrnn_gen.raw_scan import filters_cpu
from minrnn_gen.raw_scan.arguments import inspected
from minrnn_gen.raw_scan.map_arguments import CARRIED
from minrnn_gen.raw_scan.maps_host import kept, native_kernel
from minrnn_gen.run.cpu.threads import pointwise_schedule
from minrnn_gen.run.cpu.trace import NativeRecorder
from minrnn_gen.run.recording.replay import TraceCache


class Filtered(NamedTuple):
    """What a filter gives."""

    y: Any
    zf: Any

    def mapped(self, change: Callable[[Any], Any]) -> Filtered:
        """Return the results with every entry changed."""
        return Filtered(change(self.y), change(self.zf))


class FilterGradients(NamedTuple):
    """What a filter's backward gives; those of coefficients are of each row."""

    x: Any
    b: Any
    a: Any
    zi: Any

    def mapped(self, change: Callable[[Any], Any]) -> FilterGradients:
        """Return the results with every entry changed."""
        return FilterGradients(change(self.x), change(self.b), change(self.a), change(self.zi))


_FILTERS = TraceCache[Filtered, None]()
_BACKWARDS = TraceCache[FilterGradients, None]()


def run_filter(x: Any, b: Any, a: Any, zi: Any) -> tuple[Any, Any]:
    """Return (y, zf) for x [N, C, T], b and a [C, n + 1], n >= 1, and zi [N, C, n] or None for zeros, all but x in float64.

    Arrays are of any library, in host memory. Raises BadInput where they are elsewhere, and where a[0] is 0.
    """
    _refuse_on_gpu(x)
    first = a[:, :1]
    if not bool((first != 0).all()):
        raise BadInput("a[0] is 0, by which the coefficients of a filter are divided; leave out a's leading zeros")
    (count, channels, _), order = x.shape, b.shape[1] - 1
    results = Filtered(None, (count, channels, order))
    y, zf = _run("forward", _FILTERS, {"x": x, "b": b / first, "a": a / first, "zi": zi}, order, results)
    return y, zf


def run_filter_backward(x: Any, y: Any, b: Any, a: Any, dy: Any, dzf: Any) -> tuple[Any, Any, Any, Any]:
    """Return (dx, db, da, dzi), gradients of sum(dy y) + sum(dzf zf), given the y of `run_filter`; dzf None is zeros."""
    _refuse_on_gpu(x)
    first = a[:, :1]
    (count, channels, _), order = x.shape, b.shape[1] - 1
    arrays = {"x": x, "b": b / first, "a": a / first, "y": y, "dy": dy, "dzf": dzf}
    of_coefficients = (count, channels, order + 1)
    results = FilterGradients(None, of_coefficients, of_coefficients, (count, channels, order))
    dx, by_b, by_a, dzi = _run("backward", _BACKWARDS, arrays, order, results)
    # Those of b / a[0] and a / a[0], summed over rows, to those of b and a.
    db, da = by_b.sum(0) / first, by_a.sum(0) / first
    da[:, 0] = -((db * b).sum(1) + (da * a).sum(1)) / a[:, 0]
    return dx, db, da, dzi


def _run(kernel_pass: CpuPass, kept_calls: TraceCache[Any, None], passed: dict[str, Any], order: int, results: Any) -> Any:
    """Return the results of a pass; their shapes are given, and None for an array like x."""
    own = keyed(kernel_pass, [*passed.values()]) if is_on_cpu(passed["x"]) else None
    if again := kept_calls.replay(kept(own)):
        return again.result
    described = ((name, None if array is None else inspected(array, name)) for name, array in passed.items())
    arrays = {name: array and array.with_slot(slot) for slot, (name, array) in enumerate(described)}
    x = arrays["x"]
    assert x is not None
    kernel = native_kernel(filter_plan(kernel_pass, x.dtype, order), math.prod(x.shape))
    if kernel is None:
        written = results.mapped(lambda shape: memory.new_array(x, shape or x.shape, CARRIED if shape else x.dtype))
        filters_cpu.PASSES[kernel_pass](arrays, *written)
        return written.mapped(lambda array: array.owner)
    recorder = NativeRecorder(Store(cache_folder()), x, own)
    written = results.mapped(lambda shape: recorder.new_array(shape or x.shape, CARRIED if shape else x.dtype))
    names = ("filtered", "zf") if kernel_pass == "forward" else ("dx", "db", "da", "dzi")
    values = {name: 0 if array is None else recorder.contiguous(array).address for name, array in arrays.items()}
    values |= {name: array.address for name, array in zip(names, written, strict=True)}
    rows, time = x.shape[0] * x.shape[1], x.shape[2]
    values |= {"rows": rows, "time": time, "steps": time, "hidden": 1, "channels": x.shape[1]}
    recorder.run_kernel(kernel, values | pointwise_schedule(rows, 1, time)._asdict())
    return recorder.run(kept_calls, written).result


def _refuse_on_gpu(x: Any) -> None:
    device = inspected(x, "x").device
    if device is not None:
        raise BadInput(f"x is on CUDA device {device}, where there is no kernel of filters; move it to host memory")
