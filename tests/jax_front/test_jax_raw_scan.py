"""`front.scan`: what `lax.scan` gives, with its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.needed import needed

import minrnn_gen

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
jnp = pytest.importorskip("jax.numpy")
front = needed("minrnn_gen.jax")

RANDOM = np.random.default_rng(0)


def by_lax_scan(a: Any, b: Any, h0: Any, *, log_a: bool, reverse: bool, axis: int) -> Any:
    a, b = (jnp.moveaxis(array, axis, 0) for array in (a, b))

    def body(h: Any, inputs: Any) -> Any:
        h = inputs[0] * h + inputs[1]
        return h, h

    final, y = jax.lax.scan(body, h0, (jnp.exp(a) if log_a else a, b), reverse=reverse)
    return jnp.moveaxis(y, 0, axis), final


def drawn(shape: tuple[int, ...], dtype: str) -> Any:
    values = RANDOM.standard_normal((2, *shape)) / 2
    return (values[0] + 1j * values[1] if dtype.startswith("complex") else values[0]).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "log_a", "reverse", "axis", "is_mapped"),
    [
        ("float64", False, False, 1, False),
        ("float64", True, True, 0, True),
        ("complex128", False, True, -1, False),
        ("complex128", False, False, 1, True),
    ],
)
def test_values_and_gradients_are_those_of_lax_scan(dtype: str, log_a: bool, reverse: bool, axis: int, is_mapped: bool) -> None:
    shape = (3, 4, 5)
    state_shape = tuple(np.delete(shape, axis))
    a, b, h0 = drawn(shape, dtype), drawn(shape, dtype), drawn(state_shape, dtype)
    weight, weight_final = drawn(shape, dtype), drawn(state_shape, dtype)
    keywords: dict[str, Any] = {"log_a": log_a, "reverse": reverse, "axis": axis}

    def total(scan: Any) -> Any:
        def real(a: Any, b: Any, h0: Any) -> Any:
            y, final = scan(a, b, h0, **keywords)
            return ((y * weight) ** 2).sum().real + (final * weight_final).sum().real

        if is_mapped:  # the second one over its last axis, the third one not at all
            run = jax.vmap(jax.value_and_grad(real, (0, 1, 2)), (0, -1, None))
            return jax.jit(run)(np.stack([a, b]), np.stack([b, a], axis=-1), h0)
        return jax.jit(jax.value_and_grad(real, (0, 1, 2)))(a, b, h0)

    ours, expected = total(front.scan), total(by_lax_scan)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11), ours, expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_results_are_those_of_numpy_calls(dtype: str) -> None:
    a, b = (jnp.asarray(drawn((2, 9, 3), "float32"), dtype) for _ in range(2))
    y, final = jax.jit(front.scan)(a, b)
    expected = minrnn_gen.scan(np.asarray(a), np.asarray(b))
    np.testing.assert_array_equal(y, expected[0])
    np.testing.assert_array_equal(final, expected[1])
    da, db = jax.grad(lambda a, b: front.scan(a, b)[0].astype(jnp.float32).sum(), (0, 1))(a, b)
    gradients = minrnn_gen.scan_backward(
        np.asarray(a), expected[0], np.ones_like(expected[0]), None, np.zeros_like(expected[1])
    )
    np.testing.assert_array_equal(da, gradients[0])
    np.testing.assert_array_equal(db, gradients[1])


def test_nothing_to_scan_leaves_the_initial_state() -> None:
    y, final = jax.jit(front.scan)(np.zeros((2, 0, 3)), np.zeros((2, 0, 3)), np.ones((2, 3)))
    assert y.shape == (2, 0, 3) and (np.asarray(final) == 1).all()
