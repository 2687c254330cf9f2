"""The environment variables that the package reads."""

from __future__ import annotations

import os
from pathlib import Path

from minrnn_gen.errors import BadInput


def debug_build_is_asked_for() -> bool:
    """Return whether `MINRNN_DEBUG` is 1; unset, empty or 0 it is not. Raises BadInput for anything else."""
    asked = os.environ.get("MINRNN_DEBUG", "")
    if asked not in ("", "0", "1"):
        raise BadInput(f"MINRNN_DEBUG is {asked!r}; allowed: 1 for a debug build, 0 or nothing for none")
    return asked == "1"


def specializes_by_sizes() -> bool:
    """Return whether the sizes of calls choose their kernels: not where `MINRNN_SPECIALIZE` is never, which keeps the first.

    Raises BadInput where it is anything else, and neither empty nor always.
    """
    asked = os.environ.get("MINRNN_SPECIALIZE", "")
    if asked not in ("", "always", "never"):
        raise BadInput(f"MINRNN_SPECIALIZE is {asked!r}; allowed: never to keep the first kernel of a pass, always or nothing")
    return asked != "never"


def chosen_cache_folder() -> Path | None:
    """Return `MINRNN_CACHE_DIR` as an absolute folder, or None where it is unset or empty.

    Raises RuntimeError where it begins in a home folder that is not known.
    """
    chosen = os.path.expanduser(os.environ.get("MINRNN_CACHE_DIR", ""))
    if chosen.startswith("~"):
        raise RuntimeError(f"MINRNN_CACHE_DIR is {chosen!r}, and no such home folder is known")
    return Path(os.path.abspath(chosen)) if chosen else None


def shared_cache_folder() -> Path | None:
    """Return `XDG_CACHE_HOME`, or None where it is unset or relative: the base directory specification has such ignored."""
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return Path(shared) if os.path.isabs(shared) else None


def cpp_compiler_command() -> str:
    """Return `CXX`, the command of the C++ compiler, or nothing."""
    return os.environ.get("CXX", "")
