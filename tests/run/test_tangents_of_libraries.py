"""Arrays of a tangent's call in libraries that lack what NumPy has."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support.uncompiled_kernels import compiled_for_host

from minrnn_gen.run.derivatives import SavedCall

BATCH, TIME, INPUTS, HIDDEN = 2, 4, 3, 4


class LikeCuPy:
    """CuPy's namespace over arrays of NumPy: no products of bfloat16, and `where` of 16 bits in float32."""

    __name__ = "cupy"

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def matmul(left: Any, right: Any) -> Any:
        if ml_dtypes.bfloat16 in (left.dtype, right.dtype):
            raise TypeError("bfloat16 is not supported by matmul")
        return np.matmul(left, right)

    @staticmethod
    def where(condition: Any, one: Any, other: Any) -> Any:
        chosen = np.where(condition, one, other)
        return chosen.astype("float32") if chosen.dtype.itemsize == 2 else chosen


@pytest.mark.parametrize("name", ["min_gru", "lstm"])
@pytest.mark.parametrize("is_packed", [False, True])
def test_second_gradients_in_16_bits(monkeypatch: pytest.MonkeyPatch, name: str, is_packed: bool) -> None:
    """They are NumPy's where products and choices are CuPy's, with a weight, initial states and packed sequences."""
    kernel = compiled_for_host({"model": name, "hidden_size": HIDDEN, "input_size": INPUTS, "precision": "bf16"})
    interface, generator = kernel.interface, np.random.default_rng(0)

    def drawn(shape: tuple[int, ...], dtype: Any = ml_dtypes.bfloat16) -> Any:
        return (generator.standard_normal(shape) / 2).astype(dtype)

    rows = 1 if is_packed else BATCH
    arrays = {"x": drawn((rows, TIME, INPUTS)), "weight": drawn((interface.weight_rows, INPUTS))}
    arrays |= {"R": drawn(interface.R_shape)} if interface.recurrent_gates else {}
    tangents = {key: drawn(array.shape) for key, array in arrays.items()}
    state = {one: drawn((BATCH, HIDDEN), "float32") for one in interface.states}
    sequences = {"cu_seqlens": np.array([0, 1, TIME])} if is_packed else {}
    y, _, saved = kernel.forward(**arrays, state=state, **sequences)
    dy = drawn(y.shape)
    expected = kernel.second_backward(saved, dy, tangents)
    monkeypatch.setattr(SavedCall, "xp", LikeCuPy())
    found = kernel.second_backward(saved, dy, tangents)
    assert found.keys() == expected.keys()
    for key in ("x", "weight", "dy"):
        assert found[key].dtype == expected[key].dtype
        np.testing.assert_array_equal(found[key], expected[key], err_msg=key)
