"""Kernels for host arrays: planned and rendered, but not compiled, which host arrays do not need."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import minrnn_gen
from minrnn_gen import build
from minrnn_gen.errors import ToolchainMissing


@pytest.fixture(scope="session", autouse=True)
def without_toolchain() -> Iterator[None]:
    def missing(*_: Any) -> None:
        raise ToolchainMissing("this test runs on the host")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "compile_source", missing)
        yield


@pytest.fixture(scope="session")
def host_kernel() -> Callable[..., minrnn_gen.Kernel]:
    """Return `kernel(model, hidden_size, precision, layout, **spec)`, the same one for the same arguments."""

    @functools.cache
    def kernel(model: str, hidden_size: int, precision: str, layout: str = "BTD", **spec: Any) -> minrnn_gen.Kernel:
        from oracle import RAW_CELL

        return minrnn_gen.compile(
            {"hidden_size": hidden_size, "precision": precision, "layout": layout, **spec},
            model=RAW_CELL if model == "raw" else model,
            gpu="h200",
        )

    return kernel
