"""Linear filters along rows on CUDA arrays: compiled kernels, launched on the caller's current stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from minrnn_gen.call.array import Array
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.codegen.parameter import pack
from minrnn_gen.codegen.signature import signature
from minrnn_gen.codegen.signature_groups import ArrayNames
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import Sizes
from minrnn_gen.precision import PrecisionName, precision_storing
from minrnn_gen.raw_scan.filter_kernels import filter_kernels
from minrnn_gen.raw_scan.filter_results import RESULTS, FilterPass, shape_of
from minrnn_gen.run.backend import Recorder
from minrnn_gen.run.cuda import CudaRecorder
from minrnn_gen.run.launch import Launch, alignment_of_call

_NAMES = ArrayNames((), ())
# The results of a pass, by their names in its signature.
_NAMED: Mapping[FilterPass, tuple[str, ...]] = {"filter": ("y", "zf"), "filter_backward": ("dx", "db", "da", "dzi")}
_SIGNALS = ("x", "y", "dy")
_CARRIED_BYTES = 8


def recorder_for(arrays: Mapping[str, Array | None], keyed: KeyedArrays | None) -> CudaRecorder:
    """Begin a run of the kernels of the arrays' order on the device of x."""
    x, b = arrays["x"], arrays["b"]
    assert x is not None and b is not None and x.device is not None
    precision = precision_storing(x.dtype)
    assert precision is not None
    return CudaRecorder(x, keyed, filter_kernels(cast(PrecisionName, precision.name), b.shape[1] - 1, x.device))


def run(kernel_pass: FilterPass, arrays: Mapping[str, Array | None], recorder: Recorder) -> Any:
    """Launch a pass by `recorder`; return its results, each of its kind."""
    x, b = arrays["x"], arrays["b"]
    assert x is not None and b is not None
    (count, channels, time), order = x.shape, b.shape[1] - 1
    rows = count * channels
    passed = {name: None if array is None else recorder.contiguous(array) for name, array in arrays.items()}
    signals = (array for name, array in passed.items() if array is not None and name in _SIGNALS)
    # Results are aligned for copies of any width.
    specialization = Specialization(alignment_of_call(*signals))
    kernel = recorder.load(recorder.choose(kernel_pass, specialization, Sizes(rows, time)))
    plan = kernel.plan
    tiles = -(-time // plan.launch.tile_steps)
    written = RESULTS[kernel_pass].mapped(lambda kind: recorder.new_array(*shape_of(kind, x, order, tiles)))
    # A state for each tile, and one for each group of tiles.
    states = rows * (tiles + tiles // plan.launch.group_tiles)
    workspace = recorder.workspace(plan.workspace_head_bytes + states * order * _CARRIED_BYTES)
    assert workspace is not None
    values = {name: 0 if array is None else array.address for name, array in passed.items()}
    values |= {name: array.address for name, array in zip(_NAMED[kernel_pass], written, strict=True)}
    values |= {"workspace_bytes": workspace.address, "rows": rows, "time": time, "channels": channels}
    blocks = min(kernel.resident_blocks(), rows * tiles)
    kernel.launch(Launch(blocks, pack(signature(plan, _NAMES), values)))
    return written
