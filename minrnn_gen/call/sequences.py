"""Where the sequences of a call begin, end and start anew: `resets`, `lengths` and `cu_seqlens`, checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.array import Array, as_numpy
from minrnn_gen.call.validate import check_contiguous, check_dtype, check_exact_shape, check_place
from minrnn_gen.errors import BadInput

INTEGER_DTYPES = ("int64", "int32")

ReadBack = Callable[[Array], Any]
"""Gives the values of an array on a GPU as a NumPy array, or None where they cannot be had now."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences in x: `count` of them, beside each other in its batch axis or, with `cu_seqlens`, packed along time.

    `resets` bool [rows of x, T]; `lengths` [B]; `cu_seqlens` [count + 1]; None where not given.
    """

    count: int
    resets: Array | None = None
    lengths: Array | None = None
    cu_seqlens: Array | None = None


def check_sequences(
    inspect: Callable[[Any, str], Array],
    read_back: ReadBack,
    x: Array,
    rows: int,
    time: int,
    layout: str,
    *,
    resets: Any,
    lengths: Any,
    cu_seqlens: Any,
) -> Sequences:
    """Check the sequences of an x with `rows` in its batch axis and `time` steps; raises BadInput with one sentence.

    `lengths` and `cu_seqlens` may be in host memory with an x on a GPU. Their values are checked too, unless `read_back`
    has none.
    """
    if lengths is not None and cu_seqlens is not None:
        raise BadInput(
            "lengths and cu_seqlens were both given; give lengths for padded sequences, or cu_seqlens for packed ones"
        )
    count, checked_resets, checked_lengths, checked_ends = rows, None, None, None
    if resets is not None:
        checked_resets = inspect(resets, "resets")
        check_dtype(checked_resets, ("bool",))
        check_exact_shape(checked_resets, (rows, time))
        check_place(checked_resets, x)
    if lengths is not None:
        checked_lengths = _integers(inspect(lengths, "lengths"), x)
        check_exact_shape(checked_lengths, (rows,))
        _check_lengths(_values(checked_lengths, read_back), time)
    if cu_seqlens is not None:
        if layout != "BTD":
            raise BadInput(f"cu_seqlens was given, but the layout is {layout}; packed sequences need layout BTD")
        if rows != 1:
            raise BadInput(f"cu_seqlens was given, but x has a batch of {rows}; packed sequences are one row, [1, total, ...]")
        checked_ends = _integers(inspect(cu_seqlens, "cu_seqlens"), x)
        if len(checked_ends.shape) != 1 or checked_ends.shape[0] < 1:
            raise BadInput(f"cu_seqlens has shape {list(checked_ends.shape)}; [sequences + 1] is expected")
        count = checked_ends.shape[0] - 1
        _check_ends(_values(checked_ends, read_back), time)
    return Sequences(count, checked_resets, checked_lengths, checked_ends)


def _integers(array: Array, x: Array) -> Array:
    check_dtype(array, INTEGER_DTYPES)
    check_contiguous(array)
    if array.device is not None:
        check_place(array, x)
    return array


def _values(array: Array, read_back: ReadBack) -> Any:
    return as_numpy(array) if array.device is None else read_back(array)


def _check_lengths(values: Any, time: int) -> None:
    if values is None:
        return
    wrong = (values < 0) | (values > time)
    if wrong.any():
        place = int(wrong.argmax())
        raise BadInput(f"lengths[{place}] is {values[place]}; 0 to {time}, the time of x, is expected")


def _check_ends(values: Any, total: int) -> None:
    if values is None:
        return
    if values[0] != 0:
        raise BadInput(f"cu_seqlens starts with {values[0]}; 0 is expected, where the first sequence begins")
    falling = values[1:] < values[:-1]
    if falling.any():
        place = int(falling.argmax()) + 1
        raise BadInput(
            f"cu_seqlens[{place}] is {values[place]}, less than {values[place - 1]} before it; "
            f"each sequence must end where the next one begins"
        )
    if values[-1] != total:
        raise BadInput(f"cu_seqlens ends with {values[-1]}; {total}, the time of x, is expected")
