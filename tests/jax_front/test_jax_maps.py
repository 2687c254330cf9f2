"""`front.scan` of maps: what the scan of NumPy arrays gives, with gradients, under jit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.needed import needed

import minrnn_gen
from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
front = needed("minrnn_gen.jax")

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("form", ["rotation", "dual", "full"])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_values_and_gradients_are_those_of_numpy_arrays(form: Any, is_constant: bool, reverse: bool) -> None:
    shape = (2, 7, 3, 2)
    of_a = shape[2:] if is_constant else shape
    a = 0.6 * RANDOM.standard_normal((*of_a, 2) if form == "full" else of_a)
    b, h0, dy = RANDOM.standard_normal(shape), RANDOM.standard_normal((2, 3, 2)), RANDOM.standard_normal(shape)
    y, final = minrnn_gen.scan(a, b, h0, form=form, reverse=reverse)
    expected = minrnn_gen.scan_backward(a, y, dy, h0, 2 * final, form=form, reverse=reverse)

    def total(*arrays: Any) -> Any:
        y, final = front.scan(*arrays, form=form, reverse=reverse)
        return (y * dy).sum() + (final**2).sum(), (y, final)

    (_, results), gradients = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))(a, b, h0)
    for found, wanted in zip((*results, *gradients), (y, final, *expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("axes", [(0, None, None), (None, 1, 0), (-1, 0, None)], ids=str)
def test_full_maps_under_vmap_are_one_element_after_another(axes: Any) -> None:
    of_one = RANDOM.standard_normal((4, 3, 3)), RANDOM.standard_normal((2, 6, 4, 3)), RANDOM.standard_normal((2, 4, 3))
    several = [np.stack([one, one / 2, -one]) for one in of_one]
    arrays = [
        one if axis is None else np.moveaxis(each, 0, axis) for one, each, axis in zip(of_one, several, axes, strict=True)
    ]

    def total(a: Any, b: Any, h0: Any) -> Any:
        y, final = front.scan(a / 4, b, h0, form="full")
        return (y**2).sum() + (final**3).sum(), y

    run = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))
    mapped = jax.vmap(run, axes)(*arrays)
    for index in range(3):
        element = [one if axis is None else each[index] for one, each, axis in zip(of_one, several, axes, strict=True)]
        own = jax.tree.map(lambda array, index=index: array[index], mapped)
        jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10), own, run(*element))


def test_full_maps_carry_float64_without_x64() -> None:
    a, b = np.array([[2 * 0.999, -(0.999**2)], [1, 0]], "f"), np.zeros((1, 4096, 2), "f")
    b[..., 0] = 1e-6
    with jax.enable_x64(False):
        y, final = jax.jit(lambda a, b: front.scan(a, b, form="full"))(a, b)
        da = jax.grad(lambda a: front.scan(a, b, form="full")[1].sum())(a)
    expected, last = minrnn_gen.scan(a, b, form="full")
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(final, last.astype("f"))
    assert (final.dtype, da.dtype, da.shape) == ("float32", "float32", (2, 2))


def test_bad_input_is_one_sentence() -> None:
    good: dict[str, Any] = {"a": np.zeros((2, 5, 2)), "b": np.zeros((2, 5, 2)), "form": "dual"}
    for changed, words in (
        ({"form": "full"}, r"a has shape \[2, 5, 2\]; \[2, 5, 2, 2\] is expected, or \[2, 2\] for all steps"),
        ({"form": "other"}, "form is 'other'; one of scalar, rotation, dual, full"),
        ({"axis_name": "time"}, "axis_name is given with form 'dual'"),
        ({"a": np.zeros((5, 2))}, r"a has shape \[5, 2\]; \[2, 5, 2\], that of b, is expected"),
    ):
        with pytest.raises(BadInput, match=words):
            front.scan(**{**good, **changed})
