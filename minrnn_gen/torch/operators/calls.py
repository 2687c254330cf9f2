"""A kernel's forward and backward as functions from tensors to tensors, in one order.

The order of a call is that of `CallArguments.flat`: x, R, weight, bias, recurrent_bias, resets, lengths, cu_seqlens, then the
cell's parameters, then the initial states, all or none, then the inputs S.* and X.*; None where absent. Results: y, the final
states, and the arrays that only a backward needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.gradients import gradients_by_slot
from minrnn_gen.call.pool_checks import pool_arguments
from minrnn_gen.call.slots import CU_SEQLENS, FIXED
from minrnn_gen.call.validate import check_call
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.dtypes import STATES, STORAGE
from minrnn_gen.torch.operators.recorded import Tensors
from minrnn_gen.torch.tensors import check_tensor, without_values

# Axes of the state of a layer of torch.nn: layers and directions, sequences, channels.
_STATE_AXES = 3


def infer(kernel: Kernel, tensors: Tensors) -> list[Any]:
    """Run a call for inference of a cell without vectors; final states [1 or directions, B, H] are in the dtype of y."""
    result = kernel.executor.replay_forward(tensors, False, False, of_layer=True)
    if result is None:
        check_tensors(kernel, tensors)
        result, _ = kernel.executor.forward(_arguments(kernel, tensors), False, False, of_layer=True)
    y = result.y
    states = [state if state.dtype is y.dtype else state.to(y.dtype) for state in result.final]
    return [y, *(state if state.dim() == _STATE_AXES else state.unsqueeze(0) for state in states)]


def forward(kernel: Kernel, tensors: Tensors, saves: bool, all_states: bool = False) -> list[Any]:
    """Run a call; where it `saves`, return a backward's arrays too, with `all_states` the states after every step first."""
    executor = kernel.executor
    if saves or not all_states:
        # Of a key met before, whose tensors are as a kernel takes them.
        result = executor.replay_forward(tensors, all_states, saves)
        if result is not None:
            return [result.y, *result.final, *result.saved] if saves else [result.y, *result.final]
    check_tensors(kernel, tensors)
    named = _arguments(kernel, tensors)._asdict()
    if not saves:
        y, states = kernel(**named, all_states=all_states)
        return [y, *states.values()]
    y, _, saved = kernel.forward(**named, all_states=all_states)
    # A forward in NumPy keeps NumPy arrays.
    extra = (array if isinstance(array, torch.Tensor) else torch.from_numpy(array) for array in saved.arrays())
    return [y, *saved.final(), *extra]


def step(kernel: Kernel, tensors: Tensors) -> list[Any]:
    """Run one step and return y and the states after it; x has no time axis."""
    result = kernel.executor.step(_arguments(kernel, tensors))
    return [result.y, *result.final]


def step_on_pool(kernel: Kernel, tensors: Tensors, slots: Any, into_slots: Any, pad_slot: int) -> Any:
    """Run one step on slots of a pool, the states of the call, and return y."""
    pool = pool_arguments(slots, into_slots, pad_slot)
    return kernel.executor.step(_arguments_on_pool(kernel, tensors), pool).y


def forward_on_pool(kernel: Kernel, tensors: Tensors, slots: Any, into_slots: Any, has_state: Any, pad_slot: int) -> Any:
    """Run over time on slots of a pool, the states of the call, and return y."""
    pool = pool_arguments(slots, into_slots, pad_slot, has_state)
    assert pool is not None
    return kernel.executor.forward_on_pool(_arguments_on_pool(kernel, tensors), pool)


def _arguments_on_pool(kernel: Kernel, tensors: Tensors) -> CallArguments:
    """Return the arguments of a call whose states are a pool, those tensors themselves: they are written."""
    states = tensors[kernel.interface.slots.states]
    return _arguments(kernel, tensors)._replace(state=dict(zip(kernel.states, states, strict=True)))


def backward(
    kernel: Kernel,
    tensors: Tensors,
    results: Tensors,
    dy: Any,
    dstate: Tensors,
    all_states: bool = False,
    reads_x: bool = True,
) -> list[Any]:
    """Return the gradients of `tensors`, no two in the same memory, and None for those without.

    `results`: y, then the arrays that only a backward needs; `dstate`: gradients of the final states, all or none. Without
    `reads_x`, the gradient of x may be None.
    """
    dy = without_gaps(dy)
    incoming = (dy, *(map(without_gaps, dstate) if dstate else (None,) * len(kernel.states)))
    raw = kernel.executor.replay_backward(tensors, results, incoming, all_states, reads_x)
    if raw is not None:
        return gradients_by_slot(kernel.interface, tensors, raw)
    y, *extra = map(without_gaps, results)
    saved = kernel.executor.restore(_arguments(kernel, tensors), y, extra, all_states)
    of_states = dict(zip(kernel.states, incoming[1:], strict=True)) if dstate else None
    gradients = kernel.executor.backward(saved.open_for(kernel.executor), dy, of_states, given_only=True)
    in_order = CallArguments(
        **{name: gradients.get(name) for name in FIXED},
        parameters=gradients.get("parameters"),
        state=gradients["state"] if all(state is not None for state in gradients["state"].values()) else None,
        shared=gradients.get("shared"),
        inputs=gradients.get("inputs"),
    ).flat(kernel.interface)
    assert in_order is not None
    memory: set[int] = set()
    return [
        # R's gradient has more axes.
        None if tensor is None or gradient is None else _apart(gradient, memory).view(tensor.shape)
        for tensor, gradient in zip(tensors, in_order, strict=True)
    ]


