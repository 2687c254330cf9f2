"""Layers on tensors in host memory: their kernels are planned and not compiled, which those do not need."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from support.uncompiled_kernels import nothing_compiled


@pytest.fixture(scope="session")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ranks of gloo groups, started once: each of them imports torch."""
    from support import ranks

    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        pytest.skip("gloo finds no address of this machine")
    with ranks.started(tmp_path_factory.mktemp("ranks")) as processes:
        yield processes


@pytest.fixture(scope="module", autouse=True)
def _nothing_compiled() -> Iterator[None]:
    with nothing_compiled():
        yield
