"""The fold of pieces into the state after them, and how far into a piece its entering state still counts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minrnn_gen.torch.sequence_group.exchange import all_gather
from minrnn_gen.torch.sequence_group.group import Member

RunPart = Callable[[int, int], tuple[Any, Any]]
"""Corrects a part of a piece, a number of steps from a begin on in the order of the recurrence; returns the share of the state
after it that is due to the entering state, and that state."""

# The first part that is corrected: what gates draw at random is forgotten in a few dozen steps, and a kernel of so few takes
# as long as its launch. Of short pieces it is a share.
_STEPS_FIRST, _STEPS_LEAST, _SHARE_FIRST = 1024, 32, 1 / 16
# A part runs with and without the entering state, and is copied: beyond this share, running the whole piece is faster.
_SHARE_MOST = 3 / 8
# With more pieces the host takes longer to fold them in turn than all at once.
_IN_TURN_MOST = 4
# Steps in excess of the predicted ones: channels do not forget alike at all times.
_MARGIN = 1.1


def fold(pieces: Sequence[Any]) -> Any:
    """Return the state after pieces, each a pair (product of the coefficients, end state from zero), from the first on.

    Where a product is zero, nothing before it counts, even NaN.
    """
    if len(pieces) > _IN_TURN_MOST:
        return _folded_at_once(pieces)
    _, state = pieces[0]
    for product, end in pieces[1:]:
        state = torch.where(product == 0, end, product * state + end)
    return state


def _folded_at_once(pieces: Sequence[tuple[Any, Any]]) -> Any:
    """Return what `fold` does, in as many operations for any number of pieces: end states times what follows, summed."""
    products = torch.stack([product for product, _ in reversed(pieces[1:])])
    last, *before = (end for _, end in reversed(pieces))
    is_cut = products.eq(0).cumsum(0) > 0
    weights = products.masked_fill(is_cut, 0).cumprod(0)
    return last + (weights * torch.stack(before)).masked_fill(is_cut, 0).sum(0)


def correct_pieces(run: RunPart | None, time: int, member: Member, reverse: bool, like: Any) -> list[bool]:
    """Correct each piece's begin as far as the entering state counts; say for each, in order, whether that is enough.

    `run` corrects this rank's piece of `time` steps; None where nothing enters it. `like`: a state. Where it is not enough
    within a part of the piece, all of it has to run again. The host waits for the answers of all ranks, once where the first
    part is enough for each of them.
    """
    steps = first_steps(time)
    due, state = run(0, steps) if run is not None and steps else (None, None)
    is_enough = like.new_full((1,), run is None, dtype=torch.uint8) if due is None else _is_rounding(due, state)
    enough = _of_all_pieces(is_enough, member, reverse)
    if all(enough):
        return enough
    if run is not None and due is not None:
        is_enough.fill_(_corrects_on(run, steps, due, state, time))
    return _of_all_pieces(is_enough, member, reverse)


def _corrects_on(run: RunPart, begin: int, due: Any, state: Any, time: int) -> bool:
    """Correct steps after the first `begin` until the entering state's effect is rounding; False: all must run again."""
    while not _is_rounding(due, state):
        steps = _next_steps(begin, due, state, time)
        if not steps:
            return False
        due, state = run(begin, steps)
        begin += steps
    return True


def _of_all_pieces(answer: Any, member: Member, reverse: bool) -> list[bool]:
    answers = all_gather(answer, member).flatten().tolist()
    return [bool(value) for value in (answers[::-1] if reverse else answers)]


def _is_rounding(difference: Any, state: Any) -> Any:
    """Return one byte on the device: 1 where no difference exceeds the rounding of its state, else 0."""
    bound = state.abs().mul_(torch.finfo(state.dtype).eps / 2)
    return (difference.abs() <= bound).all().to(torch.uint8).reshape(1)


def first_steps(time: int) -> int:
    """Return how many steps of a piece are corrected first; 0 for pieces too short to gain by it."""
    steps = max(_STEPS_LEAST, min(_STEPS_FIRST, int(time * _SHARE_FIRST)))
    return steps if steps <= time * _SHARE_MOST else 0


def _next_steps(begin: int, due: Any, state: Any, time: int) -> int:
    """Return the steps of the part after the first `begin` ones, 0 for none.

    The entering state's effect shrinks by about the same factor at each step, from the size of a state at the begin of the
    piece.
    """
    share = float(torch.where(due == 0, 0, due / state).abs().max())
    rounding = torch.finfo(state.dtype).eps / 2
    if not rounding < share < 1:
        return 0
    wanted = _MARGIN * begin * math.log(rounding / share) / math.log(share)
    steps = _STEPS_LEAST * max(1, math.ceil(wanted / _STEPS_LEAST))
    return steps if begin + steps <= time * _SHARE_MOST else 0
