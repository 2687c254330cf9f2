"""Layers on tensors in host memory: their kernels are planned and not compiled, which those do not need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.uncompiled_kernels import nothing_compiled


@pytest.fixture(scope="module", autouse=True)
def _nothing_compiled() -> Iterator[None]:
    with nothing_compiled():
        yield
