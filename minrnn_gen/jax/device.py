"""Requests executed on a GPU: a trace of the kernels' launches, replayed in the buffers and on the stream that XLA gives.

A call is recorded once, on arrays of its shapes full of zeros. Its launches, products and fills are then replayed at other
addresses. Their allocations other than the results lie in a workspace, one more result of XLA's custom call. So a replay
allocates nothing and reads nothing back, and XLA may capture it into a command buffer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.key import ALIGNMENT_BYTES, KeyedArrays
from minrnn_gen.call.pool import PoolArguments
from minrnn_gen.call.results import BackwardResult
from minrnn_gen.call.slots import CU_SEQLENS, LENGTHS
from minrnn_gen.errors import BadInput, ToolchainMissing
from minrnn_gen.gpu import cublas
from minrnn_gen.gpu import device as gpu_device
from minrnn_gen.gpu.graph import padded
from minrnn_gen.gpu.stream import external_stream
from minrnn_gen.jax.c_handler import Layout, c_handler
from minrnn_gen.jax.host import by_slot
from minrnn_gen.jax.request import CallSite, Request, Shaped
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.raw_scan import filters
from minrnn_gen.raw_scan.arguments import keyed_scan
from minrnn_gen.raw_scan.filter_results import FilterPass
from minrnn_gen.raw_scan.scan import BACKWARDS, SCANS, scan, scan_backward
from minrnn_gen.run.recording.operations import Program
from minrnn_gen.run.recording.replay import Trace


class OperandCast(NamedTuple):
    """A further operand: the operand at an index, in another dtype."""

    operand: int
    dtype: str


@dataclass(frozen=True, slots=True)
class DeviceCall:
    """A call on one GPU. Operands, followed by their `casts`, and results have slots of a trace with this many `addresses`.

    `results` are the trace's, named by `backward` in a backward; `scratch`: slots and their offsets in the workspace.
    """

    device: int
    program: Program
    addresses: int
    operand_slots: tuple[int, ...]
    casts: tuple[OperandCast, ...]
    results: tuple[Shaped, ...]
    result_slots: tuple[int, ...]
    scratch: tuple[tuple[int, int], ...]
    workspace_bytes: int
    backward: BackwardResult | None

    @property
    def layout(self) -> Layout:
        """The layout of its buffers."""
        slots = self.operand_slots, self.result_slots
        return Layout(self.addresses, *slots, self.scratch, self.workspace_bytes, ALIGNMENT_BYTES)

    def publish(self, digest: int) -> None:
        """Let C run the call from now on, where C can run all of it."""
        handler = c_handler()
        if handler is None or self.program.in_c is None:
            return
        with gpu_device.on_device(self.device):
            handle = cublas.new_handle() if self.program.multiplies else 0
        handler.publish(digest, self.device, self.layout, self.program.in_c, handle)

    def run(self, operands: Sequence[int], results: Sequence[int], workspace_bytes: int, stream: int) -> None:
        """Enqueue the call on a stream, with the addresses of its operands and results; the workspace is the last of them."""
        if workspace_bytes < self.workspace_bytes:
            raise BadInput(
                f"a program compiled elsewhere has a workspace of {workspace_bytes} bytes, but this GPU's kernels need "
                f"{self.workspace_bytes}; compile it here"
            )
        addresses = [0] * self.addresses
        for slot, address in zip(self.operand_slots, operands, strict=True):
            addresses[slot] = address
        for slot, address in zip(self.result_slots, results, strict=False):
            addresses[slot] = address
        if any(address % ALIGNMENT_BYTES for address in addresses):
            raise BadInput(f"XLA has an array that starts at no multiple of {ALIGNMENT_BYTES} bytes; copy it")
        for slot, offset_bytes in self.scratch:
            addresses[slot] = results[-1] + offset_bytes
        with gpu_device.on_device(self.device), external_stream(stream):
            self.program.run(addresses)


def current_device_of(address: int) -> int:
    """Return the device whose memory an address is in; without one, the current device."""
    runtime = gpu_device.cupy_module().cuda.runtime
    return int(runtime.pointerGetAttributes(address).device if address else runtime.getDevice())


def device_call(site: CallSite, device: int) -> DeviceCall:
    """Record a call on a device; raises ToolchainMissing where it cannot be replayed."""
    cupy = gpu_device.cupy_module()
    pool = cupy.cuda.MemoryPool()
    with gpu_device.on_device(device), cupy.cuda.using_allocator(pool.malloc):
        recording = _recorded(site, [cupy.zeros(operand.shape, numpy_dtype(operand.dtype)) for operand in _on_device(site)])
        call = None if recording is None else _laid_out(device, recording)
        del recording
        pool.free_all_blocks()
    if call is None:
        raise ToolchainMissing(
            f"the {site.request.kind} of this call cannot be replayed, which XLA needs; call the kernel outside of JAX"
        )
    return call


class Recording(NamedTuple):
    """A recorded call: its trace, the number of slots before those that it allocated, the slots of operands and of results.

    `backward` has the indices of its results among `result_slots`. `aliased`: operands that are results, by slot.
    """

    trace: Trace[Any, Any]
    inputs: int
    operand_slots: tuple[int, ...]
    result_slots: tuple[int, ...]
    backward: BackwardResult | None = None
    aliased: tuple[tuple[int, Shaped], ...] = ()


def _on_device(site: CallSite) -> tuple[Shaped, ...]:
    """Return the operands as kernels on a GPU take them: lengths and ends as int64."""
    slots = site.request.slots
    wide = {LENGTHS, CU_SEQLENS} if site.request.recipe else set()
    return tuple(
        Shaped(operand.shape, "int64") if index < len(slots) and slots[index] in wide else operand
        for index, operand in enumerate(site.operands)
    )


def _recorded(site: CallSite, operands: Sequence[Any]) -> Recording | None:
    request = site.request
    if request.kind in ("scan", "scan_backward"):
        return _recorded_scan(request, operands)
    if request.kind in ("filter", "filter_backward"):
        return _recorded_filter(request.kind, request, operands)
    kernel = kernel_by(request.recipe)
    executor, slots, count = kernel.executor, request.slots, len(request.present)
    if request.kind == "step_on_pool":
        *flat, reads, writes, _ = by_slot(request, operands)
        pool = PoolArguments(reads, writes, request.pad_slot)
        on_pool = executor.record_step(CallArguments.from_flat(kernel.interface, flat), pool)
        written = tuple((slots[operand], site.operands[operand]) for operand in request.aliases)
        results = () if on_pool is None else (on_pool.slots.y, *(slot for slot, _ in written))
        return None if on_pool is None else Recording(on_pool, count, slots, results, aliased=written)
    arguments = CallArguments.from_flat(kernel.interface, by_slot(request, operands[: len(slots)]))
    if request.kind == "step":
        step = executor.record_step(arguments)
        return None if step is None else Recording(step, count, slots, (step.slots.y, *step.slots.final))
    forward = executor.record_forward(arguments, request.keeps, request.trains)
    if forward is None:
        return None
    written = forward.trace.slots
    kept = written.states if request.keeps else ()
    if request.kind == "forward":
        return Recording(forward.trace, count, slots, (written.y, *written.final, *kept))
    dy, *dstate = operands[len(slots) + 1 + len(kept) :]
    backward = executor.record_backward(forward, dy, dict(zip(kernel.states, dstate, strict=True)))
    if backward is None:
        return None
    keyed, trace = backward
    arriving = range(len(forward.arrays), len(keyed.arrays))
    results = trace.slots
    wide = (results.sums, results.R, *results.vectors, *results.shared, *results.inputs)
    present = [slot for slot in (results.x, *results.initial, *wide) if slot is not None]
    named = results.mapped(present.index)
    return Recording(trace, len(keyed.arrays), (*slots, written.y, *kept, *arriving), tuple(present), named)


def _recorded_scan(request: Request, operands: Sequence[Any]) -> Recording | None:
    keywords: dict[str, Any] = {"log_a": request.log_a, "reverse": request.reverse, "axis": request.axis}
    if request.kind == "scan":
        a, b, h0 = by_slot(request, operands)
        scan(a, b, h0, **keywords)
        trace = SCANS.find(keyed_scan((a, b, h0), **keywords))
        return None if trace is None else Recording(trace, 3, request.slots, (trace.slots.y, trace.slots.final))
    (a, h0), (y, dy, dfinal) = by_slot(request, operands[:-3]), operands[-3:]
    scan_backward(a, y, dy, h0, dfinal, **keywords)
    keyed: KeyedArrays | None = keyed_scan((a, y, dy, h0, dfinal), **keywords)
    gradients = BACKWARDS.find(keyed)
    if gradients is None:
        return None
    slots = gradients.slots
    return Recording(gradients, 5, (0, *((3,) if request.present[1] else ()), 1, 2, 4), (slots.a, slots.b, slots.h0))


def _recorded_filter(kernel_pass: FilterPass, request: Request, operands: Sequence[Any]) -> Recording | None:
    passed = by_slot(request, operands)
    trace = filters.recorded(kernel_pass, passed)
    return None if trace is None else Recording(trace, len(passed), request.slots, tuple(trace.slots))


def _laid_out(device: int, recording: Recording) -> DeviceCall:
    """Lay out the trace's allocations: results as separate buffers, all others in a workspace."""
    trace, inputs = recording.trace, recording.inputs
    held = dict(trace.layout.held)
    assert isinstance(trace.program, Program)
    scratch = list(trace.layout.scratch)
    end = trace.layout.piece.shape[0] if trace.layout.piece is not None else 0
    cast_slots = {cast.slot for cast in trace.casts}
    for slot, allocation in held.items():
        if slot not in recording.result_slots and slot not in cast_slots:
            scratch.append((slot, end))
            end += padded(math.prod(allocation.shape) * allocation.dtype.itemsize)
    shapes = {slot: Shaped(tuple(allocation.shape), allocation.dtype.name) for slot, allocation in held.items()}
    shapes |= dict(recording.aliased)
    results = tuple(shapes[slot] for slot in recording.result_slots)
    casts = tuple(OperandCast(recording.operand_slots.index(cast.source), cast.dtype) for cast in trace.casts)
    return DeviceCall(
        device=device,
        program=trace.program,
        addresses=inputs + len(trace.allocations),
        operand_slots=(*recording.operand_slots, *(cast.slot for cast in trace.casts)),
        casts=casts,
        results=results,
        result_slots=recording.result_slots,
        scratch=tuple(scratch),
        workspace_bytes=end,
        backward=recording.backward,
    )
