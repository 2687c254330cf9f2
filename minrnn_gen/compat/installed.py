"""Functions of other packages exchanged for functions of this package, and restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minrnn_gen.errors import ToolchainMissing, cause_of


class Exchange:
    """Attributes of one object of another package that are exchanged while it is installed."""

    def __init__(self, find: Callable[[], Any], requirement: str) -> None:
        """Exchange nothing yet; `find` imports the object, and `requirement` is what pip installs, a known version of it."""
        self._find, self._requirement = find, requirement
        self._theirs: dict[str, Any] = {}

    def install(self, ours: Mapping[str, Any]) -> None:
        """Exchange attributes by name; a second call changes nothing.

        Raises ToolchainMissing where the package is missing, or has none of that name.
        """
        if self._theirs:
            return
        try:
            place = self._find()
        except Exception as missing:
            raise ToolchainMissing(
                f"what is to be exchanged cannot be imported ({cause_of(missing)}): pip install {self._requirement}"
            ) from None
        for name in ours:
            if name not in vars(place):
                raise ToolchainMissing(
                    f"{place.__name__} has no {name}: another version of its package is installed than the known one; "
                    f"pip install {self._requirement}"
                )
        self._theirs = {name: vars(place)[name] for name in ours}
        for name, value in ours.items():
            setattr(place, name, value)

    @property
    def is_installed(self) -> bool:
        """Whether attributes are exchanged now."""
        return bool(self._theirs)

    def theirs(self, name: str) -> Any:
        """Return the package's original attribute."""
        return self._theirs[name]

    def uninstall(self) -> None:
        """Restore all attributes; without an installation this changes nothing."""
        theirs, self._theirs = self._theirs, {}
        for name, value in theirs.items():
            setattr(self._find(), name, value)
