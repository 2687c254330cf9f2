"""Kernels for host arrays: planned and rendered, but not compiled, which host arrays do not need and which takes longest."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from oracle import RAW_CELL

import minrnn_gen
from minrnn_gen import build
from minrnn_gen.errors import ToolchainMissing


@functools.cache
def host_kernel(model: str, hidden_size: int, precision: str, layout: str = "BTD", **spec: Any) -> minrnn_gen.Kernel:
    """Compile `model` (a built-in cell, or "raw", the cell whose gates are its coefficients) as if there were no NVRTC."""

    def missing(*_: object) -> None:
        raise ToolchainMissing("compiled for the host only")

    sizes = {"hidden_size": hidden_size, "precision": precision, "layout": layout}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "compile_source", missing)
        return minrnn_gen.compile(sizes | spec, model=RAW_CELL if model == "raw" else model, gpu="h200")
