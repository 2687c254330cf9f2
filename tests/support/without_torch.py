"""A plugin for pytest under which torch is not installed, whatever is: `-p support.without_torch`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from hypothesis import Phase, settings


class _WithoutTorch(PathFinder):
    """Finds what is installed but torch, for `importlib.util.find_spec` too."""

    @classmethod
    def find_spec(cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return None for torch and its modules."""
        return None if fullname.partition(".")[0] == "torch" else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = _WithoutTorch

# What is skipped with its first example is not worth shrinking: --hypothesis-profile unshrunk.
settings.register_profile("unshrunk", deadline=None, phases=(Phase.explicit, Phase.generate))
