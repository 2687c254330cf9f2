"""These tests plan and compile into the store of emulated kernels, apart from kernels that NVRTC compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def cache_of_all_workers(emulated_kernels: Path) -> Iterator[None]:
    """Take the place of the cache that each worker has by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CACHE_DIR", str(emulated_kernels))
        patch.setattr("support.small_problems.STORE", emulated_kernels)
        yield
