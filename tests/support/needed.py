"""Modules of the project that need an optional library: only where the library is absent is a test skipped."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import pytest

# Packages and folders of the checkout whose modules are imported by name.
OWN = ("minrnn_gen", "support", "benchmarks", "examples")


def needed(module: str) -> Any:
    """Import a module of the project; skip the test, or the file, where a library that it imports is not installed.

    Every other ImportError is the project's own fault, so it fails.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        library = (error.name or "").partition(".")[0]
        if not library or library in OWN or importlib.util.find_spec(library):
            raise
    pytest.skip(f"{library} is not installed, which {module} needs", allow_module_level=True)
