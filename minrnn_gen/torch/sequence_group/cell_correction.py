"""The head of a cell's piece run again with the states that enter, and its tail with the gradient of its end states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minrnn_gen.torch.sequence_group.piece import Piece


class Head:
    """Corrects the results of a piece, which are those from zero, part by part from its begin on."""

    def __init__(self, piece: Piece, call: Sequence[Any], results: Sequence[Any], entering: Any) -> None:
        self._piece, self._call, self._results = piece, call, results
        self._state, self._from_zero = entering, torch.zeros_like(entering)

    def __call__(self, begin: int, steps: int) -> tuple[Any, Any]:
        """Correct `steps` steps from `begin` on; return what of the state behind them is due to what entered, and the state."""
        piece, ahead = self._piece, 1 + self._piece.states
        place = self._call[0].shape[piece.time_axis] - begin - steps if piece.reverse else begin
        part = piece.steps_of(self._call, place, steps)
        results = piece.forward(part, self._state)
        for whole, values in zip(*(_of_steps(piece, of[0], of[ahead:]) for of in (self._results, results)), strict=True):
            _narrowed(piece, whole, place, steps).copy_(values)
        self._from_zero = torch.stack(piece.forward(part, self._from_zero, False)[1:ahead])
        self._state = torch.stack(results[1:ahead])
        return self._state - self._from_zero, self._state


class Tail:
    """Corrects the gradients of a piece, which are those without one of its end states, part by part from its end on.

    `run`: what the forward returned and saved, and the gradient of y. Gradients are linear in those that arrive: in a part
    those by the gradient of the end states alone are added.
    """

    def __init__(
        self, piece: Piece, call: Sequence[Any], run: tuple[Sequence[Any], Any], gradients: list[Any], dstate: Any
    ) -> None:
        self._piece, self._call, self._gradients = piece, call, gradients
        (outputs, self._dy) = run
        self._states = _states_of_steps(piece, outputs)
        self._due, self._own = dstate, torch.zeros_like(dstate)

    @staticmethod
    def has_states(piece: Piece, outputs: Sequence[Any]) -> bool:
        """Whether the states after every step are there, from which a part can begin."""
        return len(_states_of_steps(piece, outputs)) == piece.states

    def __call__(self, begin: int, steps: int) -> tuple[Any, Any]:
        """Correct `steps` steps, `begin` steps before the end; return what of the gradient before them is due to that of the
        end states, and the gradient.
        """
        piece, call = self._piece, self._call
        place = begin if piece.reverse else call[0].shape[piece.time_axis] - begin - steps
        part, dy = piece.steps_of(call, place, steps), _narrowed(piece, self._dy, place, steps)
        before = place + steps if piece.reverse else place - 1
        entering = torch.stack(
            [_narrowed(piece, states, before, 1).squeeze(piece.y_axes.index("t")) for states in self._states]
        ).to(self._due.dtype)
        y, *others = piece.forward(part, entering, True)
        results = (y, *others[piece.states :])
        added = piece.backward(part, entering, results, torch.zeros_like(y), self._due)
        own = piece.backward(part, entering, results, dy, self._own)
        self._gradients[0].narrow(piece.time_axis, place, steps).add_(added[0])
        for slot in range(1, len(call)):
            if self._gradients[slot] is not None:
                self._gradients[slot] = self._gradients[slot] + added[slot]
        self._due, self._own = torch.stack(added[len(call) :]), torch.stack(own[len(call) :])
        return self._due, self._due + self._own


def _of_steps(piece: Piece, y: Any, saved: Sequence[Any]) -> list[Any]:
    """Return y and the states after every step among what a forward saves; pre-activations come behind them."""
    projected = 1 if saved and piece.kernel.interface.input_size else 0
    return [y, *saved[: len(saved) - projected]]


def _states_of_steps(piece: Piece, outputs: Sequence[Any]) -> list[Any]:
    y, *states = _of_steps(piece, outputs[0], outputs[1:])
    return states or [y]  # a single state that is the output


def _narrowed(piece: Piece, tensor: Any, begin: int, steps: int) -> Any:
    return tensor.narrow(piece.y_axes.index("t"), begin, steps)
