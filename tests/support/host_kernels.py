"""Kernels of host arrays, by native code and by NumPy, and the arrays of the published numbers of cells."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from support.native_store import native_store

import minrnn_gen
from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.kernel import Kernel

CODES = ("numpy", "native")
# Published numbers in both codes and precisions: every day each once, native code in the one that shows more.
in_published_precisions = pytest.mark.parametrize(
    ("code", "precision", "rtol"),
    [
        pytest.param(code, precision, rtol, marks=() if everyday == code else pytest.mark.matrix_full)
        for code in CODES
        for precision, rtol, everyday in (("fp64", 1e-11, "native"), ("fp32", 2e-5, "numpy"))
    ],
    indirect=["code"],
)


@contextmanager
def computed_by(code: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Have kernels that are made meanwhile compute by one of `CODES`; skips the test where there is no C compiler."""
    with native_store(tmp_path_factory, MINRNN_CPU=code):
        if code == "native" and (why := why_no_native_code()):
            pytest.skip(why)
        yield code


def compiled(code: str, **spec: Any) -> Kernel:
    """Return the kernel of a spec, which computes by `code`."""
    kernel = minrnn_gen.compile(spec)
    assert bool(kernel.executor.cpu.native.kernels.why_not) == (code == "numpy")
    return kernel


def fill(shape: tuple[int, ...], phase: float) -> Any:
    """Return the values that published numbers were computed from: sines, in C order."""
    return np.sin(phase + 0.7 * np.arange(np.prod(shape))).reshape(shape)
