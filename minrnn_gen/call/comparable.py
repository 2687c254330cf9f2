"""Results of the reference that other results can be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy


def why_not_comparable(results: Mapping[str, Any], of: str) -> str:
    """Return why results `of` the reference cannot be compared with, as half a sentence; empty if they can."""
    for name, array in results.items():
        if array.size and numpy.isnan(array).all():
            return f"{name} of the fp64 {of} is NaN everywhere for random arrays, so that nothing can be compared"
    return ""
