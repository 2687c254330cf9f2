"""Products outside the recurrence of calls on host arrays, by the caller's library: torch for tensors, else NumPy's BLAS."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy

from minrnn_gen.gpu.memory import cast, in_large_pages, is_large

Matrix = Any
"""An array of a library: a tensor, or one of NumPy."""


def without_autocast() -> AbstractContextManager[Any]:
    """Return a context in which torch multiplies in the dtypes of its operands, whatever a program's autocast says."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "is_autocast_enabled") or not torch.is_autocast_enabled("cpu"):
        return nullcontext()
    context: AbstractContextManager[Any] = torch.autocast("cpu", enabled=False)
    return context


def project(x: Matrix, weight: Matrix, axes: str, dtype: str, shape: tuple[int, ...]) -> Matrix:
    """Return x, whose axes have the letters `axes`, times the weight in a dtype; its inputs become axes of `shape`."""
    rows, matrix = _rows_of(_in_dtype(x, dtype), axes), _in_dtype(weight, dtype)
    with without_autocast(), numpy.errstate(all="ignore"):
        product = _times(rows, matrix.T).reshape((*rows.shape[:-1], *shape))
    return product.contiguous() if _is_tensor(product) else numpy.ascontiguousarray(product)


def projected_rows(shape: tuple[int, ...], x: Matrix, weight: Matrix) -> Matrix:
    """Return tensors x [.., inputs] times the transposed weight [outputs, inputs], in a shape."""
    rows, (outputs, inputs) = x.numel() // weight.shape[1], weight.shape
    if is_large((rows, outputs), x.dtype):
        return _multiplied(x.view(rows, inputs), weight.t()).view(shape)
    return sys.modules["torch"]._C._nn.linear(x, weight).view(shape)


def project_steps(x: Matrix, weight: Matrix, product: Matrix, axis: int, first: int, count: int) -> None:
    """Multiply `count` steps of x, from `first` on along an axis, by the transposed weight, into a large enough tensor."""
    outputs, inputs = weight.shape
    steps = x.narrow(axis, first, count).reshape(-1, inputs)
    torch = sys.modules["torch"]
    with torch.no_grad():
        torch.mm(steps, weight.t(), out=product.view(-1)[: steps.shape[0] * outputs].view(-1, outputs))


def multiplied(
    columns: tuple[int, int], shape: tuple[int, ...], first: Matrix, second: Matrix, is_transposed: bool = True
) -> Matrix:
    """Return the product of tensors as matrices of so many columns, the first one transposed or not, in a shape."""
    left = first.view(-1, columns[0])
    return _multiplied(left.t() if is_transposed else left, second.view(-1, columns[1])).view(shape)


def weight_gradient(outputs: int, dtype: str, axes: str, gradient: Matrix, x: Matrix, lengths: Any = None) -> Matrix:
    """Return the gradient of a weight [outputs, inputs] from the gradient of the pre-activations."""
    rows = _rows_of(_in_dtype(x, dtype), axes)
    if lengths is not None:
        # Values beyond a length have no gradient, but NaN times zero there would be NaN.
        within = numpy.arange(rows.shape[axes.replace("i", "").index("t")])[:, None] < numpy.asarray(lengths)
        rows = _selected(rows, (within if axes.index("t") < axes.index("b") else within.T)[..., None])
    with without_autocast(), numpy.errstate(all="ignore"):
        return _in_dtype(gradient, dtype).reshape((-1, outputs)).T @ rows.reshape((-1, rows.shape[-1]))


def x_gradient(dtype: str, axes: str, gradient: Matrix, weight: Matrix, x: Matrix) -> Matrix:
    """Return the gradient of x from the gradient of the pre-activations."""
    dx = sys.modules["torch"].empty(x.shape, dtype=x.dtype) if _is_tensor(x) else numpy.empty(x.shape, x.dtype)
    rows = _rows_of(dx, axes)
    outputs = _in_dtype(gradient, dtype).reshape((*rows.shape[:-1], weight.shape[0]))
    with without_autocast(), numpy.errstate(all="ignore"):
        rows[...] = _times(outputs, _in_dtype(weight, dtype))
    return dx


