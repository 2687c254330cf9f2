"""Text of libraries and drivers without private facts: paths, the machine's name, its user's name."""

from __future__ import annotations

import getpass
import platform
import re
from functools import cache

# Absolute paths, of either system.
_PATH = re.compile(r"(?<![\w.])(?:[A-Za-z]:[\\/]|~?/|\\\\)[^\s'\"`:,;()]+")


def anonymous(text: str) -> str:
    """Return a text in which each absolute path is `(path)`, and the name of this machine or of its user `(name)`."""
    text = _PATH.sub("(path)", text)
    names = _names()
    return re.sub(rf"(?<![\w-])(?:{'|'.join(names)})(?![\w-])", "(name)", text) if names else text


@cache
def _names() -> tuple[str, ...]:
    """Return the names, escaped for a pattern, the longest first."""
    node = platform.node()
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a process whose user has no name
        user = ""
    names = {name for name in (node, node.partition(".")[0], user) if name}
    return tuple(re.escape(name) for name in sorted(names, key=len, reverse=True))
