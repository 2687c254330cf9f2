"""A kernel's forward and backward as functions from tensors to tensors, in one order.

The order of a call: x, R, weight, bias, recurrent_bias, resets, lengths, cu_seqlens, then the cell's parameters, then the
initial states, all or none; None where not given. Results: y, the final states, and what only a backward needs.
"""

from __future__ import annotations

from typing import Any

import torch

from minrnn_gen.call.arguments import Given
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.dtypes import STATES, STORAGE
from minrnn_gen.torch.recorded import Tensors

# How many tensors come before the parameters.
NAMED_FROM = 8
# Of these, where those without gradients begin.
SEQUENCES_FROM = 5


def forward(kernel: Kernel, tensors: Tensors, saves: bool, all_states: bool = False) -> list[Any]:
    """Run a call; with what a backward needs where it `saves`, beginning with the states after every step for `all_states`."""
    again = _again(kernel, tensors, saves, all_states)
    if again is not None:
        y, states, others = again
        return [y, *states, *others] if saves else [y, *states]
    given = _given(kernel, tensors)
    x, R, weight, bias, recurrent_bias, parameters, state, resets, lengths, cu_seqlens = given
    run = kernel.forward if saves else kernel
    y, final, *saved = run(
        x,
        R,
        weight=weight,
        bias=bias,
        recurrent_bias=recurrent_bias,
        parameters=parameters,
        state=state,
        resets=resets,
        lengths=lengths,
        cu_seqlens=cu_seqlens,
        all_states=all_states,
    )
    if not saved:
        return [y, *final.values()]
    last = saved[0].final() if all_states else final.values()
    # Pre-activations of tensors in host memory are in NumPy.
    extra = (one if isinstance(one, torch.Tensor) else torch.from_numpy(one) for one in saved[0].arrays())
    return [y, *last, *extra]


def _again(kernel: Kernel, tensors: Tensors, saves: bool, all_states: bool) -> tuple[Any, list[Any], list[Any]] | None:
    """Run a call of a form met before, whose tensors are as a kernel takes them, or return None where it is not one."""
    *given, resets, lengths, cu_seqlens = tensors[:NAMED_FROM]
    if lengths is not None or cu_seqlens is not None or (all_states and not saves):
        return None
    states_from = NAMED_FROM + len(kernel.parameters)
    states = tensors[states_from:] or (None,) * len(kernel.states)
    return kernel.again((*given, resets, *states, *tensors[NAMED_FROM:states_from]), saves, all_states)


def backward(
    kernel: Kernel, tensors: Tensors, results: Tensors, dy: Any, dstate: Tensors, all_states: bool = False
) -> list[Any]:
    """Return the gradients of `tensors`, no two in the same memory, and None for those without.

    `results`: y, then what only a backward needs; `dstate`: of the final states, all or none.
    """
    y, *extra = map(_without_gaps, results)
    saved = kernel.saved_from(_given(kernel, tensors), y, extra, all_states)
    incoming = dict(zip(kernel.states, map(_without_gaps, dstate), strict=True)) if dstate else None
    found = kernel.backward(saved, _without_gaps(dy), incoming)
    has_state = len(tensors) > NAMED_FROM + len(kernel.parameters)
    in_order = [
        *(found.get(name) for name in ("x", "R", "weight", "bias", "recurrent_bias")),
        *(None for _ in tensors[SEQUENCES_FROM:NAMED_FROM]),
        *(found["parameters"][name] for name in kernel.parameters),
        *(found["state"][name] for name in (kernel.states if has_state else ())),
    ]
    taken: set[int] = set()
    return [
        None if one is None or gradient is None else _apart(gradient, taken).view(one.shape)  # of R it has more axes
        for one, gradient in zip(tensors, in_order, strict=True)
    ]


def arriving(kernel: Kernel, tensors: Tensors, y: Any, gradients: Tensors) -> tuple[Any, list[Any]]:
    """Return the gradients of y and of the final states, all or none, with zeros for those of some that are None."""
    dy, *dfinal = gradients
    dy = torch.zeros_like(y) if dy is None else dy
    if all(one is None for one in dfinal):
        return dy, []
    shape, dtype = kernel.interface.state_shape(sequences_of(kernel, tensors)), arithmetic_dtype(kernel)
    return dy, [y.new_zeros(shape, dtype=dtype) if one is None else one for one in dfinal]


def sequences_of(kernel: Kernel, tensors: Tensors) -> Any:
    """Return how many sequences a call is of, a symbol where sizes are: those that `cu_seqlens` ends, or the rows of x."""
    x, ends = tensors[0], tensors[NAMED_FROM - 1]
    return x.shape[kernel.interface.x_axes.index("b")] if ends is None else ends.shape[0] - 1


def storage_dtype(kernel: Kernel) -> torch.dtype:
    """The dtype of x, R, weight and y."""
    return STORAGE[kernel.interface.precision.name]


def arithmetic_dtype(kernel: Kernel) -> torch.dtype:
    """The dtype of states."""
    return STATES[kernel.interface.precision.name]


def _given(kernel: Kernel, tensors: Tensors) -> Given:
    """Return the arrays of a call as a kernel takes them, copied where there are gaps."""
    x, *tensors = tensors
    # Pre-activations may have gaps along all axes but the last.
    if not (x.is_contiguous() or (not kernel.interface.input_size and x.stride(-1) == 1)):
        x = x.contiguous()
    tensors = [x, *(one if one is None or one.is_contiguous() else one.contiguous() for one in tensors)]
    parameters = state = None
    if len(tensors) > NAMED_FROM:
        states_from = NAMED_FROM + len(kernel.parameters)
        parameters = dict(zip(kernel.parameters, tensors[NAMED_FROM:states_from], strict=True)) or None
        state = dict(zip(kernel.states, tensors[states_from:], strict=False)) or None
    x, R, weight, bias, recurrent_bias, resets, lengths, cu_seqlens = tensors[:NAMED_FROM]
    return Given(x, R, weight, bias, recurrent_bias, parameters, state, resets, lengths, cu_seqlens)


def _without_gaps(tensor: Any) -> Any:
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _apart(gradient: Any, taken: set[int]) -> Any:
    """Return a gradient without gaps, copied where it lies in memory that is `taken`, and take its own."""
    gradient = _without_gaps(gradient)
    if gradient.untyped_storage().data_ptr() in taken:
        gradient = gradient.clone()
    taken.add(gradient.untyped_storage().data_ptr())
    return gradient
