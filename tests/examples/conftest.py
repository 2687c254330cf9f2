"""The training examples as modules, as their own folder sees them, and their kernels planned and not compiled."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.uncompiled_kernels import nothing_compiled

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))


@pytest.fixture(scope="module", autouse=True)
def _nothing_compiled_and_one_thread() -> Iterator[None]:
    with nothing_compiled(), _one_thread_of_torch():
        yield


@contextlib.contextmanager
def _one_thread_of_torch() -> Iterator[None]:
    # As in examples/training/__init__.py, which comes too late here.
    try:
        import torch
    except ImportError:  # as for the examples in JAX
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
