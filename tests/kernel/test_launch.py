"""What a launch is told about the arrays of a call."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.arrays import DTYPE_BYTES, Array, contiguous_strides
from minrnn_gen.launch import alignment_of_call
from minrnn_gen.plan.problem import WIDEST_COPY_BYTES, alignment_of, hinted_regime
from minrnn_gen.precision import precision_of

sizes = st.integers(1, 20)


def described(shape: tuple[int, ...], dtype: str, pointer: int, strides: tuple[int, ...] | None = None) -> Array:
    return Array("x", "numpy", None, pointer, shape, strides or contiguous_strides(shape), dtype, 0)


@given(
    shape=st.tuples(sizes, sizes, sizes, sizes),
    gap=st.tuples(*[st.integers(0, 20)] * 3),
    dtype=st.sampled_from(sorted(DTYPE_BYTES)),
    offset_elements=st.tuples(st.integers(0, 16), st.integers(0, 16)),
)
def test_every_copy_stays_within_its_run(
    shape: tuple[int, ...], gap: tuple[int, ...], dtype: str, offset_elements: tuple[int, int]
) -> None:
    """Copies of the alignment tile each run exactly: it starts and ends at a multiple, so nothing beyond it is touched."""
    bytes_each = DTYPE_BYTES[dtype]
    padded = contiguous_strides(tuple(size + more for size, more in zip(shape, (0, *gap), strict=True)))
    x = described(shape, dtype, 4096 + offset_elements[0] * bytes_each, padded)
    y = described((shape[0], shape[1], shape[3]), dtype, 8192 + offset_elements[1] * bytes_each)
    alignment = alignment_of_call(x, y)
    assert bytes_each <= alignment <= WIDEST_COPY_BYTES and alignment & (alignment - 1) == 0
    for array in (x, y):
        assert array.shape[-1] * bytes_each % alignment == 0
        for outer in range(math.prod(array.shape[:-1])):
            start = array.pointer
            for size, stride in zip(reversed(array.shape[:-1]), reversed(array.strides[:-1]), strict=True):
                outer, index = divmod(outer, size)
                start += index * stride * bytes_each
            assert start % alignment == 0


@given(hidden_size=st.integers(1, 100), batch=sizes, time=sizes, precision_name=st.sampled_from(["fp64", "fp32", "bf16"]))
def test_contiguous_arrays_are_in_the_hinted_regime(hidden_size: int, batch: int, time: int, precision_name: str) -> None:
    """What is compiled ahead is what such a call needs, however short: no second compile."""
    precision = precision_of(precision_name)
    for layout in ("BTD", "BDT"):
        outer, last = ((batch, time), (hidden_size,)) if layout == "BTD" else ((batch,), (hidden_size, time))
        gates = (2,)
        x = described((*outer, *gates, *last), precision.storage_dtype, 0)
        y = described((*outer, *last), precision.storage_dtype, 0)
        assert alignment_of_call(x, y) == hinted_regime(layout, precision, hidden_size, time).alignment_bytes


@pytest.mark.parametrize(
    ("offsets", "alignment"), [((), 16), ((0,), 16), ((32,), 16), ((24,), 8), ((12, 16), 4), ((-6,), 2), ((7,), 1)]
)
def test_alignment_is_the_largest_power_of_two(offsets: tuple[int, ...], alignment: int) -> None:
    assert alignment_of(*offsets) == alignment
