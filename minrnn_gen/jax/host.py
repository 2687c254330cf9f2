"""Requests executed on host memory, by the executor of calls with NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.pool import PoolArguments
from minrnn_gen.call.slots import CU_SEQLENS, FIXED, LENGTHS
from minrnn_gen.jax.c_handler import Layout
from minrnn_gen.jax.request import Request
from minrnn_gen.layers.kernels import kernel_by
from minrnn_gen.raw_scan.filter_results import FILTER_PASSES
from minrnn_gen.raw_scan.filters import run_filter, run_filter_backward
from minrnn_gen.raw_scan.map_arguments import CARRIED
from minrnn_gen.raw_scan.scan import scan, scan_backward
from minrnn_gen.run.cpu.c_program import host_program
from minrnn_gen.run.cpu.trace import HostProgram
from minrnn_gen.run.executor import Executor
from minrnn_gen.run.saved import Saved


def run_on_host(request: Request, operands: Sequence[Any]) -> Sequence[Any]:
    """Return the results of a request on NumPy arrays; raises BadInput for values of lengths that do not fit."""
    if request.kind in ("scan", "scan_backward"):
        return _run_scan(request, operands)
    if request.kind in FILTER_PASSES:
        return _run_filter(request, operands)
    kernel = kernel_by(request.recipe)
    interface, executor = kernel.interface, kernel.executor
    count = len(request.slots)
    if request.kind == "step_on_pool":
        *call, reads, writes, _ = by_slot(request, operands)
        states = call[interface.slots.states]
        pool = PoolArguments(reads, writes, request.pad_slot)
        return (executor.step(CallArguments.from_flat(interface, call), pool).y, *states)
    arguments = CallArguments.from_flat(interface, by_slot(request, operands[:count]))
    if request.kind == "step":
        step = executor.step(arguments)
        return (step.y, *step.final)
    if request.kind == "forward":
        forward, _ = executor.forward(arguments, request.keeps, saves=False)
        return (forward.y, *forward.final, *(forward.states if request.keeps else ()))
    y, *others = operands[count:]
    kept = len(interface.states) if request.keeps else 0
    saved = _saved(executor, arguments, y, others[:kept], request.keeps)
    dy, *dstate = others[kept:]
    gradients = kernel.backward(saved, dy, dict(zip(kernel.states, dstate, strict=True)))
    flat = [gradients.get(name) for name in FIXED]
    flat += [gradients["parameters"][name] for name in kernel.parameters]
    flat += [gradients["state"][name] for name in kernel.states]
    flat += [gradients["shared"][name] for name in kernel.shared]
    flat += [gradients["inputs"][name] for name in kernel.inputs]
    return [flat[slot] for slot in request.gradient_slots]


def recorded_on_host(request: Request, operands: Sequence[Any]) -> tuple[Layout, object] | None:
    """Return a request on NumPy arrays as operations of C, and its buffers' layout; None unless it is native code alone."""
    if request.kind not in ("forward", "step") or request.present[LENGTHS] or request.present[CU_SEQLENS]:
        return None  # values of lengths are checked, call by call
    kernel = kernel_by(request.recipe)
    arguments = CallArguments.from_flat(kernel.interface, by_slot(request, operands))
    trace = kernel.executor.record_on_host(arguments, request.keeps, single_step=request.kind == "step")
    if trace is None:
        return None
    slots = trace.slots
    results = (slots.y, *slots.final, *(slots.states if request.keeps else ()))
    launches = trace.program.launches if isinstance(trace.program, HostProgram) else None
    if launches is None or trace.casts or {slot for slot, _ in trace.layout.held} != {*results}:
        return None
    return Layout(len(request.present) + len(trace.allocations), request.slots, results), host_program(launches)


def _saved(executor: Executor, arguments: CallArguments, y: Any, states: Sequence[Any], keeps: bool) -> Saved:
    """Return a forward's saved arrays; run the forward again if a program's results lack the products with R."""
    if len(executor.saved_layouts(1, 1, on_cpu=True, all_states=keeps)) == len(states):
        return executor.restore(arguments, y, states, keeps)
    return Saved(executor, *executor.forward(arguments, keeps, saves=True))


def by_slot(request: Request, operands: Sequence[Any]) -> list[Any]:
    """Return the first operands by slot, None for empty slots."""
    in_order = iter(operands)
    return [next(in_order) if is_there else None for is_there in request.present]


def _run_scan(request: Request, operands: Sequence[Any]) -> Sequence[Any]:
    form = request.form
    keywords: dict[str, Any] = {"form": form, "log_a": request.log_a, "reverse": request.reverse, "axis": request.axis}
    if request.kind == "scan":
        a, b, h0 = by_slot(request, operands)
        return scan(a, b, _carried(h0) if form == "full" else h0, **keywords)
    a, h0, y, dy, dfinal = *by_slot(request, operands[:-3]), *operands[-3:]
    if form == "full":
        h0, dfinal = _carried(h0), _carried(dfinal)
    return scan_backward(a, y, dy, h0, dfinal, **keywords)


def _run_filter(request: Request, operands: Sequence[Any]) -> Sequence[Any]:
    if request.kind == "filter":
        x, b, a, zi = by_slot(request, operands)
        return run_filter(x, _carried(b), _carried(a), None if zi is None else _carried(zi))
    x, b, a, y, dy, dzf = operands
    return run_filter_backward(x, y, _carried(b), _carried(a), dy, _carried(dzf))


def _carried(array: Any) -> Any:
    """Return an array in float64, a dtype that JAX lacks without its x64 mode."""
    return array.astype(CARRIED, copy=False)
