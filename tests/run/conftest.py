"""Emulated kernels of these tests are in the store of all workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(emulated_kernels: Path) -> Path:
    return emulated_kernels


@pytest.fixture(scope="module")
def cache_of_emulated_kernels(folder: Path) -> Iterator[None]:
    """Make that store the cache, for helpers that take no folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CACHE_DIR", str(folder))
        yield
