"""Where the sequences of a call begin, end and are reset."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.array import Array
from minrnn_gen.errors import BadInput, shown

_INT64_LIMIT = 2**63
# Names of dtypes whose 0 and 1 are resets, of NumPy, torch and JAX alike.
_NUMBERS = re.compile(r"(torch\.)?(u?int\d+|b?float\d+\w*)")


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences in x: `count` of them, side by side in its batch axis or, with `cu_seqlens`, packed along time.

    `resets` bool [rows of x, T]; `lengths` [B]; `cu_seqlens` [count + 1]; None where not given.
    """

    count: int
    resets: Array | None = None
    lengths: Array | None = None
    cu_seqlens: Array | None = None


def as_marks(resets: Any, name: str = "resets") -> Any:
    """Return resets as bool, if they are an array of numbers, of any library, that has only 0 and 1.

    Anything else stays as it is. Raises BadInput for an array of numbers with other values.
    """
    if not are_numbers(resets):
        return resets
    is_reset = resets == 1
    if not bool((is_reset | (resets == 0)).all()):
        raise BadInput(f"{name} has dtype {resets.dtype} and values other than 0 and 1; bool is expected, or 0 and 1 alone")
    return is_reset


def are_numbers(resets: Any) -> bool:
    """Say whether resets are an array of integers or of floating point, of whatever library."""
    return _NUMBERS.fullmatch(str(getattr(resets, "dtype", ""))) is not None


def as_array(value: Any, name: str) -> Any:
    """Return lengths or boundaries as an array: integers in a list or tuple become NumPy int64, an array stays what it is."""
    if not isinstance(value, list | tuple):
        return value
    import numpy

    return numpy.array(listed_integers(value, name), numpy.int64)


def listed_integers(values: Sequence[Any], name: str) -> list[int]:
    """Return the values of a list as integers that int64 holds; raises BadInput for any other value."""
    integers = []
    for place, value in enumerate(values):
        try:
            integer = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            integer = None
        if integer is None or not -_INT64_LIMIT <= integer < _INT64_LIMIT:
            raise BadInput(f"{name}[{place}] is {shown(value)}; an integer of at most 64 bits is expected")
        integers.append(integer)
    return integers
