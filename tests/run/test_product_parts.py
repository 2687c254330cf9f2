"""The parts that a product of matrices is enqueued as give the product, and no part has a long sum with a tail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.call.address import Address
from minrnn_gen.gpu.cublas import Matrix, Product

TERMS_AT_ONCE = 64


def elements(memory: np.ndarray, matrix: Matrix, shape: tuple[int, int]) -> np.ndarray:
    """Return a matrix whose pointer counts bytes of `memory` in elements of 16 bits."""
    rows, columns = reversed(shape) if matrix.transposed else shape
    start = matrix.pointer // 2
    view = np.lib.stride_tricks.as_strided(memory[start:], (rows, columns), (matrix.row * memory.itemsize, memory.itemsize))
    return view.T if matrix.transposed else view


@given(
    k=st.integers(1, 5000), m=st.integers(1, 3), n=st.integers(1, 3), turned=st.tuples(st.booleans(), st.booleans()),
    adds=st.booleans(), dtype=st.sampled_from(["float16", "bfloat16"]),
)  # fmt: skip
def test_parts_add_up_to_a_product(k: int, m: int, n: int, turned: tuple[bool, bool], adds: bool, dtype: str) -> None:
    # Whole numbers, so that sums are exact in any order.
    memory = np.random.default_rng(k).integers(-3, 4, (m + n) * k).astype(np.float64)
    left = Matrix(Address(0, 0), dtype, m if turned[0] else k, transposed=turned[0])
    right = Matrix(Address(2 * m * k, 0, 2 * m * k), dtype, k if turned[1] else n, transposed=turned[1])
    product = Product(m, n, k, left, right, Matrix(0, "float32", n), adds=adds)
    result = np.full((m, n), 7.0 if adds else np.nan)
    expected = elements(memory, left, (m, k)) @ elements(memory, right, (k, n)) + (7 if adds else 0)
    for part in product.parts:
        assert part.k < 2048 or part.k % TERMS_AT_ONCE == 0
        assert all(matrix.pointer == matrix.pointer.offset_bytes for matrix in (part.left, part.right))
        sums = elements(memory, part.left, (m, part.k)) @ elements(memory, part.right, (part.k, n))
        result = result + sums if part.adds else sums
    np.testing.assert_array_equal(result, expected)


@given(k=st.integers(1, 10_000), dtype=st.sampled_from(["float32", "float64"]))
def test_wide_products_are_whole(k: int, dtype: str) -> None:
    matrix = Matrix(0, dtype, k)
    product = Product(1, 1, k, matrix, replace(matrix, transposed=True), Matrix(0, dtype, 1))
    assert product.parts == (product,)
