"""`front.lfilter` and `sosfilt`: scipy's filters, and the gradients of the same equation in `lax.scan`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support.drawn_filters import filters, of_scipy
from support.examples import examples
from support.host_code import BY, RUNNERS, natively
from support.needed import needed

from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")
signal = pytest.importorskip("scipy.signal")

RANDOM = np.random.default_rng(0)


def by_lax_scan(x: Any, a: Any, b: Any, zi: Any) -> Any:
    """The transposed direct form II, step by step."""
    order = max(a.shape[-1], b.shape[-1]) - 1
    a, b = (jnp.pad(one, [(0, 0)] * (one.ndim - 1) + [(0, order + 1 - one.shape[-1])]) for one in (a, b))
    b, a = b / a[..., :1], a / a[..., :1]

    def step(state: Any, x: Any) -> Any:
        y = b[..., 0] * x + (state[..., 0] if order else 0)
        later = jnp.concatenate([state[..., 1:], jnp.zeros_like(state[..., :1])], -1)
        return later + b[..., 1:] * x[..., None] - a[..., 1:] * y[..., None], y

    zf, y = jax.lax.scan(step, zi, jnp.moveaxis(x, -1, 0))
    return jnp.moveaxis(y, 0, -1), zf


@pytest.mark.parametrize("runner", RUNNERS)
@settings(max_examples=examples(5), deadline=None)
@given(drawn=filters())
def test_a_filter_is_scipys(runner: str, drawn: dict[str, Any]) -> None:
    expected, last = of_scipy(drawn)
    with BY[runner]():
        found = front.lfilter(**drawn)
        y, zf = (found, None) if drawn["zi"] is None else found
        size = 1 + np.abs(expected).max(initial=0)
        np.testing.assert_allclose(y, expected, rtol=0, atol=1e-9 * size)
    if zf is not None:
        np.testing.assert_allclose(zf, last, rtol=0, atol=1e-8 * (size + np.abs(last).max(initial=0)))


def drawn_arrays(orders: tuple[int, int], channels: int | None, time: int, elements: int) -> list[Any]:
    """Return x, a, b and zi of so many elements."""
    own = () if channels is None else (channels,)
    a, b = (RANDOM.uniform(-0.5, 0.5, (elements, *own, order + 1)) / order for order in orders)
    a[..., 0] = RANDOM.uniform(1, 2, a.shape[:-1])
    shape = (elements, 2, 3)
    return [RANDOM.normal(size=(*shape, time)), a, b, RANDOM.normal(size=(*shape, max(orders)))]


# (orders of a and b, channels with coefficients of their own, steps), and the axes that are mapped.
SIZES = [((2, 1), None, 7), ((1, 3), 3, 2)]
AXES = [None, (0, None, None, 0), (None, -1, 0, None), (0, 0, 0, 0), (None, None, 0, 1)]
# Of all of them, those of each day.
EVERY_DAY = {("native", 1, 1), ("native", 0, 2), ("numpy", 1, 0)}
CASES = [
    pytest.param(runner, *size, axes, marks=() if (runner, i, j) in EVERY_DAY else pytest.mark.matrix_full)
    for runner in RUNNERS
    for i, size in enumerate(SIZES)
    for j, axes in enumerate(AXES)
]


@pytest.mark.parametrize(("runner", "orders", "channels", "time", "axes"), CASES)
def test_values_and_gradients_are_those_of_lax_scan(runner: str, orders: Any, channels: Any, time: int, axes: Any) -> None:
    arrays = drawn_arrays(orders, channels, time, 1 if axes is None else 4)
    mapped = (None,) * 4 if axes is None else axes
    arrays = [one[0] if axis is None else np.moveaxis(one, 0, axis) for one, axis in zip(arrays, mapped, strict=True)]

    def total(lfilter: Any) -> Any:
        def of(*arrays: Any) -> Any:
            y, zf = lfilter(*arrays)
            return (y**2).sum() + (zf**3).sum(), (y, zf)

        run = jax.value_and_grad(of, (0, 1, 2, 3), has_aux=True)
        return jax.jit(run if axes is None else jax.vmap(run, axes))(*arrays)

    with BY[runner]():
        found = jax.block_until_ready(total(front.lfilter))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9), found, total(by_lax_scan))


@pytest.mark.parametrize("has_state", [True, False])
def test_sections_are_scipys(has_state: bool) -> None:
    sos, x = signal.butter(5, 0.2, output="sos"), RANDOM.normal(size=(2, 3, 90))
    zi = RANDOM.normal(size=(len(sos), 2, 3, 2)) if has_state else None
    expected = signal.sosfilt(sos, x, zi=zi)
    with natively():
        found = jax.jit(front.sosfilt)(sos, x, zi)
        of_channels = front.sosfilt(np.repeat(sos[None], 3, axis=0), x, zi)
    for results in (found, of_channels):
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=0, atol=1e-12), results, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_without_x64_arithmetic_is_in_float64_all_the_same(dtype: str) -> None:
    # A double pole of 0.999, whose states float32 loses: 1e-3 of the largest value after as many steps.
    a, b = np.array([1, -2 * 0.999, 0.999**2], "f"), np.array([1e-6, 0, 0], "f")
    with jax.enable_x64(False):
        x = jnp.asarray(RANDOM.normal(size=(2, 1 << 14)), dtype)
        y, zf = jax.jit(front.lfilter)(x, a, b, np.zeros((2, 2), "f"))
        gradient = jax.grad(lambda a: front.lfilter(x, a, b).astype("float32").sum())(a)
    assert (y.dtype, zf.dtype, gradient.dtype) == (x.dtype, "float32", "float32")
    expected, last = signal.lfilter(b.astype("d"), a.astype("d"), np.asarray(x).astype("d"), zi=np.zeros((2, 2)))
    largest, info = np.abs(expected).max(), jnp.finfo(dtype)
    assert np.abs(np.asarray(y).astype("d") - expected).max() <= float(info.eps) / 2 * largest + float(info.tiny)
    assert np.abs(zf - last).max() <= 1e-7 * np.abs(last).max()


@pytest.mark.parametrize("shape", [(0, 3, 9), (2, 3, 0), (0, 0)])
def test_signals_without_elements_have_gradients(shape: tuple[int, ...]) -> None:
    leaves = [np.ones(size) for size in (shape, (3,), (2,), (*shape[:-1], 2))]
    y, zf = front.lfilter(*leaves)
    assert y.shape == shape and zf.shape == leaves[3].shape and (np.asarray(zf) == 1).all()
    gradients = jax.grad(lambda *leaves: sum(one.sum() for one in front.lfilter(*leaves)), (0, 1, 2, 3))(*leaves)
    assert [gradient.shape for gradient in gradients] == [leaf.shape for leaf in leaves]
    of_none = jax.vmap(lambda x: front.lfilter(x, leaves[1], leaves[2]))(np.ones((0, 2, 5)))
    assert of_none.shape == (0, 2, 5)


X, A, B = np.zeros((2, 3, 9)), np.array([1.0, -0.5]), np.array([1.0, 0.5, 0.25])


@pytest.mark.parametrize("cut", [1, 7])
def test_a_signal_cut_anywhere_is_filtered_as_a_whole(cut: int) -> None:
    x = RANDOM.normal(size=X.shape)
    whole, last = front.lfilter(x, A, B, np.zeros((2, 3, 2)))
    first, state = front.lfilter(x[..., :cut], A, B, np.zeros((2, 3, 2)))
    second, state = front.lfilter(x[..., cut:], A, B, state)
    np.testing.assert_allclose(jnp.concatenate([first, second], -1), whole, rtol=0, atol=1e-12)
    np.testing.assert_allclose(state, last, rtol=0, atol=1e-12)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"a": np.array([0.0, 1.0])}, "a[0] is 0, by which the coefficients of a filter are divided"),
    ({"zi": np.zeros((2, 3, 3))}, "zi has shape [2, 3, 3]; [2, 3, 2] is expected"),
    ({"a": np.zeros((2, 2, 2))}, "a has shape [2, 2, 2]; [n + 1] is expected, or [C, n + 1] for x [..., C, T]"),
    ({"b": np.zeros(0)}, "b has shape [0]; [n + 1] is expected"),
    ({"b": np.ones((2, 3))}, "b has shape [2, 3], coefficients of 2 channels, but x has shape [2, 3, 9]"),
    ({"x": np.zeros(())}, "x has no axes; [..., T] is expected"),
    ({"x": np.zeros((2, 3), int)}, "x has dtype int64; float64, float32, float16 or bfloat16 is expected"),
    ({"a": [1.0, 2.0]}, "a is a list; a JAX or NumPy array is expected"),
]


@pytest.mark.parametrize(("changed", "words"), BAD)
def test_bad_input_is_one_sentence(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        front.lfilter(**{"x": X, "a": A, "b": B, **changed})
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_what_only_a_program_sees_arrives_as_its_error() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape("a[0] is 0")):
        jax.block_until_ready(jax.jit(front.lfilter)(X, np.array([0.0, 1.0]), B))
    for derivative in (
        lambda: jax.hessian(lambda a: front.lfilter(X, a, B).sum())(A),
        lambda: jax.jvp(front.lfilter, (X, A, B), (X, A, B)),
    ):
        with pytest.raises((BadInput, TypeError), match=r"gradient of a gradient|forward-mode"):
            derivative()


def test_sections_of_a_wrong_shape_are_refused() -> None:
    x = np.zeros((2, 9))
    for sos, zi, words in (
        (np.zeros(5), None, "sos has shape [5]; [sections, 6] is expected"),
        (np.ones((2, 6)), np.zeros((2, 2)), "zi has shape [2, 2]; [2, 2, 2] is expected"),
        (np.zeros((2, 6)), None, "a[0] is 0"),
    ):
        with pytest.raises(BadInput, match=f"^{re.escape(words)}"):
            front.sosfilt(sos, x, zi)
