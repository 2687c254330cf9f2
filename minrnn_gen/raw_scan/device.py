"""A raw scan on CUDA arrays: the compiled scan kernels, launched on the caller's current stream."""

from __future__ import annotations

from dataclasses import replace

from minrnn_gen.call.address import PointerDifference
from minrnn_gen.call.arguments import Call, Gradients, IncomingGradient, Outputs
from minrnn_gen.call.array import Array
from minrnn_gen.call.interface import X_AXES
from minrnn_gen.call.key import KeyedArrays
from minrnn_gen.call.sequences import Sequences
from minrnn_gen.plan.kernel_plan import Specialization
from minrnn_gen.plan.problem import KernelPass, Sizes
from minrnn_gen.raw_scan.arguments import BackwardCall, Recurrence, ScanCall
from minrnn_gen.raw_scan.arrangement import Arrangement, RawLayout, arrangement_of
from minrnn_gen.raw_scan.kernels import ARRAY_NAMES, raw_kernels
from minrnn_gen.run.backend import Launchable
from minrnn_gen.run.cuda import CudaRecorder
from minrnn_gen.run.launch import alignment_of_call
from minrnn_gen.run.scan.launch import backward_launch_of, forward_launch_of, workspace_bytes_of

# The hidden size and the layout of kernels where there are no sequences.
_NOTHING_LAUNCHED: tuple[int, RawLayout] = (1, "BTD")


def recorder_for(recurrence: Recurrence, like: Array, keyed: KeyedArrays | None) -> CudaRecorder:
    """Begin a run of the recurrence's kernels on the device of `like`."""
    assert like.device is not None
    size, layout = _NOTHING_LAUNCHED
    if recurrence.sequences:
        arrangement = arrangement_of(recurrence)
        size, layout = arrangement.hidden_size, arrangement.layout
    return CudaRecorder(like, keyed, raw_kernels(recurrence.precision.name, size, layout, recurrence.log_a, like.device))


def run_scan(call: ScanCall, y: Array, final: Array, recorder: CudaRecorder) -> None:
    """Write `y`, shaped like a, and `final`, of the state's shape and dtype, both contiguous; `recorder` runs the kernels."""
    recurrence = call.recurrence
    if not recurrence.sequences:
        return
    arrangement = arrangement_of(recurrence)
    a, b = arrangement.rows(recurrence, recorder.contiguous, call.a, call.b)
    x = _gates(arrangement, a, b)
    (rows,) = arrangement.rows(recurrence, recorder.contiguous, y)
    kernel = _kernel(recorder, arrangement, recurrence, "forward", x, rows)
    states = zip(*(arrangement.states(recorder.contiguous, array) for array in (call.h0, final)), strict=True)
    for index, (initial, last) in enumerate(states):
        outputs = Outputs(rows.selected(0, index), (), _present(last))
        part = _call(arrangement, recurrence, x.selected(0, index), initial)
        workspace = recorder.workspace(workspace_bytes_of(kernel.plan, part))
        kernel.launch(forward_launch_of(kernel.plan, ARRAY_NAMES, part, outputs, workspace))


def run_scan_backward(call: BackwardCall, da: Array, db: Array, dh0: Array, recorder: CudaRecorder) -> None:
    """Write `da` and `db`, shaped like a, and `dh0`, of the state's shape and dtype, contiguous; by `recorder`."""
    recurrence = call.recurrence
    if not recurrence.sequences:
        return
    arrangement = arrangement_of(recurrence)
    (a,) = arrangement.rows(recurrence, recorder.contiguous, call.a)
    x = _gates(arrangement, a, a)  # the gradients do not need b
    y, dy = arrangement.rows(recurrence, recorder.contiguous, call.y, call.dy)
    dx = _gates(arrangement, *arrangement.rows(recurrence, recorder.contiguous, da, db))
    kernel = _kernel(recorder, arrangement, recurrence, "backward", x, y, dy, dx)
    arrays = (call.h0, call.dfinal, dh0)
    states = zip(*(arrangement.states(recorder.contiguous, array) for array in arrays), strict=True)
    for index, (initial, dfinal, dinitial) in enumerate(states):
        incoming = IncomingGradient(dy.selected(0, index), (dfinal,))
        gradients = Gradients(dx.selected(0, index), _present(dinitial), None)
        part = _call(arrangement, recurrence, x.selected(0, index), initial)
        workspace = recorder.workspace(workspace_bytes_of(kernel.plan, part))
        states_read = (y.selected(0, index),)
        kernel.launch(backward_launch_of(kernel.plan, ARRAY_NAMES, part, states_read, incoming, gradients, workspace))


def _kernel(
    recorder: CudaRecorder, arrangement: Arrangement, recurrence: Recurrence, kernel_pass: KernelPass, x: Array, *rows: Array
) -> Launchable:
    specialization = Specialization(alignment_of_call(x, *rows), recurrence.reverse)
    return recorder.load(recorder.choose(kernel_pass, specialization, Sizes(arrangement.batch, arrangement.time)))


def _call(arrangement: Arrangement, recurrence: Recurrence, x: Array, initial: Array | None) -> Call:
    axes = X_AXES[arrangement.layout]
    batch, time = arrangement.batch, arrangement.time
    return Call(x, axes, batch, time, None, None, (), (initial,), Sequences(batch), reverse=recurrence.reverse)


def _gates(arrangement: Arrangement, first: Array, second: Array) -> Array:
    """View two arrays of equal strides as one array with an axis of gates, whose stride is the distance between the two.

    Both start at multiples of their elements' size, as `inspect_array` sees to.
    """
    axis = 1 + X_AXES[arrangement.layout].index("g")
    stride = PointerDifference(first.pointer, second.pointer, first.itemsize)
    return replace(
        first,
        shape=(*first.shape[:axis], 2, *first.shape[axis:]),
        strides=(*first.strides[:axis], stride, *first.strides[axis:]),
        owner=(first.owner, second.owner),
    )


def _present(array: Array | None) -> tuple[Array, ...]:
    return () if array is None else (array,)
