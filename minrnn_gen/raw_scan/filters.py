"""Linear filters along rows, and their gradients: by kernels on GPUs, elsewhere by native code or NumPy.

y[t] = b[0] x[t] + ... + b[n] x[t-n] - a[1] y[t-1] - ... - a[n] y[t-n], divided by a[0], with scipy's initial state zi of the
transposed direct form II: zi[t] is added to y[t] in the first n steps, and zf is the contribution of all steps to the next n.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minrnn_gen.call.key import is_on_cpu, keyed
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import memory
from minrnn_gen.plan.scan.filter import ORDER_MOST
from minrnn_gen.raw_scan import filters_host
from minrnn_gen.raw_scan.arguments import inspected
from minrnn_gen.raw_scan.filter_arguments import ZERO_FIRST
from minrnn_gen.raw_scan.filter_results import PASSED, RESULTS, FilterPass, shape_of
from minrnn_gen.raw_scan.maps_host import kept
from minrnn_gen.run.recording.replay import Trace, TraceCache

# Kept runs by the key of their arrays, shared by all filters of this process.
_CALLS: dict[FilterPass, TraceCache[Any, None]] = {"filter": TraceCache(), "filter_backward": TraceCache()}


def run_filter(x: Any, b: Any, a: Any, zi: Any) -> tuple[Any, Any]:
    """Return (y, zf) for x [N, C, T], b and a [C, n + 1], n >= 1, and zi [N, C, n] or None for zeros, all but x in float64.

    Arrays are of any library. Raises BadInput on a GPU for orders without a kernel, and on the host where a[0] is 0; a GPU,
    which is not waited for, returns NaN instead.
    """
    on_host = _device_of(x, b) is None
    if on_host and not bool((a[:, :1] != 0).all()):
        raise BadInput(ZERO_FIRST)
    if 0 in x.shape:
        y, zf = _without_elements("filter", x, b)
        return y, zf if zi is None else zf + zi
    y, zf = _run("filter", (x, *_divided(b, a, on_host), zi), on_host)
    return y, zf


def run_filter_backward(x: Any, y: Any, b: Any, a: Any, dy: Any, dzf: Any) -> tuple[Any, Any, Any, Any]:
    """Return (dx, db, da, dzi), gradients of sum(dy y) + sum(dzf zf), from the y of `run_filter`; dzf None is zeros."""
    on_host = _device_of(x, b) is None
    if 0 in x.shape:
        dx, by_b, by_a, dzi = _without_elements("filter_backward", x, b)
        dzi = dzi if dzf is None else dzi + dzf
    else:
        dx, by_b, by_a, dzi = _run("filter_backward", (x, *_divided(b, a, on_host), y, dy, dzf), on_host)
    db, da, by_first = gradients_of_coefficients(by_b, by_a, b, a)
    da[:, 0] = by_first
    return dx, db, da, dzi


def gradients_of_coefficients(by_b: Any, by_a: Any, b: Any, a: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of b, of a (0 for a[0]) and of a[0], arrays of any library.

    `by_b` and `by_a` [N, C, tiles, n + 1]: the gradients of b / a[0] and a / a[0] for each row and tile.
    """
    first = a[:, :1]
    db, da = by_b.sum((0, 2)) / first, by_a.sum((0, 2)) / first
    return db, da, -((db * b).sum(1) + (da * a).sum(1)) / a[:, 0]


def _divided(b: Any, a: Any, on_host: bool) -> tuple[Any, Any]:
    """Return the coefficients for a pass: divided by a[0] on the host; a GPU's kernels divide themselves."""
    return (b / a[:, :1], a / a[:, :1]) if on_host else (b, a)


def recorded(kernel_pass: FilterPass, passed: Sequence[Any]) -> Trace[Any, None] | None:
    """Return the trace of a pass on arrays of a GPU; None where it cannot be replayed.

    `passed`: the arrays of `PASSED`, in their slots. Raises BadInput for orders without a kernel.
    """
    x, b, *_ = passed
    _run(kernel_pass, passed, on_host=_device_of(x, b) is None)
    return _CALLS[kernel_pass].find(keyed(kernel_pass, [*passed]))


def _run(kernel_pass: FilterPass, passed: Sequence[Any], on_host: bool) -> Any:
    """Return the results of a pass on arrays with elements."""
    calls, x = _CALLS[kernel_pass], passed[0]
    own = None if on_host and not is_on_cpu(x) else keyed(kernel_pass, [*passed])
    if again := calls.replay(kept(own) if on_host else own):
        return again.result
    named = enumerate(zip(PASSED[kernel_pass], passed, strict=True))
    arrays = {name: None if array is None else inspected(array, name).with_slot(slot) for slot, (name, array) in named}
    if on_host:
        return filters_host.run(kernel_pass, calls, arrays, own)
    from minrnn_gen.raw_scan import filters_device

    recorder = filters_device.recorder_for(arrays, own)
    finished = recorder.finish(filters_device.run(kernel_pass, arrays, recorder), None)
    calls.keep(finished.replay)
    return finished.result


def _without_elements(kernel_pass: FilterPass, x: Any, b: Any) -> Any:
    """Return zeros of the shapes of the results of a pass."""
    like, order = inspected(x, "x"), b.shape[1] - 1
    return RESULTS[kernel_pass].mapped(lambda kind: memory.new_array(like, *shape_of(kind, like, order), fill=0).owner)


def _device_of(x: Any, b: Any) -> int | None:
    """Return the device of x, None for host memory; raises BadInput where it has no kernel of the order of b."""
    device, order = inspected(x, "x").device, b.shape[1] - 1
    if device is not None and order > ORDER_MOST:
        raise BadInput(
            f"a and b are of order {order}, but x is on CUDA device {device}, where filters are of order {ORDER_MOST} at most; "
            f"split them into second-order sections for sosfilt, or move x to host memory"
        )
    return device
