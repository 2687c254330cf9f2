"""Where the sequences of a call begin, end and start anew."""

from __future__ import annotations

from dataclasses import dataclass

from minrnn_gen.call.array import Array


@dataclass(frozen=True, slots=True)
class Sequences:
    """The sequences in x: `count` of them, beside each other in its batch axis or, with `cu_seqlens`, packed along time.

    `resets` bool [rows of x, T]; `lengths` [B]; `cu_seqlens` [count + 1]; None where not given.
    """

    count: int
    resets: Array | None = None
    lengths: Array | None = None
    cu_seqlens: Array | None = None
