"""Native code in tests: one store for all workers of a run, so that each kernel is compiled once, and for the host alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.uncompiled_kernels import nothing_compiled
from support.worker_folder import folder_of_all_workers


@contextmanager
def native_store(tmp_path_factory: pytest.TempPathFactory, **environment: str) -> Iterator[None]:
    """Have kernels that are made meanwhile take the store of native code, with more of the `environment`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CACHE_DIR", str(folder_of_all_workers(tmp_path_factory) / "native-kernels"))
        for name, value in environment.items():
            patch.setenv(name, value)
        with nothing_compiled():
            yield
