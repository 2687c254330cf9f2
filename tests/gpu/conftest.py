"""GPU tests: kernels compiled once, for the GPU at hand."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from support.scan_strategies import Strategy, kernel_taking
from support.worker_folder import folder_of_all_workers

import minrnn_gen
from minrnn_gen.build.store import Store
from minrnn_gen.errors import Infeasible
from minrnn_gen.kernel import Kernel


@pytest.fixture(scope="session")
def cupy() -> ModuleType:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="session")
def compiled() -> Callable[..., Kernel]:
    """Compile once per spec, for the GPU at hand."""
    kernels: dict[str, Kernel] = {}

    def compiled_kernel(**spec: Any) -> Kernel:
        key = repr(sorted(spec.items()))
        if key not in kernels:
            kernels[key] = minrnn_gen.compile(spec)
        return kernels[key]

    return compiled_kernel


@pytest.fixture(scope="session")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Kernels that the workers of a run compile once for all of them."""
    return Store(folder_of_all_workers(tmp_path_factory) / "kernels-of-all-workers")


@pytest.fixture(scope="session")
def taking(shared_store: Store) -> Callable[..., Kernel]:
    """Compile once per spec and strategy; skip the test where the GPU has no kernel that takes it."""
    kernels: dict[str, Kernel] = {}

    def kernel(strategy: Strategy, **spec: Any) -> Kernel:
        key = repr((strategy, sorted(spec.items())))
        if key not in kernels:
            try:
                kernels[key] = kernel_taking(strategy, shared_store, spec)
            except Infeasible as nothing:
                pytest.skip(str(nothing))
        return kernels[key]

    return kernel
