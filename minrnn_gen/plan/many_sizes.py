"""Arithmetic of the cost models: of one size, or of an array with every size of a grid at once.

A cost model is written for a batch and a time. If it computes size-dependent values by these functions, the same text serves a
grid of sizes as arrays of NumPy: a problem over a grid has arrays for its `batch` and `time`. NumPy is imported only for a
grid: a single size, computed for thousands of candidates, takes Python's own arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

# A number, or an array of them: what is annotated as a number in a cost model may be one.
Amount = Any
# For this many candidates the arrays over a grid of sizes fit a core's own cache.
CANDIDATES_AT_ONCE = 64


def column_of(numbers: Sequence[Amount]) -> Amount:
    """Return a number of several candidates as an array with a row for each, to be broadcast along the sizes of a grid."""
    import numpy as np

    return np.array(numbers)[:, np.newaxis]


def _is_number(value: Amount) -> bool:
    return isinstance(value, (int, float))


def ceil(value: Amount) -> Amount:
    """Return the smallest integer that is not less."""
    if _is_number(value):
        return math.ceil(value)
    import numpy as np

    return np.ceil(value)


def log2(value: Amount) -> Amount:
    """Return the logarithm to base 2."""
    if _is_number(value):
        return math.log2(value)
    import numpy as np

    return np.log2(value)


def minimum(left: Amount, right: Amount) -> Amount:
    """Return the smaller one of two."""
    if _is_number(left) and _is_number(right):
        return min(left, right)
    import numpy as np

    return np.minimum(left, right)


def maximum(left: Amount, right: Amount) -> Amount:
    """Return the larger one of two."""
    if _is_number(left) and _is_number(right):
        return max(left, right)
    import numpy as np

    return np.maximum(left, right)


def where(condition: Amount, chosen: Amount, other: Amount) -> Amount:
    """Return `chosen` where the condition holds, else `other`."""
    if isinstance(condition, bool):
        return chosen if condition else other
    import numpy as np

    return np.where(condition, chosen, other)
