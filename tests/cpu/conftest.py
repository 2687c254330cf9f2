"""Backends of tests on host arrays: native code and NumPy, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.host_kernels import CODES, computed_by


@pytest.fixture(params=CODES)
def code(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with computed_by(request.param, tmp_path_factory) as name:
        yield name
