"""Drafted steps run on a cache one by one, each from the place of its slot that the previous step wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.pool import PoolArguments
from minrnn_gen.call.validate import check_call, check_exact_shape
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu import memory
from minrnn_gen.run.cache import Cache
from minrnn_gen.run.executor import Executor


def verify(executor: Executor, arguments: CallArguments, cache: Cache, slots: Any, accepted: Any, pad_slot: int) -> Any:
    """Run the steps of a call over time as the next draft of its slots, and return y."""
    interface = executor.interface
    if arguments.state is not None:
        raise BadInput("state was given with a cache; sequences start from the states in their slots, so leave it out")
    call = check_call(interface, memory.inspect, lambda _: None, arguments)
    check_exact_shape(memory.inspect(slots, "slots"), (call.batch,))
    if not call.time:
        return memory.new_array(call.x, interface.y_shape(call.rows, 0), interface.precision.storage_dtype).owner
    is_reverse = interface.runs_reversed[0]
    if is_reverse and call.sequences.lengths is not None:
        raise BadInput("lengths were given for a draft, but the spec is reverse; draft sequences of one length, or run forward")
    order = range(call.time)[:: -1 if is_reverse else 1]
    lengths = call.sequences.lengths and memory.int64_beside(call.x, call.sequences.lengths).owner
    if cache.inputs:
        return cache.run_draft(arguments._replace(x=call.x.owner), slots, accepted, lengths, pad_slot, call.time)
    at = steps_of(interface, arguments._replace(x=call.x.owner, lengths=None, state=cache.places))
    places = cache.next_draft(slots, accepted, lengths, pad_slot, call.time)
    of_steps = zip(order, places.reads, places.writes, strict=True)
    axis = Y_AXES[interface.layout].index("t")
    if not executor.writes_y(call):
        y = {t: executor.step(at(t), PoolArguments(reads, writes)).y for t, reads, writes in of_steps}
        return memory.stacked([y[t] for t in range(call.time)], axis)
    # Steps write y where it is returned, so that no launch joins them: time first, since their kernels have no stride of y.
    whole = memory.new_array(call.x, (call.time, *interface.step_shape(call.batch)), interface.precision.storage_dtype).owner
    for t, reads, writes in of_steps:
        executor.step(at(t), PoolArguments(reads, writes, y=whole[t]))
    return memory.with_first_at(whole, axis)


def steps_of(interface: Interface, arguments: CallArguments) -> Callable[[int], CallArguments]:
    """Return a function from a step to its arguments, for a call without sequences."""

    def at(t: int) -> CallArguments:
        shared = {name: _at(array, interface.shared_axes, t) for name, array in (arguments.shared or {}).items()}
        inputs = {name: _at(array, interface.axes_of_input(name), t) for name, array in (arguments.inputs or {}).items()}
        x = arguments.x[(*[slice(None)] * interface.x_axes.index("t"), t)]
        return arguments._replace(x=x, shared=shared or None, inputs=inputs or None)

    return at


def _at(array: Any, axes: str, t: int) -> Any:
    """Return an input at one step, contiguous like inputs of single steps."""
    step = memory.inspect(array[(*[slice(None)] * axes.index("t"), t)], "input")
    return step.owner if step.is_contiguous else memory.without_gaps(step).owner
