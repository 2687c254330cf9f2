"""Kernels on the host are compiled once for all workers of a run, and so is the machine that they are linked with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def cache_of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Take the place of the cache that each worker has by itself."""
    folder = Path(tmp_path_factory.getbasetemp())
    with pytest.MonkeyPatch.context() as patch:
        shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
        patch.setenv("MINRNN_CACHE_DIR", str(shared / "kernels-on-the-host"))
        patch.setattr("support.small_problems.STORE", shared / "kernels-on-the-host")
        yield
