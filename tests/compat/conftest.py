"""Fronts on arrays in host memory: their kernels are planned and not compiled, which those do not need."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from support.uncompiled_kernels import nothing_compiled


@pytest.fixture(scope="module", autouse=True)
def _nothing_compiled() -> Iterator[None]:
    with nothing_compiled():
        yield
    for name, kernels in {
        "flashrnn_kernel": "kernel_of",
        "xlstm": "_kernel_of",
        "fla": "_kernel",
        "selective_kernels": "_kernel",
        "mingru_pytorch": "_kernel",
    }.items():
        if module := sys.modules.get(f"minrnn_gen.compat.{name}"):
            getattr(module, kernels).cache_clear()
