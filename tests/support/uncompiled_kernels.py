"""Kernels for host arrays: planned and rendered, but not compiled, which host arrays do not need and which takes longest."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from support.oracle import RAW_CELL

import minrnn_gen
from minrnn_gen.build import builder, nvrtc
from minrnn_gen.errors import ToolchainMissing


@contextlib.contextmanager
def nothing_compiled() -> Iterator[None]:
    """Let kernels be planned and rendered as if there were no NVRTC; those of torch's layers are forgotten afterwards."""

    def missing(*_: object) -> None:
        raise ToolchainMissing("planned and rendered only")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "compile_source", missing)
        yield
    _forget_kernels_of_torch()  # others want them compiled


@contextlib.contextmanager
def compiled_again() -> Iterator[None]:
    """Let kernels be compiled within `nothing_compiled`, as a GPU needs them."""
    _forget_kernels_of_torch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "compile_source", nvrtc.compile_source)
        yield
    _forget_kernels_of_torch()


def _forget_kernels_of_torch() -> None:
    if "minrnn_gen.torch.kernels" in sys.modules:
        sys.modules["minrnn_gen.torch.kernels"]._KERNELS.clear()


def compiled_for_host(spec: Mapping[str, Any]) -> minrnn_gen.Kernel:
    """Compile `spec` for the profile h200 as if there were no NVRTC."""

    with nothing_compiled():
        return minrnn_gen.compile(spec, gpu="h200")


@functools.cache
def host_kernel(model: str, hidden_size: int, precision: str, layout: str = "BTD", **spec: Any) -> minrnn_gen.Kernel:
    """Return the kernel of a built-in cell, or of "raw", the cell whose gates are its coefficients; the same for the same."""
    sizes = {"hidden_size": hidden_size, "precision": precision, "layout": layout}
    return compiled_for_host({"model": RAW_CELL if model == "raw" else model, **sizes, **spec})
