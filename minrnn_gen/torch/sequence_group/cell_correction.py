"""The head of a cell's piece run again with the states that enter, and its tail with the gradient of its end states.

Beside it the same steps run without what enters, as other sequences of one call: what enters counts behind them where the two
differ. Whether it does is one bool in the memory of the piece; on a GPU no host waits for it. The host is busy all the same:
every operation here costs some 10 us of it while the GPU scans the piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.torch.sequence_group.piece import Piece


def correct_head(piece: Piece, call: Sequence[Any], into: Sequence[Any], entering: Any, steps: int) -> Any:
    """Correct the first steps of results, which are those from zero; say whether what entered counts behind them.

    `into`: y and, where they are kept, the states after every step.
    """
    place = call[0].shape[piece.time_axis] - steps if piece.reverse else 0
    state = torch.cat((entering, torch.zeros_like(entering)), 1)
    results = piece.forward(piece.twice(piece.steps_of(call, place, steps)), state)
    batch = entering.shape[1]
    for whole, both in zip(into, piece.of_steps(results[0], results[1 + piece.states :]), strict=True):
        _steps(piece, whole, place, steps).copy_(both.narrow(piece.y_axes.index("b"), 0, batch))
    return _differs(piece.all_states_of(results), batch)


def correct_tail(
    piece: Piece,
    call: Sequence[Any],
    outputs: Sequence[Any],
    gradients: tuple[list[Any], Any],
    dstate: Any,
    steps: int,
) -> Any:
    """Correct the last steps of gradients, which are those without one of the end states; say whether it counts before.

    `outputs`: y and the states after every step, of which y may be one; `gradients`: those of the call, whose list is changed,
    and that of y. Gradients are linear in what arrives, and those of vectors are sums over sequences: those that run beside it
    without `dstate` have a negative dy, so that their part is taken off.
    """
    of_call, dy = gradients
    place = 0 if piece.reverse else call[0].shape[piece.time_axis] - steps
    before = place + steps if piece.reverse else place - 1
    y_batch, y_time, batch = piece.y_axes.index("b"), piece.y_axes.index("t"), dstate.shape[1]
    states = [_steps(piece, array, before, 1).squeeze(y_time) for array in outputs[1:] or outputs]
    entering = torch.stack([*states, *states]).unflatten(0, (2, -1)).transpose(0, 1).flatten(1, 2).to(dstate.dtype)
    part, own_dy = piece.twice(piece.steps_of(call, place, steps)), _steps(piece, dy, place, steps)
    both = [torch.cat((own, own), y_batch) for own in (_steps(piece, array, place, steps) for array in outputs)]
    if not piece.writes_gradient_in_place(call):
        # What else its backward reads of these steps, a forward of them has.
        y, *others = piece.forward(part, entering, True)
        both = [y, *others[piece.states :]]
    arriving = torch.cat((dstate, torch.zeros_like(dstate)), 1)
    dx = torch.empty_like(part[0])
    run = piece.backward_again(part, entering, both, torch.cat((own_dy, -own_dy), y_batch), arriving, dx)
    of_call[0].narrow(piece.time_axis, place, steps).copy_(run[0].narrow(piece.batch_axis, 0, batch))
    for slot in range(1, len(call)):
        if of_call[slot] is not None:
            of_call[slot] = of_call[slot] + run[slot]
    of_both = torch.stack(run[len(call) :])
    first, second = of_both[:, :batch], of_both[:, batch:]
    return first.ne(-second).any()


def has_states(piece: Piece, outputs: Sequence[Any]) -> bool:
    """Whether y and what is kept have the states after every step, from which a part of a backward can begin."""
    return max(1, len(outputs) - 1) == piece.states


def _differs(states: Any, batch: int) -> Any:
    return states[:, :batch].ne(states[:, batch:]).any()


def _steps(piece: Piece, tensor: Any, begin: int, steps: int) -> Any:
    return tensor.narrow(piece.y_axes.index("t"), begin, steps)