def recurrent_gradient(dproducts: Matrix, outputs: Matrix, heads: int, selected: tuple[Any, ...] = ()) -> Matrix:
    """Return the gradient of R [Gr, N, D, D] from the gradients of the products [.., Gr, H] and the previous outputs [.., H].

    `selected` indexes the part of `dproducts` that counts.
    """
    dproducts = dproducts[selected] if selected else dproducts
    gates, hidden = dproducts.shape[-2:]
    units = hidden // heads
    by_head = dproducts.reshape((-1, gates, heads, units)), outputs.reshape((-1, heads, units))
    with without_autocast(), numpy.errstate(all="ignore"):
        products = [
            (by_head[0][:, :, head].reshape((-1, gates * units)).T @ by_head[1][:, head]).reshape((gates, 1, units, units))
            for head in range(heads)
        ]
    return products[0] if heads == 1 else _joined(products, 1)


def gradient_by_rounds(
    places: Sequence[Sequence[int]], dproducts: Matrix, *multiplied: Matrix, heads: int, selected: tuple[Any, ...] = ()
) -> Matrix:
    """Return the gradient of R, where the gates at each of the `places` have their own operands `multiplied` [.., H]."""
    dproducts = dproducts[selected] if selected else dproducts
    pairs = [(list(of_round), values) for of_round, values in zip(places, multiplied, strict=True) if of_round]
    parts = [recurrent_gradient(dproducts[..., of_round, :], values, heads) for of_round, values in pairs]
    order = [place for of_round, _ in pairs for place in of_round]
    return _joined(parts, 0)[sorted(range(len(order)), key=order.__getitem__)]


def stacked(*gradients: Matrix) -> Matrix:
    """Return the gradients of both directions as one, in their library."""
    return _joined([gradient[None] for gradient in gradients], 0)


def _times(rows: Matrix, matrix: Matrix) -> Matrix:
    """Return rows [.., k] times a matrix [k, n]. NumPy makes a product of each [rows, k]: rows in order are one."""
    if _is_tensor(rows) or not rows.flags.c_contiguous:
        return rows @ matrix
    return (rows.reshape(-1, rows.shape[-1]) @ matrix).reshape((*rows.shape[:-1], matrix.shape[-1]))


def _multiplied(first: Matrix, second: Matrix) -> Matrix:
    """Return the product of two matrices of torch; a large one in large pages."""
    torch = sys.modules["torch"]
    shape = first.shape[0], second.shape[1]
    if not is_large(shape, first.dtype):
        return first.mm(second)
    with torch.no_grad():
        return torch.mm(first, second, out=in_large_pages(shape, first.dtype))


def _joined(parts: Sequence[Matrix], axis: int) -> Matrix:
    return sys.modules["torch"].cat(parts, axis) if _is_tensor(parts[0]) else numpy.concatenate(parts, axis)


def _is_tensor(matrix: Matrix) -> bool:
    return hasattr(matrix, "movedim")


def _in_dtype(matrix: Matrix, dtype: str) -> Matrix:
    """Return an array in a dtype, itself where it has that already."""
    return cast(matrix.detach() if _is_tensor(matrix) else numpy.asarray(matrix), dtype)


def _rows_of(x: Matrix, axes: str) -> Matrix:
    """View x with its inputs last."""
    if "i" not in axes or axes[-1] == "i":
        return x
    return x.movedim(axes.index("i"), -1) if _is_tensor(x) else numpy.moveaxis(x, axes.index("i"), -1)


def _selected(x: Matrix, within: Any) -> Matrix:
    """Return x where it is within its sequence, and 0 elsewhere."""
    if _is_tensor(x):
        return x.masked_fill(sys.modules["torch"].from_numpy(~within), 0)
    return numpy.where(within, x, x.dtype.type(0))
