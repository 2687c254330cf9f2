"""Products outside the recurrence of calls on host arrays, by the caller's library: torch for tensors, else NumPy's BLAS."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy

from minrnn_gen.call.arguments import Call
from minrnn_gen.call.array import Array, as_numpy, numpy_dtype
from minrnn_gen.gpu import memory

Matrix = Any
"""An array of a library: a tensor, or one of NumPy."""


def without_autocast() -> AbstractContextManager[Any]:
    """Return a context in which torch multiplies in the dtypes of its operands, whatever a program's autocast says."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "is_autocast_enabled") or not torch.is_autocast_enabled("cpu"):
        return nullcontext()
    context: AbstractContextManager[Any] = torch.autocast("cpu", enabled=False)
    return context


def in_library(array: Array, dtype: str) -> Matrix:
    """Return a host array in a dtype, as its library has it, itself where it has that already."""
    if array.library == "torch":
        return _tensor(array).to(getattr(sys.modules["torch"], dtype))
    return as_numpy(array).astype(numpy_dtype(dtype), copy=False)


def project(call: Call, weight: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return x times the weight in a dtype, axes of `shape` in place of the inputs."""
    x, matrix = _rows_of(in_library(call.x, dtype), call.x_axes), in_library(weight, dtype)
    with without_autocast(), numpy.errstate(all="ignore"):
        product = (x @ matrix.T).reshape((*x.shape[:-1], *shape))
    contiguous = product.contiguous() if call.x.library == "torch" else numpy.ascontiguousarray(product)
    return memory.inspect(contiguous, "x")


def through_projection(call: Call, weight: Array, gradient: Array, reads_x: bool = True) -> tuple[Matrix, Matrix]:
    """Return the gradients of x, where somebody reads it, and of the weight, given that of the pre-activations."""
    dtype, lengths = gradient.dtype, call.sequences.lengths
    x = _rows_of(in_library(call.x, dtype), call.x_axes)
    outputs = in_library(gradient, dtype).reshape((*x.shape[:-1], weight.shape[0]))
    if lengths is not None:
        # What lies beyond a length has no gradient, but a NaN there times zero would have.
        within = numpy.arange(call.time)[:, None] < as_numpy(lengths)
        within = (within if call.x_axes.index("t") < call.x_axes.index("b") else within.T)[..., None]
        x = _selected(x, within, call.x.library)
    with without_autocast(), numpy.errstate(all="ignore"):
        rows = x.reshape((-1, x.shape[-1]))
        dweight = outputs.reshape((-1, weight.shape[0])).T @ rows
        if not reads_x:
            return None, dweight
        dx = memory.new_array(call.x, call.x.shape, call.x.dtype)
        _rows_of(_whole(dx), call.x_axes)[...] = outputs @ in_library(weight, dtype)
        return dx.owner, dweight


def recurrent_gradient(dproducts: Matrix, outputs: Matrix, heads: int) -> Matrix:
    """Return the gradient of R [Gr, N, D, D], given those of the products [.., Gr, H] and the outputs [.., H] before them."""
    gates, hidden = dproducts.shape[-2:]
    units = hidden // heads
    by_head = dproducts.reshape((-1, gates, heads, units)), outputs.reshape((-1, heads, units))
    with without_autocast(), numpy.errstate(all="ignore"):
        products = [
            (by_head[0][:, :, head].reshape((-1, gates * units)).T @ by_head[1][:, head]).reshape((gates, 1, units, units))
            for head in range(heads)
        ]
    return products[0] if heads == 1 else _joined(products, 1)


def stacked(gradients: Sequence[Matrix]) -> Matrix:
    """Return the gradients of both directions as one, in their library."""
    return _joined([gradient[None] for gradient in gradients], 0)


def _joined(parts: Sequence[Matrix], axis: int) -> Matrix:
    is_torch = hasattr(parts[0], "movedim")
    return sys.modules["torch"].cat(parts, axis) if is_torch else numpy.concatenate(parts, axis)


def _tensor(array: Array) -> Matrix:
    """View an array as a tensor; of a view, the owner is the whole."""
    whole = array.owner.detach()
    if (tuple(whole.shape), tuple(whole.stride())) == (array.shape, array.strides):
        return whole
    offset = whole.storage_offset() + (array.pointer - whole.data_ptr()) // array.itemsize
    return whole.as_strided(array.shape, array.strides, offset)


def _whole(array: Array) -> Matrix:
    return array.owner if array.library == "torch" else as_numpy(array)


def _rows_of(x: Matrix, axes: str) -> Matrix:
    """View x with its inputs last."""
    if "i" not in axes or axes[-1] == "i":
        return x
    return x.movedim(axes.index("i"), -1) if hasattr(x, "movedim") else numpy.moveaxis(x, axes.index("i"), -1)


def _selected(x: Matrix, within: Any, library: str) -> Matrix:
    """Return x where it is within its sequence, and 0 elsewhere."""
    if library == "torch":
        return x.masked_fill(sys.modules["torch"].from_numpy(~within), 0)
    return numpy.where(within, x, x.dtype.type(0))
