"""Kernels of an exported backward outside the recurrence, emulated: sums, types, orders and steps, beside NumPy."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minrnn_gen.build.store import Store
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.codegen.render import Gradients, Types, render_gradients
from minrnn_gen.interpret.library import EmulatedKernel, Memory, emulated_kernel
from minrnn_gen.interpret.toolchain import has_compiler

pytestmark = [pytest.mark.matrix_full, pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")]

THREADS = 64
TYPES = [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")]


@functools.cache
def kernel_of(folder: Path, entry: str, storage: str, real: str) -> EmulatedKernel:
    template = Gradients(Types("sm_90", storage, real))
    threads = template.lanes * template.rows if entry == "add_up" else THREADS
    shared_bytes = threads * np.dtype(real).itemsize if entry == "add_up" else 0
    plan: Any = SimpleNamespace(
        entry=entry, problem=template.problem, launch=SimpleNamespace(threads=threads),
        budget=SimpleNamespace(shared_bytes=shared_bytes), variables={}, is_cooperative=False,
    )  # fmt: skip
    return emulated_kernel(render_gradients(template), plan, Store(folder))


def launched(kernel: EmulatedKernel, blocks: int, result: np.ndarray, *arguments: Any) -> None:
    """Launch on arrays and numbers, and demand that nothing else is touched, and nothing by two threads at once."""
    arrays = [one for one in arguments if isinstance(one, np.ndarray)]
    memory = [Memory("array", one.ctypes.data, one.nbytes, one is not result) for one in arrays]
    values = [one.ctypes.data if isinstance(one, np.ndarray) else one for one in arguments]
    assert kernel.launch(blocks, values, 1, memory) == ()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


@pytest.mark.parametrize(("storage", "real"), TYPES)
def test_sums_are_those_over_parts_and_sequences(store: Path, storage: str, real: str) -> None:
    generator, lanes = np.random.default_rng(5), Gradients.lanes
    for directions, parts, vectors, batch, channels, first, count in ((2, 3, 4, 5, 40, 1, 2), (1, 1, 1, 70, 3, 0, 1)):
        sums = generator.standard_normal((directions, parts, vectors, batch, channels)).astype(real)
        result = np.full((directions, count, channels), np.nan, real)
        kernel = kernel_of(store, "add_up", storage, real)
        blocks = directions * count * -(-channels // lanes)
        launched(kernel, blocks, result, sums, result, parts, vectors, batch, channels, first, count)
        expected = sums.astype(np.float64).sum((1, 3))[:, first : first + count]
        # As many roundings as there are terms, of sums that are no larger than those of sizes.
        bound = parts * batch * np.finfo(real).eps * np.abs(sums).astype(np.float64).sum((1, 3))[:, first : first + count]
        assert (np.abs(result - expected) <= bound).all()


@pytest.mark.parametrize(("storage", "real"), TYPES)
def test_matrices_have_their_gates_in_front_and_their_own_type(store: Path, storage: str, real: str) -> None:
    generator, narrow = np.random.default_rng(6), numpy_dtype(storage)
    directions, heads, gates, square = 2, 3, 4, 25
    values = generator.standard_normal((directions, heads, gates, square)).astype(real)
    result = np.zeros((directions, gates, heads, square), narrow)
    launched(kernel_of(store, "store", storage, real), 3, result, values, result, values.size, heads, gates, square)
    assert np.array_equal(result, values.swapaxes(1, 2).astype(narrow))


@pytest.mark.parametrize(("storage", "real"), TYPES)
def test_parts_are_added_in_their_order(store: Path, storage: str, real: str) -> None:
    values = np.random.default_rng(7).standard_normal((3, 150)).astype(real)
    result = np.zeros(150, numpy_dtype(storage))
    launched(kernel_of(store, "add_parts", storage, real), 2, result, values, result, 150, 3)
    assert np.array_equal(result, (values[0] + values[1] + values[2]).astype(result.dtype))


@pytest.mark.parametrize(("storage", "real"), TYPES)
@pytest.mark.parametrize("axes", ["bti", "tbi", "bit"])
def test_nothing_is_left_beyond_a_length(store: Path, storage: str, real: str, axes: str) -> None:
    sizes, lengths = {"b": 3, "t": 6, "i": 5}, np.array([6, 0, 2], np.int64)
    shape = [sizes[axis] for axis in axes]
    x = np.random.default_rng(8).standard_normal(shape).astype(numpy_dtype(storage))
    by_axis = np.moveaxis(x, [axes.index(axis) for axis in "bti"], range(3))
    for row, length in enumerate(lengths):
        by_axis[row, length:] = np.nan
    result = np.full(shape, 9, x.dtype)
    strides = {axis: int(np.prod(shape[place + 1 :])) for place, axis in enumerate(axes)}
    kernel = kernel_of(store, "zero_beyond", storage, real)
    launched(kernel, 2, result, x, result, lengths, x.size, sizes["b"], strides["b"], sizes["t"], strides["t"])
    assert np.array_equal(result, np.where(np.isnan(x.astype(np.float64)), 0, x).astype(x.dtype))
