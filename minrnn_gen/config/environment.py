"""Whether kernels are built for debugging, with waits that end: the environment says so."""

from __future__ import annotations

import os

from minrnn_gen.errors import BadInput


def debug_build_is_asked_for() -> bool:
    """Return whether `MINRNN_DEBUG` is 1; unset, empty or 0 it is not. Raises BadInput for anything else."""
    asked = os.environ.get("MINRNN_DEBUG", "")
    if asked not in ("", "0", "1"):
        raise BadInput(f"MINRNN_DEBUG is {asked!r}; allowed: 1 for a debug build, 0 or nothing for none")
    return asked == "1"
