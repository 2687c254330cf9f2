"""Arguments of functions and layers that have to be tensors: dense ones, those without values, and lists of integers."""

from __future__ import annotations

from typing import Any

import torch

from minrnn_gen.call.array import Array, contiguous_strides
from minrnn_gen.call.sequences import as_marks, listed_integers
from minrnn_gen.errors import BadInput
from minrnn_gen.gpu.memory import inspect

# The device of an array without values, which is neither host memory nor one of CUDA.
_NO_DEVICE = -1


def check_tensor(value: Any, name: str) -> None:
    """Refuse everything but a dense tensor."""
    if not isinstance(value, torch.Tensor):
        raise BadInput(f"{name} is a {type(value).__name__}; a torch tensor is expected")
    if value.is_nested:
        raise BadInput(
            f"{name} is a nested tensor; a dense one is expected: pad its sequences and give their lengths, or join them and "
            f"give cu_seqlens"
        )
    if value.layout is not torch.strided:
        raise BadInput(f"{name} has layout {value.layout}; a dense tensor is expected, which to_dense() returns")


def integers_in(value: Any, name: str) -> Any:
    """Return lengths or boundaries as a tensor, those in a list or tuple as int64 in host memory; None stays None."""
    if isinstance(value, list | tuple):
        return torch.tensor(listed_integers(value, name), dtype=torch.int64)
    if value is not None and not isinstance(value, torch.Tensor):
        raise BadInput(f"{name} is a {type(value).__name__}; a torch tensor or a list of integers is expected")
    return value


def marks_in(resets: Any) -> Any:
    """Return resets as bool, see `sequences.as_marks`; None stays None.

    Raises BadInput for other values than 0 and 1, and for a floating dtype where a compiler knows no values.
    """
    if not isinstance(resets, torch.Tensor) or not resets.is_floating_point():
        return resets
    if torch.compiler.is_compiling():
        raise BadInput(f"resets has dtype {resets.dtype} within torch.compile, which knows no values; give resets.bool()")
    return resets == 1 if resets.is_meta else as_marks(resets)


def autocasts(x: torch.Tensor) -> bool:
    """Say whether autocast is on where a tensor is; it knows nothing of tensors without values."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def without_values(value: Any, name: str) -> Array:
    """Describe a tensor beside an x on the meta device, as if without gaps: it has a shape and no memory."""
    check_tensor(value, name)
    if not value.is_meta:
        if name in ("lengths", "cu_seqlens"):
            return inspect(value, name)
        raise BadInput(f"{name} is on {value.device}, but x is on meta; move one of them")
    shape = tuple(value.shape)
    return Array(name, "torch", value, 0, shape, contiguous_strides(shape), str(value.dtype).removeprefix("torch."), _NO_DEVICE)
