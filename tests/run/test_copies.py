"""Copies of arrays without gaps: the same bits, whatever the dtype."""

from __future__ import annotations

import numpy as np
import pytest

from minrnn_gen.call.array import DTYPE_BYTES, numpy_dtype
from minrnn_gen.gpu import memory


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_a_copy_without_gaps_has_the_same_bits(dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 2, (6, 10, DTYPE_BYTES[dtype]), np.uint8)
    whole = values.view(numpy_dtype(dtype))[..., 0]
    for view in (whole[::2, ::3], whole.T, whole[:, ::-1]):
        copy = memory.without_gaps(memory.inspect(view, "x"))
        assert copy.is_contiguous and (copy.dtype, copy.shape) == (dtype, view.shape)
        assert copy.owner.tobytes() == view.tobytes()
