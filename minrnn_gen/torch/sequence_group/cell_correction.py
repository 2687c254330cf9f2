"""The head of a cell's piece run again with the states that enter, and its tail with the gradient of its end states.

The same steps also run from zero: where the two differ, the entering values still count after these steps. The answer is one
bool in the memory of the piece; on a GPU no host waits for it.

A tail runs back from the states before it. Where neither y nor the saved states contain them, the forward runs the tail's steps
separately and keeps the states in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.call.slots import X
from minrnn_gen.torch.sequence_group.piece import Piece
from minrnn_gen.torch.sequence_group.states import apart


def run_in_two(
    piece: Piece, call: Sequence[Any], state: Any, steps: int, into: Sequence[Any] | None = None
) -> tuple[list[Any], Any]:
    """Run a call as `Piece.forward` does, its last `steps` separately; return its results, and the states before those."""
    if piece.runs_in_place(call):
        into = into or piece.outputs_of(call)
        final, between = run_again_in_two(piece, call, state, into, steps)
        return [into[0], *apart(piece.kernel.interface, final), *into[1:]], between
    parts = [piece.steps_of(call, *span) for span in _in_two(piece, call, steps)]
    first = piece.forward(parts[0], state)
    between = piece.all_states_of(first)
    last = piece.forward(parts[1], between)
    saved = 1 + piece.states
    pairs = zip([first[0], *first[saved:]], [last[0], *last[saved:]], strict=True)
    y, *others = (_one_after_the_other(piece, *pair) for pair in pairs)
    return [y, *last[1:saved], *others], between


def run_again_in_two(
    piece: Piece, call: Sequence[Any], state: Any, into: Sequence[Any], steps: int, counts: Any = None
) -> tuple[Any, Any]:
    """Run a call as `forward_again` does, its last `steps` separately; return its end states, and the states before those."""
    ends = [state]
    for span in _in_two(piece, call, steps):
        written = [piece.steps_in(array, *span) for array in into]
        ends.append(piece.forward_again(piece.steps_of(call, *span), ends[-1], written, counts))
    _, between, final = ends
    return final, between


def correct_head(piece: Piece, call: Sequence[Any], into: Sequence[Any], entering: Any, zeros: Any, steps: int) -> Any:
    """Correct the first steps of results that were computed from `zeros`; say whether the entering states count after them.

    `into`: y and, where they are kept, the states after every step.
    """
    place = call[0].shape[piece.time_axis] - steps if piece.reverse else 0
    part, written = piece.steps_of(call, place, steps), [piece.steps_in(whole, place, steps) for whole in into]
    with_them = piece.forward_again(part, entering, written)
    return with_them.ne(piece.forward_again(part, zeros, [own.new_empty(own.shape) for own in written])).any()


def correct_tail(
    piece: Piece,
    call: Sequence[Any],
    outputs: Sequence[Any],
    gradients: tuple[list[Any], Any],
    dstate: Any,
    zeros: Any,
    between: Any,
    steps: int,
) -> Any:
    """Correct the last steps of gradients that lack the end states' gradient; say whether it counts before these steps.

    `outputs`: y and the states after every step, y perhaps among them; `between`: the states before the last steps, None where
    `outputs` have them; `gradients`: the call's, a list that is changed, and y's. Gradients are linear in the arriving ones,
    and a vector's gradient is a sum over steps: the run from zero subtracts what these steps gave it before.
    """
    of_call, dy = gradients
    place = piece.last_steps(call[0].shape[piece.time_axis], steps)
    if between is None:
        before = place + steps if piece.reverse else place - 1
        states = [piece.steps_in(array, before, 1) for array in outputs[1:] or outputs]
        between = piece.together([array.squeeze(piece.y_axes.index("t")) for array in states]).to(dstate.dtype)
    part, own_dy = piece.steps_of(call, place, steps), piece.steps_in(dy, place, steps)
    own = [piece.steps_in(array, place, steps) for array in outputs]
    if not piece.writes_gradient_in_place(call):
        # A forward of these steps gives the other arrays that its backward reads.
        y, *others = piece.forward(part, between, True)
        own = [y, *others[piece.states :]]
    at_steps = piece.axes_of_inputs(call, "t")
    dx = of_call[X].narrow(at_steps[X], place, steps)
    run = piece.backward_again(part, between, own, own_dy, dstate, dx)
    without = piece.backward_again(part, between, own, own_dy, zeros, dx.new_empty(dx.shape))
    for slot, whole in enumerate(of_call[: len(call)]):
        if slot == X or whole is None:
            continue
        if slot in at_steps:
            whole.narrow(at_steps[slot], place, steps).copy_(run[slot])
        else:
            of_call[slot] = whole + (run[slot] - without[slot])
    return piece.together(run[len(call) :]).ne(piece.together(without[len(call) :])).any()


def has_states(piece: Piece, outputs: Sequence[Any]) -> bool:
    """Whether y and the saved arrays contain the states after every step, so that a backward can begin at any step."""
    return not piece.kernel.interface.has_vectors and max(1, len(outputs) - 1) == piece.states


def _in_two(piece: Piece, call: Sequence[Any], steps: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the begin and the count of the steps before the last ones, then of the last ones."""
    time = call[0].shape[piece.time_axis]
    return (steps if piece.reverse else 0, time - steps), (piece.last_steps(time, steps), steps)


def _one_after_the_other(piece: Piece, first: Any, last: Any) -> Any:
    """Concatenate two parts of time, of different length."""
    sizes = zip(first.shape, last.shape, strict=True)
    time = next(axis for axis, (of_first, of_last) in enumerate(sizes) if of_first != of_last)
    return torch.cat((last, first) if piece.reverse else (first, last), time)
