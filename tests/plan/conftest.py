"""These tests plan anew each time: other tests of a worker plan a problem once for all of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from minrnn_gen.plan import families, size_classes


@pytest.fixture(scope="module", autouse=True)
def planned_anew() -> Iterator[None]:
    """Take away what keeps solutions and grids."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((families, "solve"), (size_classes, "solve"), (size_classes, "grid_of")):
            patch.setattr(module, name, inspect.unwrap(getattr(module, name)))
        yield
