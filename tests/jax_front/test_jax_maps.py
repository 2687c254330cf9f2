"""`front.scan` of maps that are pairs: what the scan of NumPy arrays gives, with gradients, under jit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minrnn_gen
from minrnn_gen.errors import BadInput

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'jax>=0.10,<0.12'")
front = pytest.importorskip("minrnn_gen.jax")

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("form", ["rotation", "dual"])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_values_and_gradients_are_those_of_numpy_arrays(form: Any, is_constant: bool, reverse: bool) -> None:
    shape = (2, 7, 3, 2)
    a = 0.6 * RANDOM.standard_normal(shape[2:] if is_constant else shape)
    b, h0, dy = RANDOM.standard_normal(shape), RANDOM.standard_normal((2, 3, 2)), RANDOM.standard_normal(shape)
    y, final = minrnn_gen.scan(a, b, h0, form=form, reverse=reverse)
    expected = minrnn_gen.scan_backward(a, y, dy, h0, 2 * final, form=form, reverse=reverse)

    def total(*arrays: Any) -> Any:
        y, final = front.scan(*arrays, form=form, reverse=reverse)
        return (y * dy).sum() + (final**2).sum(), (y, final)

    (_, results), gradients = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))(a, b, h0)
    for found, wanted in zip((*results, *gradients), (y, final, *expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


def test_bad_input_is_one_sentence() -> None:
    good: dict[str, Any] = {"a": np.zeros((2, 5, 2)), "b": np.zeros((2, 5, 2)), "form": "dual"}
    for changed, words in (
        ({"form": "full"}, "form is 'full', whose states are float64"),
        ({"form": "other"}, "form is 'other'; one of scalar, rotation, dual, full"),
        ({"axis_name": "time"}, "axis_name is given with form 'dual'"),
        ({"a": np.zeros((5, 2))}, r"a has shape \[5, 2\]; \[2, 5, 2\], that of b, is expected"),
    ):
        with pytest.raises(BadInput, match=words):
            front.scan(**{**good, **changed})
