"""A plugin for pytest under which torch is not installed, whatever is: `-p support.without_torch`."""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from hypothesis import Phase, settings


class _Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name="torch")
        return None


sys.meta_path.insert(0, _Hidden())

# What is skipped with its first example is not worth shrinking: --hypothesis-profile unshrunk.
settings.register_profile("unshrunk", deadline=None, phases=(Phase.explicit, Phase.generate))
