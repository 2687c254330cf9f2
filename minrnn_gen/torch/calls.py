"""A kernel's forward and backward as functions from tensors to tensors, in one order.

The order of a call: x, R, weight, bias, recurrent_bias, resets, lengths, cu_seqlens, then the cell's parameters, then the initial
states, all or none; None where not given. Results: y, the final states, and what only a backward needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.arguments import Given
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel
from minrnn_gen.torch.recorded import Tensors

# How many tensors come before the parameters.
NAMED_FROM = 8
# Of these, where those without gradients begin.
SEQUENCES_FROM = 5


def forward(kernel: Kernel, tensors: Tensors, saves: bool) -> list[Any]:
    """Run a call; with what a backward needs where it `saves`."""
    given = _given(kernel, tensors)
    if not saves:
        y, final = kernel(**given._asdict())
        return [y, *final.values()]
    y, final, saved = kernel.forward(**given._asdict())
    # Pre-activations of tensors in host memory are in NumPy.
    extra = (one if isinstance(one, torch.Tensor) else torch.from_numpy(one) for one in saved.arrays())
    return [y, *final.values(), *extra]


def backward(kernel: Kernel, tensors: Tensors, results: Tensors, gradients: Tensors) -> list[Any]:
    """Return the gradients of `tensors`, None for those without; `results`: y, then what only a backward needs.

    `gradients`: of y and the final states, None for zeros.
    """
    y, *extra = results
    dy, *dfinal = gradients
    dy = torch.zeros_like(y) if dy is None else dy.contiguous()
    dstate = None
    if any(one is not None for one in dfinal):
        shape, dtype = kernel.contract.state_shape(sequences_of(kernel, tensors)), arithmetic_dtype(kernel)
        filled = (y.new_zeros(shape, dtype=dtype) if one is None else one.contiguous() for one in dfinal)
        dstate = dict(zip(kernel.states, filled, strict=True))
    saved = kernel.saved_from(_given(kernel, tensors), y, extra)
    found = kernel.backward(saved, dy, dstate)
    parameters = found.get("parameters", {})
    in_order = [
        *(found.get(name) for name in ("x", "R", "weight", "bias", "recurrent_bias")),
        *(None for _ in tensors[SEQUENCES_FROM:NAMED_FROM]),
        *(parameters[name] for name in kernel.parameters),
        *(found["state"][name] for name in (kernel.states if has_state(kernel, tensors) else ())),
    ]
    return [
        None if one is None or gradient is None else _shaped(gradient, one.shape, "gradient")
        for one, gradient in zip(tensors, in_order, strict=True)
    ]


def has_state(kernel: Kernel, tensors: Tensors) -> bool:
    """Say whether initial states are among the tensors of a call."""
    return len(tensors) > NAMED_FROM + len(kernel.parameters)


def sequences_of(kernel: Kernel, tensors: Tensors) -> int:
    """Return how many sequences a call is of: those that `cu_seqlens` ends, or the rows of x."""
    x, ends = tensors[0], tensors[NAMED_FROM - 1]
    return int(x.shape[kernel.contract.x_axes.index("b")] if ends is None else ends.shape[0] - 1)


def storage_dtype(kernel: Kernel) -> torch.dtype:
    """The dtype of x, R, weight and y."""
    return _dtype(kernel.contract.precision.storage_dtype)


def arithmetic_dtype(kernel: Kernel) -> torch.dtype:
    """The dtype of states."""
    return _dtype(kernel.contract.precision.arithmetic_dtype)


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name)  # type: ignore[no-any-return]


def _given(kernel: Kernel, tensors: Tensors) -> Given:
    """Return the arrays of a call as a kernel takes them: R and vectors in their own shapes, and copied where there are gaps."""
    contract = kernel.contract
    x, R, weight, bias, recurrent_bias, resets, lengths, cu_seqlens, *named = tensors
    count = len(contract.parameters)
    parameters = [_shaped(one, contract.parameter_shape, name) for name, one in zip(contract.parameters, named, strict=False)]
    state = [one.contiguous() for one in named[count:]]
    return Given(
        x=x if not contract.input_size and x.shape and x.stride(-1) == 1 else x.contiguous(),
        R=_shaped(R, contract.R_shape, "R"),
        weight=None if weight is None else weight.contiguous(),
        bias=None if bias is None else bias.contiguous(),
        recurrent_bias=_shaped(recurrent_bias, contract.recurrent_bias_shape, "recurrent_bias"),
        parameters=dict(zip(contract.parameters, parameters, strict=True)) if count else None,
        state=dict(zip(contract.states, state, strict=True)) if state else None,
        resets=resets,
        lengths=None if lengths is None else lengths.contiguous(),
        cu_seqlens=None if cu_seqlens is None else cu_seqlens.contiguous(),
    )


def _shaped(tensor: Any, shape: Sequence[int], name: str) -> Any:
    """View a contiguous tensor, or a copy, in another shape; raises BadInput where it has too many elements or too few."""
    if tensor is None or tensor.shape == shape:
        return tensor if tensor is None else tensor.contiguous()
    if tensor.numel() != math.prod(shape):
        raise BadInput(f"{name} has shape {list(tensor.shape)}; {list(shape)}, or as many elements, is expected")
    return tensor.reshape(shape)
