"""The products of an input projection and of its gradients: fp32 (fp64) accumulation, all arrays contiguous."""

from __future__ import annotations

import math
from collections.abc import Iterator

from minrnn_gen.call.array import Array
from minrnn_gen.gpu.cublas import Matrix, Product, factor
from minrnn_gen.program.number import Loop


def projection(x: Array, weight: Array, result: Array, time_is_last: bool, in_tf32: bool) -> Product:
    """Return result = x weightᵀ over the last axis of x.

    x [rows..., I], weight [N, I], result [rows..., N]; where `time_is_last`, x [B, I, T] and result [B, N..., T]. `in_tf32` as
    `Product` has it.
    """
    outputs, inputs = weight.shape
    if time_is_last:
        batch, _, time = x.shape
        return _product((outputs, time, inputs), factor(weight, inputs), factor(x, time, inputs * time), result, in_tf32, batch)
    return _product((_rows(x), outputs, inputs), factor(x, inputs), factor(weight, inputs, transposed=True), result, in_tf32)


def projection_of_piece(x: Array, weight: Array, result: Array, in_tf32: bool) -> Product:
    """Return result = x weightᵀ of a piece of time, as `projection`; x [rows, t, I] and result [rows, t, G, H] are views.

    The two axes in front are batch and time, in either order.
    """
    if x.is_contiguous and result.is_contiguous:
        return projection(x, weight, result, False, in_tf32)
    outputs, inputs = weight.shape
    rows, steps = x.shape[:2]
    left, to = _rows_of_piece(x, inputs), _rows_of_piece(result, outputs)
    return Product(steps, outputs, inputs, left, factor(weight, inputs, transposed=True), to, rows, in_tf32=in_tf32)


def x_gradient_of_piece(gradient: Array, weight: Array, dx: Array, in_tf32: bool) -> Product:
    """Return dx = gradient weight of a piece of time, as `x_gradient`; arrays as in `projection_of_piece`."""
    if gradient.is_contiguous and dx.is_contiguous:
        return x_gradient(gradient, weight, dx, False, in_tf32)
    outputs, inputs = weight.shape
    rows, steps = dx.shape[:2]
    left, to = _rows_of_piece(gradient, outputs), _rows_of_piece(dx, inputs)
    return Product(steps, inputs, outputs, left, factor(weight, inputs), to, rows, in_tf32=in_tf32)


def _rows_of_piece(array: Array, width: int) -> Matrix:
    return factor(array, width, array.strides[0])


def x_gradient(gradient: Array, weight: Array, dx: Array, time_is_last: bool, in_tf32: bool) -> Product:
    """Return dx = gradient weight, the gradient of x in `projection` from the gradient of its result; arrays as there."""
    outputs, inputs = weight.shape
    if time_is_last:
        batch, _, time = dx.shape
        transposed = factor(weight, inputs, transposed=True)
        return _product((inputs, time, outputs), transposed, factor(gradient, time, outputs * time), dx, in_tf32, batch)
    return _product((_rows(dx), inputs, outputs), factor(gradient, outputs), factor(weight, inputs), dx, in_tf32)


def weight_gradient(
    gradient: Array, x: Array, dweight: Array, time_is_last: bool, in_tf32: bool, loop: Loop = range
) -> Iterator[Product]:
    """Yield the products that add up to dweight = gradientᵀ x, the gradient of the weight in `projection`.

    dweight [N, I] in the arithmetic dtype. Where `time_is_last`, a `loop` adds up the sequences one by one.
    """
    outputs, inputs = dweight.shape
    if not time_is_last:
        turned = factor(gradient, outputs, transposed=True)
        yield _product((outputs, inputs, _rows(x)), turned, factor(x, inputs), dweight, in_tf32)
        return
    batch, _, time = x.shape

    def of_row(row: int, adds: bool) -> Product:
        left, right = factor(gradient.narrowed(0, row, 1), time), factor(x.narrowed(0, row, 1), time, transposed=True)
        return _product((outputs, inputs, time), left, right, dweight, in_tf32, adds=adds)

    yield of_row(0, adds=False)
    for row in loop(1, batch):
        yield of_row(row, adds=True)


def _product(
    sizes: tuple[int, int, int],
    left: Matrix,
    right: Matrix,
    result: Array,
    in_tf32: bool,
    batch: int = 1,
    adds: bool = False,
) -> Product:
    """Return result [m, n] = left right, `sizes` being m, n and k."""
    m, n, k = sizes
    return Product(m, n, k, left, right, factor(result, n, m * n), batch, adds, in_tf32)


def _rows(array: Array) -> int:
    return math.prod(array.shape[:-1])
