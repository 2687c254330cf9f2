"""Arrays on the GPU: made on the host with NumPy, laid out as a kernel asks, and compared bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.precision import precision_of

X_AXES = {"BTD": (1, 0, 2, 3), "TBD": (0, 1, 2, 3), "BDT": (3, 0, 1, 2)}
Y_AXES = {"BTD": (1, 0, 2), "TBD": (0, 1, 2), "BDT": (2, 0, 1)}


def time_major(array: Any, layout: str, axes: dict[str, tuple[int, ...]]) -> Any:
    """View x as [T, B, G, H] or y as [T, B, H]."""
    return array.transpose(axes[layout])


def from_time_major(cupy: ModuleType, array: Any, layout: str) -> Any:
    """Lay out [T, B, G, H] as `layout` asks, contiguous."""
    order = numpy.argsort(X_AXES[layout])
    return cupy.ascontiguousarray(array.transpose(order))


def random_gates(cupy: ModuleType, generator: numpy.random.Generator, shape: tuple[int, ...], precision: str) -> Any:
    """Standard normal pre-activations [T, B, G, H] in the storage dtype."""
    values = generator.standard_normal(shape, dtype=numpy.float32)
    return cupy.asarray(values.astype(numpy_dtype(precision_of(precision).storage_dtype)))


def moved(given: Any, convert: Any) -> Any:
    """Return arrays within mappings, each converted."""
    return {name: moved(one, convert) for name, one in given.items()} if isinstance(given, Mapping) else convert(given)


def poison(cupy: ModuleType, *shapes_and_dtypes: tuple[tuple[int, ...], Any]) -> None:
    """Leave NaN in the memory that the pool will hand out next for arrays of these shapes."""
    arrays = [cupy.full(shape, numpy.nan, dtype) for shape, dtype in shapes_and_dtypes]
    del arrays


def same_bits(left: Any, right: Any) -> bool:
    """Whether two arrays, or mappings of arrays, are the same to the last bit."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same_bits(left[name], right[name]) for name in left)
    return bool(left.shape == right.shape and left.dtype == right.dtype and left.tobytes() == right.tobytes())
