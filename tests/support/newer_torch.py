"""Tests that need a newer torch than the lowest that pyproject.toml allows: skipped by older ones, with the reason."""

from __future__ import annotations

import pytest


def needs_torch(version: str, why: str) -> pytest.MarkDecorator:
    """Return a mark that skips a test, or a file as its `pytestmark`, by an older torch."""
    torch = pytest.importorskip("torch")
    reason = f"torch {torch.__version__} is here; from {version} on {why}"
    return pytest.mark.skipif(torch.__version__ < version, reason=reason)
