"""The products of an input projection and of its gradients, by cuBLAS."""

from __future__ import annotations

import math

from minrnn_gen.arrays import Array
from minrnn_gen.cublas import Matrix, Product, factor, multiply
from minrnn_gen.cuda import current_stream


def project(x: Array, weight: Array, result: Array, time_is_last: bool) -> None:
    """Multiply by cuBLAS on the current stream: result = x weightᵀ over the last axis of x, in fp32 (fp64) accumulation.

    x [rows..., I], weight [N, I], result [rows..., N]; where `time_is_last`, x [B, I, T] and result [B, N..., T]; contiguous.
    """
    outputs, inputs = weight.shape
    if time_is_last:
        batch, _, time = x.shape
        _multiply(x, (outputs, time, inputs), factor(weight, inputs), factor(x, time, inputs * time), result, batch)
    else:
        _multiply(x, (_rows(x), outputs, inputs), factor(x, inputs), factor(weight, inputs, transposed=True), result)


def project_x_gradient(gradient: Array, weight: Array, dx: Array, time_is_last: bool) -> None:
    """Write dx = gradient weight, the gradient of x in `project`, given that of its result; arrays and accuracy as there."""
    outputs, inputs = weight.shape
    if time_is_last:
        batch, _, time = dx.shape
        transposed = factor(weight, inputs, transposed=True)
        _multiply(dx, (inputs, time, outputs), transposed, factor(gradient, time, outputs * time), dx, batch)
    else:
        _multiply(dx, (_rows(dx), inputs, outputs), factor(gradient, outputs), factor(weight, inputs), dx)


def project_weight_gradient(gradient: Array, x: Array, dweight: Array, time_is_last: bool) -> None:
    """Write dweight = gradientᵀ x, the gradient of the weight in `project`; dweight [N, I] in the arithmetic dtype.

    Where `time_is_last` the sequences are added up one after the other.
    """
    outputs, inputs = dweight.shape
    if time_is_last:
        batch, _, time = x.shape
        for sequence in range(batch):
            one, its_x = gradient.narrowed(0, sequence, 1), x.narrowed(0, sequence, 1)
            turned = factor(its_x, time, transposed=True)
            _multiply(x, (outputs, inputs, time), factor(one, time), turned, dweight, adds=sequence > 0)
    else:
        turned = factor(gradient, outputs, transposed=True)
        _multiply(x, (outputs, inputs, _rows(x)), turned, factor(x, inputs), dweight)


def _multiply(
    like: Array, sizes: tuple[int, int, int], left: Matrix, right: Matrix, result: Array, batch: int = 1, adds: bool = False
) -> None:
    """Write result [m, n] = left right, `sizes` being m, n and k, on the stream of `like`."""
    m, n, k = sizes
    product = Product(m, n, k, left, right, factor(result, n, m * n), batch, adds)
    multiply(like.device, current_stream(like), product)


def _rows(array: Array) -> int:
    return math.prod(array.shape[:-1])
