"""The fold of pieces into the state behind them, in one order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch


def fold(pieces: Sequence[Any]) -> Any:
    """Return the state behind pieces, each a pair (product of the coefficients, end state from zero), from the first on.

    Where a product is zero, nothing that came before counts, were it not a number.
    """
    _, state = pieces[0]
    for product, end in pieces[1:]:
        state = torch.where(product == 0, end, product * state + end)
    return state


# The parts of a piece that are corrected before all of it is: where what enters still counts behind one, the next one is taken.
# Together they cost less than a third of the piece.
_SHARES = (1 / 16, 1 / 4)
_STEPS_LEAST = 32


def corrected_parts(time: int) -> Iterator[int]:
    """Yield how many steps are corrected, more every time, but never more than half of `time`."""
    for share in _SHARES:
        steps = max(_STEPS_LEAST, int(time * share))
        if 2 * steps <= time:
            yield steps


def is_rounding(difference: Any, state: Any) -> bool:
    """Say whether a difference is less than what rounding does to a state."""
    return bool((difference.abs() <= torch.finfo(state.dtype).eps / 2 * state.abs()).all())
