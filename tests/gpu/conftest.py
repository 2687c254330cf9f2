"""GPU tests: arrays made on the host with NumPy, run on the device through CuPy, judged by the fp64 oracle on the device."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy
import pytest

import minrnn_gen
from minrnn_gen.arrays import numpy_dtype
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import precision_of

X_AXES = {"BTD": (1, 0, 2, 3), "TBD": (0, 1, 2, 3), "BDT": (3, 0, 1, 2)}
Y_AXES = {"BTD": (1, 0, 2), "TBD": (0, 1, 2), "BDT": (2, 0, 1)}


@pytest.fixture(scope="session")
def cupy() -> ModuleType:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="session")
def compiled() -> Callable[..., Kernel]:
    """Compile once per spec, for the GPU at hand."""
    kernels: dict[str, Kernel] = {}

    def compiled_kernel(**spec: Any) -> Kernel:
        key = repr(sorted(spec.items()))
        if key not in kernels:
            kernels[key] = minrnn_gen.compile(spec)
        return kernels[key]

    return compiled_kernel


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


def poison(cupy: ModuleType, *shapes_and_dtypes: tuple[tuple[int, ...], Any]) -> None:
    """Leave NaN in the memory that the pool will hand out next for arrays of these shapes."""
    arrays = [cupy.full(shape, numpy.nan, dtype) for shape, dtype in shapes_and_dtypes]
    del arrays
