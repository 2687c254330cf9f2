"""Tests that compile C: whether there is a compiler for it."""

from __future__ import annotations

import pytest

from minrnn_gen.build.c_compiler import c_compiler
from minrnn_gen.errors import ToolchainMissing


def has_c_compiler() -> bool:
    """Say whether there is a C compiler."""
    try:
        c_compiler()
    except ToolchainMissing:
        return False
    return True


needs_c_compiler = pytest.mark.skipif(not has_c_compiler(), reason="no C compiler")
