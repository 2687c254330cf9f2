"""Traces of calls as plain data, to be compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.call_corpus import Case, Options, PlannedKernels, arguments_of, gradients_of, kernel_of, plain

from minrnn_gen.call.arguments import flat_gradient
from minrnn_gen.call.key import keyed
from minrnn_gen.call.validate import check_call, check_gradient
from minrnn_gen.gpu import cublas, graph, memory, stream
from minrnn_gen.kernel import Kernel
from minrnn_gen.run.cuda import CudaBackend
from minrnn_gen.run.executor import Executor
from minrnn_gen.run.recording.operations import CopyOperation, FillOperation, LaunchOperation, ProductOperation


class OnHost(CudaBackend):
    """A backend that takes tensors in host memory for tensors on a device."""

    def takes(self, _call: Any) -> bool:
        return True

    def without_graphs(self) -> OnHost:
        return type(self)(self._kernels, has_graphs=False)


@contextmanager
def nothing_runs() -> Iterator[None]:
    """Have launches, products, copies and fills do nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((cublas, "multiply"), (graph, "copy_heads_first"), (memory, "set_bytes")):
            patch.setattr(owner, name, lambda *_arguments, **_named: None)
        patch.setattr(stream, "current_stream", lambda _: 0)
        patch.setattr(stream, "is_capturing", lambda _: False)
        yield


def operation_data(operation: Any) -> tuple[Any, ...]:
    """Return what an operation of a trace does."""
    match operation:
        case LaunchOperation():
            arguments = [plain(argument) for argument in operation._arguments]
            for position, slot, offset in operation._addresses:
                arguments[position] = ("at", slot, offset)
            for position, gap in operation._differences:
                first, second = gap.first, gap.second
                arguments[position] = ("gap", first.slot, first.offset_bytes, second.slot, second.offset_bytes, gap.itemsize)
            module = operation._module
            return ("launch", repr(module.key), module.part, operation._blocks, operation._threads, *arguments)
        case ProductOperation():
            product = operation._product
            matrices = zip(operation._pointers, (product.left, product.right, product.result), strict=True)
            places = [
                (pointer.slot, pointer.offset_bytes, matrix.dtype, matrix.row, matrix.stride, matrix.transposed)
                for pointer, matrix in matrices
            ]
            workspace = operation._workspace
            at = None if workspace is None else (workspace.slot, workspace.offset_bytes)
            sizes = (product.m, product.n, product.k, product.batch, product.adds, product.in_tf32)
            return ("product", *sizes, *places, at)
        case CopyOperation():
            pointers = [(pointer.slot, pointer.offset_bytes) for pointer in operation._pointers]
            return ("copy", operation._R.shape, operation._R.dtype, *pointers)
        case FillOperation():
            start = operation._start
            return ("fill", start.slot, start.offset_bytes, operation._size_bytes, operation._value)
    raise TypeError(operation)


def trace_data(trace: Any) -> dict[str, Any]:
    """Return what a trace allocates, casts, enqueues and returns."""
    layout = trace.layout
    return {
        "allocations": [(tuple(a.shape), tuple(a.strides), str(a.dtype), a.fill) for a in trace.allocations],
        "casts": [tuple(cast) for cast in trace.casts],
        "held": [slot for slot, _ in layout.held],
        "scratch": [*layout.scratch],
        "piece": None if layout.piece is None else tuple(layout.piece.shape),
        "operations": [operation_data(operation) for operation in trace.program._operations],
        "slots": tuple(trace.slots),
    }


def traces_of(case: Case, backend_of: Any = OnHost) -> Iterator[tuple[str, Any]]:
    """Yield the name of each pass of each call of a case, and its trace; None where there is none."""
    kernel, kernels = kernel_of(case)
    for number, call in enumerate(case.calls):
        for name, trace in traces_of_call(kernel, backend_of(kernels), call):
            yield f"{case.name}, call {number}, {name}", trace


def traces_of_call(kernel: Kernel, backend: Any, call: Options) -> Iterator[tuple[str, Any]]:
    """Yield the traces of a call's step, or forward and backward."""
    interface, arguments = kernel.interface, arguments_of(kernel.interface, call)
    executor = Executor(interface, kernel.builder, backend)
    gpu = executor.recorded
    with nothing_runs():
        if call.is_step:
            key = keyed("step", arguments.flat(interface))
            gpu.step(executor.checked(arguments, single_step=True).with_slots(key))
            yield "step", gpu.steps.find(key)
            return
        states_out = executor._states_out(call.all_states, call.saves)
        key = keyed(("forward", states_out, call.saves), arguments.flat(interface))
        checked = check_call(interface, memory.inspect, lambda _: None, arguments).with_slots(key)
        replay = gpu.forward(checked, states_out, call.saves).replay
        yield "forward", None if replay is None else replay.trace
        if replay is None or not call.saves:
            return
        dy, dstate = gradients_of(interface, call)
        arriving = keyed(replay.trace, flat_gradient(interface, dy, dstate))
        assert arriving is not None
        key, forward = arriving.behind(replay.arrays, replay.addresses), replay.metadata()
        incoming = check_gradient(interface, memory.inspect, forward.outputs.y, dy, dstate, forward.call.batch)
        gpu.backward(forward, incoming.with_slots(key))
        yield "backward", gpu.backwards.find(key)


__all__ = ["OnHost", "PlannedKernels", "nothing_runs", "operation_data", "trace_data", "traces_of", "traces_of_call"]
