"""The products of an input projection and of its gradients: fp32 (fp64) accumulation, all arrays contiguous."""

from __future__ import annotations

import math

from minrnn_gen.call.array import Array
from minrnn_gen.gpu.cublas import Matrix, Product, factor


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


def x_gradient(gradient: Array, weight: Array, dx: Array, time_is_last: bool, in_tf32: bool) -> Product:
    """Return dx = gradient weight, the gradient of x in `projection`, given that of its result; arrays as there."""
    outputs, inputs = weight.shape
    if time_is_last:
        batch, _, time = dx.shape
        transposed = factor(weight, inputs, transposed=True)
        return _product((inputs, time, outputs), transposed, factor(gradient, time, outputs * time), dx, in_tf32, batch)
    return _product((_rows(dx), inputs, outputs), factor(gradient, outputs), factor(weight, inputs), dx, in_tf32)


def weight_gradient(gradient: Array, x: Array, dweight: Array, time_is_last: bool, in_tf32: bool) -> list[Product]:
    """Return the products that add up to dweight = gradientᵀ x, the gradient of the weight in `projection`.

    dweight [N, I] in the arithmetic dtype. Where `time_is_last` the sequences are added up one after the other.
    """
    outputs, inputs = dweight.shape
    if not time_is_last:
        turned = factor(gradient, outputs, transposed=True)
        return [_product((outputs, inputs, _rows(x)), turned, factor(x, inputs), dweight, in_tf32)]
    batch, _, time = x.shape
    parts = ((gradient.narrowed(0, row, 1), x.narrowed(0, row, 1)) for row in range(batch))
    return [
        _product(
            (outputs, inputs, time), factor(left, time), factor(right, time, transposed=True), dweight, in_tf32, adds=row > 0
        )
        for row, (left, right) in enumerate(parts)
    ]


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
