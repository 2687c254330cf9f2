"""Names of a cell in CUDA text: after a prefix that no keyword, macro, CUDA name or identifier of a template begins with."""

from __future__ import annotations

PREFIX = "cell_"


def cuda_name(name: str) -> str:
    """Return the identifier of a name that contains one of the cell's, such as `cell_W_f` of `W_f`."""
    return PREFIX + name
