"""Scans over dual numbers whose gates and tangents lie in two arrays: a forward and its backward, without a copy of either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from minrnn_gen.call.arguments import Call, CallArguments
from minrnn_gen.call.array import Array
from minrnn_gen.call.gradients import gradients_by_name
from minrnn_gen.call.results import ForwardResult
from minrnn_gen.call.slots import WEIGHT
from minrnn_gen.call.validate import check_call, check_exact_shape, check_gradient
from minrnn_gen.codegen.signature_groups import own_gates
from minrnn_gen.gpu import memory
from minrnn_gen.plan.kernel_plan import StatesOut
from minrnn_gen.plan.problem import KernelPass
from minrnn_gen.run.executor import Executor
from minrnn_gen.run.scan.runs import rows_of_x, sizes_of, specialization_of
from minrnn_gen.run.tangent import TangentCall


class Apart(NamedTuple):
    """The arguments of a call of a tangent's kernel, its x without the tangents of gates, and these, `moved`.

    `states`: the states after every step that are known from the cell's own call, by name.
    """

    arguments: CallArguments
    moved: Any
    states: Mapping[str, Any]


def scanned(
    executor: Executor, as_called: TangentCall, own_states: Sequence[Any], dy: Any, dstate: Sequence[Any]
) -> tuple[ForwardResult, list[Any]] | None:
    """Return the results of a tangent's forward, and the second gradients of its call by slot; None where no scan serves it.

    `own_states`: the states after every step that the call saved, where y is none of them. `dstate`: gradients of the call's
    final states, None for zeros, or nothing for zeros alone.
    """
    is_scan = not as_called.interface.recurrent_gates and executor.builder.cell_shape.is_dual
    if as_called.arrays[WEIGHT] is not None or not is_scan:
        return None
    apart, interface, recipe = as_called.apart(), executor.interface, as_called.recipe
    if apart is None:
        return None
    arrays, moved = apart
    known = own_states or [as_called.y]
    picks = [*zip(interface.states, recipe.states, strict=True)]
    states = {name: known[place] for name, (place, is_tangent) in picks if not is_tangent}
    by_name = {name: dstate[place] for name, (place, is_tangent) in picks if dstate and is_tangent}
    incoming = {name: state for name, state in by_name.items() if state is not None}
    computed = _run(executor, Apart(CallArguments.from_flat(interface, arrays), moved, states), dy, incoming or None)
    if computed is None:
        return None
    result, named = computed
    arriving = CallArguments(**{name: named.get(name) for name in CallArguments._fields}).flat(interface) or []
    return result, as_called.gradients(arriving, lambda _: [])


def _run(
    executor: Executor, apart: Apart, dy: Any, dstate: Mapping[str, Any] | None
) -> tuple[ForwardResult, dict[str, Any]] | None:
    """Return the results of a forward and the gradients by name, none of `moved`; None where no scan serves the call.

    The gradient of x has the shape of x.
    """
    call, interface, builder = _checked(executor, apart), executor.interface, executor.builder
    backward = builder.lowered_backward
    read = {name: memory.inspect(array, name) for name, array in apart.states.items() if name in backward.read_states}
    arriving = memory.inspect(dy, "dy")
    is_known = {*backward.read_states} <= {*read, backward.output_state}
    states_out: StatesOut = "none" if is_known else "storage"
    rows = (*rows_of_x(call), arriving, *read.values(), *call.inputs)
    if not (executor.backend.takes(call) and call.batch and _are_scans(executor, call, states_out, rows)):
        return None
    forward = executor.gpu.forward(call, states_out, False)
    outputs = forward.outputs
    if is_known:
        kept = tuple(outputs.y if name == backward.output_state else read.get(name, outputs.y) for name in interface.states)
        outputs = replace(outputs, kept=kept)
    incoming = check_gradient(interface, memory.inspect, outputs.y, dy, dstate, call.batch)
    if not incoming.dy.is_contiguous:
        incoming = replace(incoming, dy=memory.without_gaps(incoming.dy))
    raw = executor.gpu.backward(replace(forward, outputs=outputs, replay=None), incoming)
    return forward.result, gradients_by_name(interface, forward.call, raw, executor.gpu.in_form_of)


def _checked(executor: Executor, apart: Apart) -> Call:
    """Return the call; x and `moved` have one shape."""
    interface = executor.interface
    own = replace(interface, gates=interface.gates[: own_gates(len(interface.gates))])
    call = check_call(own, memory.inspect, memory.read_back, apart.arguments._replace(bias=None))
    moved, bias = memory.inspect(apart.moved, "moved"), apart.arguments.bias
    check_exact_shape(moved, call.x.shape)
    if moved.strides != call.x.strides:
        call, moved = replace(call, x=memory.without_gaps(call.x)), memory.without_gaps(moved)
    return replace(call, moved=moved, bias=None if bias is None else memory.inspect(bias, "bias"))


def _are_scans(executor: Executor, call: Call, states_out: StatesOut, rows: tuple[Array, ...]) -> bool:
    """Say whether the kernels of both passes are scans, which take gates and tangents apart."""
    passes: tuple[tuple[KernelPass, StatesOut], ...] = (("forward", states_out), ("backward", "none"))
    for kernel_pass, kept in passes:
        for reverse in executor.interface.runs_reversed:
            specialization = specialization_of(replace(call, reverse=reverse), kept, *rows)
            key = executor.builder.choose(kernel_pass, specialization, sizes_of(call))
            if not executor.backend.plan(key).is_scan:
                return False
    return True