def forward_in_place(kernel: Kernel, tensors: Tensors, into: Tensors, all_states: bool, saves: bool) -> list[Any]:
    """Run a call on a GPU `into` y and the saved states, except beyond lengths, and return the final states.

    x is not projected, and has no gaps along its last axis. Values of lengths are not looked at.
    """
    return [*kernel.executor.forward_in_place(_in_place(tensors), into, all_states, saves).final]


def backward_in_place(
    kernel: Kernel, tensors: Tensors, results: Tensors, dy: Any, dstate: Tensors, dx: Any, all_states: bool
) -> list[Any]:
    """Return the gradients of `tensors` as `backward` does; x's is written into `dx`, except beyond lengths.

    y, saved states and `dy` have the same strides.
    """
    incoming = (dy, *map(without_gaps, dstate))
    raw = kernel.executor.backward_in_place(_in_place(tensors), results, incoming, dx, all_states)
    return gradients_by_slot(kernel.interface, tensors, raw)


def arriving(
    kernel: Kernel, states_shapes: Callable[[], Sequence[tuple[Any, ...]]], y: Any, gradients: Tensors
) -> tuple[Any, list[Any]]:
    """Return the gradients of y and of the final states, all or none; if only some are None, zeros replace them.

    `states_shapes` returns the shapes of the final states; it is called only where one has a gradient.
    """
    dy, *dfinal = gradients
    dy = torch.zeros_like(y) if dy is None else dy
    if all(gradient is None for gradient in dfinal):
        return dy, []
    pairs, dtype = zip(dfinal, states_shapes(), strict=True), arithmetic_dtype(kernel)
    return dy, [y.new_zeros(shape, dtype=dtype) if gradient is None else gradient for gradient, shape in pairs]


def states_shapes(kernel: Kernel, tensors: Tensors) -> list[tuple[Any, ...]]:
    """Return the shape of each final state of a call."""
    sequences = sequences_of(kernel, tensors)
    return [kernel.interface.shape_of_state(name, sequences) for name in kernel.states]


def sequences_of(kernel: Kernel, tensors: Tensors) -> Any:
    """Return the number of sequences of a call, from `cu_seqlens` or the rows of x; a symbol where sizes are symbols."""
    x, ends = tensors[0], tensors[CU_SEQLENS]
    return x.shape[kernel.interface.x_axes.index("b")] if ends is None else ends.shape[0] - 1


def storage_dtype(kernel: Kernel) -> torch.dtype:
    """The dtype of x, R, weight and y."""
    return STORAGE[kernel.interface.precision.name]


def arithmetic_dtype(kernel: Kernel) -> torch.dtype:
    """The dtype of states."""
    return STATES[kernel.interface.precision.name]


def check_tensors(kernel: Kernel, tensors: Tensors) -> None:
    """Refuse arguments that are no dense tensors, and shapes of tensors without values that do not fit."""
    interface = kernel.interface
    names = (
        *FIXED,
        *(f"parameters['{name}']" for name in interface.parameters),
        *(f"state['{name}']" for name in interface.states),
        *(f"shared['{name}']" for name in interface.shared),
        *(f"inputs['{name}']" for name in interface.inputs),
    )
    for name, tensor in zip(names, tensors, strict=True):
        if tensor is not None:
            check_tensor(tensor, name)
    if tensors[0].is_meta:
        check_call(interface, without_values, lambda _: None, CallArguments.from_flat(interface, tensors))


def _arguments(kernel: Kernel, tensors: Tensors) -> CallArguments:
    """Return the arguments of a call as a kernel takes them, copied where there are gaps."""
    x, *others = tensors
    # Pre-activations may have gaps along all axes but the last.
    if not (x.is_contiguous() or (not kernel.interface.input_size and x.stride(-1) == 1)):
        x = x.contiguous()
    return CallArguments.from_flat(
        kernel.interface, [x, *(tensor if tensor is None else without_gaps(tensor) for tensor in others)]
    )


def _in_place(tensors: Tensors) -> list[Any]:
    x, *others = tensors
    return [x, *(tensor if tensor is None else without_gaps(tensor) for tensor in others)]


def without_gaps(tensor: Any) -> Any:
    """Return a tensor as a contiguous one, a copy where it is not."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _apart(gradient: Any, memory: set[int]) -> Any:
    """Return a gradient without gaps, copied if its storage is in `memory`; add its storage to `memory`."""
    gradient = without_gaps(gradient)
    if gradient.untyped_storage().data_ptr() in memory:
        gradient = gradient.clone()
    memory.add(gradient.untyped_storage().data_ptr())
    return gradient
