"""Modules in place of those that a library's source file imports and that are not there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType


@contextlib.contextmanager
def standing_in(modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """Have modules found that nothing has imported, and only within: other code looks for these packages too."""
    absent = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(absent)
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
