"""Pieces of time cover it, in order and without gaps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minrnn_gen.call.pieces import pieces_of


@given(st.integers(1, 500), st.integers(1, 40))
def test_pieces_cover_time(time: int, count: int) -> None:
    pieces = pieces_of(time, count)
    assert len(pieces) == min(time, count)
    assert [step for piece in pieces for step in range(piece.start, piece.start + piece.steps)] == [*range(time)]
    assert max(piece.steps for piece in pieces) - min(piece.steps for piece in pieces) <= 1
    assert [piece.has_earlier for piece in pieces] == [False] + [True] * (len(pieces) - 1)
    assert [piece.has_later for piece in pieces] == [True] * (len(pieces) - 1) + [False]
