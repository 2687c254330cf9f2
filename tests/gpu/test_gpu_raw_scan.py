"""Raw scans on the GPU against the same ones on the host in double precision, gates kept for thousands of steps."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy
import pytest
from support.device_arrays import poison

import minrnn_gen
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.precision import STORAGE_DTYPES, Precision, precision_storing

pytestmark = pytest.mark.gpu

# (shape, axis): time within and at the ends, few and many channels, one launch and several parts of one.
SHAPES = (
    ((3, 257, 130), 1),
    ((5, 7, 1025), 2),
    ((2049,), 0),
    ((130, 2, 3, 40), 0),
    ((2, 0, 8), 1),
    ((2, 1, 8), 1),
    ((0, 9, 8), 1),
)


def drawn(shape: tuple[int, ...], dtype: str, log_a: bool) -> tuple[Any, Any, Any]:
    """Return (a, b, dy) in the storage dtype; |a| is between 0.99 and 1, or -1 and 1 in turn with the channels."""
    random = numpy.random.default_rng(0)
    magnitude = numpy.where(random.integers(0, 2, shape[-1]), random.uniform(0.99, 1, shape), random.uniform(0, 1, shape))
    a, b, dy = numpy.log(magnitude) if log_a else magnitude, random.normal(size=shape), random.normal(size=shape)
    if dtype.startswith("complex"):
        a, b, dy = (one * numpy.exp(2j * numpy.pi * random.uniform(size=shape)) for one in (a, b, dy))
    return tuple(one.astype(numpy_dtype(dtype)) for one in (a, b, dy))  # type: ignore[return-value]


def wide(array: Any) -> Any:
    return array.astype(numpy.complex128 if numpy.iscomplexobj(array) else numpy.float64)


def assert_near(got: Any, exact: Any, precision: Precision, roundoff: float) -> None:
    """A state keeps at most a few hundred steps, and each adds a few roundoffs of the arithmetic."""
    assert got.shape == exact.shape
    largest = abs(exact).max() if exact.size else 0
    assert (abs(wide(got.get()) - exact) <= 2 * roundoff * abs(exact) + 2048 * precision.arithmetic_roundoff * largest).all()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", STORAGE_DTYPES)
def test_a_device_scans_as_the_host(cupy: ModuleType, dtype: str, shape: tuple[int, ...], axis: int, reverse: bool) -> None:
    precision = precision_storing(dtype)
    assert precision is not None
    log_a = not dtype.startswith("complex") and reverse
    options: dict[str, Any] = {"axis": axis, "reverse": reverse, "log_a": log_a}
    a, b, dy = drawn(shape, dtype, log_a)
    state_shape = tuple(numpy.delete(shape, axis))
    h0 = numpy.full(state_shape, 0.5, numpy_dtype(precision.arithmetic_dtype))
    poison(cupy, (shape, a.dtype), (shape, a.dtype), (state_shape, h0.dtype))
    y, final = minrnn_gen.scan(*map(cupy.asarray, (a, b, h0)), **options)
    exact, exact_final = minrnn_gen.scan(*map(wide, (a, b, h0)), **options)
    assert y.dtype == a.dtype and final.dtype == h0.dtype
    assert_near(y, exact, precision, precision.storage_roundoff)
    assert_near(final, exact_final, precision, 0.0)

    given = (a, y.get(), dy, h0, 2 * h0)
    gradients = minrnn_gen.scan_backward(*map(cupy.asarray, given), **options)
    expected = minrnn_gen.scan_backward(*map(wide, given), **options)
    for index, (got, one) in enumerate(zip(gradients, expected, strict=True)):
        assert_near(got, one, precision, precision.storage_roundoff if index < 2 else 0.0)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_strides_are_walked_or_copied(cupy: ModuleType, dtype: str) -> None:
    values = cupy.asarray(drawn((4, 2, 300, 2, 48), dtype, False)[1])
    values /= abs(values).max()
    arrangements = (
        (values[:, 0, :, 0], values[:, 0, :, 1]),
        (values[:, 0, :, 0], values[:, 1, ::-1, 1]),
        (values[:, 0, :, 0, ::2], values[:, 1, :, 1, 1::2]),
        (values[0, 0, :, 0].T, values[0, 1, :, 0].T),
    )
    for a, b in arrangements:
        for axis in range(a.ndim):
            one = minrnn_gen.scan(a, b, axis=axis)
            other = minrnn_gen.scan(cupy.ascontiguousarray(a), cupy.ascontiguousarray(b), axis=axis)
            assert all(bool(cupy.allclose(first, second, rtol=1e-5)) for first, second in zip(one, other, strict=True))


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((2, 300, 6), 1), ((5, 300), 1), ((300, 3, 40), 0)])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_torch_agrees_about_complex_gradients(dtype: str, shape: tuple[int, ...], axis: int, reverse: bool) -> None:
    """Autograd of the plain recurrence in complex128; relative error of each gradient as a whole."""
    torch = pytest.importorskip("torch")
    tolerance = {"complex64": 2.0**-17, "complex128": 2.0**-44}[dtype]
    given = [torch.as_tensor(one, device="cuda") for one in drawn(shape, dtype, False)]
    a, b, dy = given
    h0, dfinal = b.select(axis, 1) * 2, dy.select(axis, 1) / 2
    exact = [one.to(torch.complex128).requires_grad_() for one in (a, b, h0)]
    state, states = exact[2], {}
    for t in reversed(range(shape[axis])) if reverse else range(shape[axis]):
        state = exact[0].select(axis, t) * state + exact[1].select(axis, t)
        states[t] = state
    outputs = torch.stack([states[t] for t in range(shape[axis])], axis)
    wanted = [one.to(torch.complex128) for one in (dy, dfinal)]
    expected = torch.autograd.grad((outputs, state), exact, wanted)
    with torch.no_grad():
        y, _ = minrnn_gen.scan(a, b, h0, axis=axis, reverse=reverse)
        found = minrnn_gen.scan_backward(a, y, dy, h0, dfinal, axis=axis, reverse=reverse)
    for one, other in zip((y, *found), (outputs.detach(), *expected), strict=True):
        error = torch.linalg.vector_norm(one.to(torch.complex128) - other) / torch.linalg.vector_norm(other)
        assert float(error) <= tolerance
