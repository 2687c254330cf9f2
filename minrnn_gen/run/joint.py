"""The second backward of a call whose gradients of products are kept: one backward of the cell with its tangent.

The adjoint of the tangent's output is known then: dy, plus R times the kept gradients in one multiplication over all steps.
So the one recurrence that runs backwards is the cell's own, whose step adds what the tangent contributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minrnn_gen.build.tangent_cells import TangentRecipe
from minrnn_gen.call.slots import FIXED, RECURRENT_BIAS, R, X
from minrnn_gen.gpu.memory import cast
from minrnn_gen.run.saved_output import SavedOutput, in_words
from minrnn_gen.run.tangent import Arrays, TangentCall
from minrnn_gen.run.tangent_products import TangentProducts, zeros_of

Layouts = Sequence[tuple[tuple[int, ...], str]]
"""The shape and dtype of each array that a backward reads in addition to those of its call."""


@dataclass(frozen=True)
class JointCall(TangentCall):
    """A call of the kernel of a cell with its tangent.

    `tangent`, `gates`: the recipe and the x of the tangent's call, which may be written. `moved_y`: the tangent of y.
    `dproducts`: the gradients of pre-activations that the first backward computed from `dy`.
    """

    tangent: TangentRecipe | None = None
    gates: Any = None
    moved_y: Any = None
    dproducts: Any = None
    dy: Any = None

    def arguments(self) -> list[Any]:
        """Return the arrays of the call by its slots."""
        slots, at = self.interface.slots, self._total_slot
        inputs = self.arrays[slots.inputs], self.tangents[slots.inputs]
        joined = self._joined((self._gates(), None), inputs, is_apart=True)
        total = None if joined[at - 1] is None else zeros_of(joined[at - 1])
        return [*joined[:at], total, *joined[at:], self._along]

    def dy_of_joint(self) -> Any:
        """Return the gradient of the joint call's y, which R's tangent alone gives."""
        return zeros_of(self.dy) if self._through_moved_R is None else self._through_moved_R[0]

    def dstate(self, dstate: Arrays, final: Arrays) -> list[Any]:
        """Return the gradients of the joint call's final states, from the call's, or none, and the tangent's final states."""
        zeros = zeros_of(final[0])
        of_states = [dstate[place] if dstate and is_moved else zeros for place, is_moved in self.recipe.states]
        return [*of_states, zeros + 1]

    def saved(self, layouts: Layouts, of_call: Arrays, of_tangent: Arrays) -> list[Any] | None:
        """Return the arrays that only a backward needs, in these `layouts`; None where the two forwards saved others.

        `of_call` and `of_tangent`: those of the call and of its tangent, each with the states after every step first.
        """
        assert self.tangent is not None
        states = len(self.recipe.states) + 1
        _, dtype = layouts[0]
        others = [*of_call[len(of_call) - len(layouts) + states :]]
        # Forwards whose backward reads no state but the output save y alone.
        own = [*of_call[: len(of_call) - len(others)]] or [cast(self.y, dtype)]
        moved = dict(zip(self.tangent.states, of_tangent[: len(of_tangent) - len(others)], strict=False))
        moved = moved or {(self._place, True): cast(self.moved_y, dtype)}
        by_pick = moved | {(place, False): state for place, state in enumerate(own)}
        # No backward reads the values of the total.
        arrays = [*(by_pick.get(pick) for pick in self.recipe.states), own[0], *others]
        return arrays if [*map(_layout_of, arrays)] == [(tuple(shape), dtype) for shape, dtype in layouts] else None

    def gradients_of_call(self, arriving: Arrays) -> list[Any]:
        """Return the gradients of the call's arrays from those of the joint call, None for arrays without a gradient."""
        at, arrays = self._total_slot, self.arrays
        gradients, _, _ = self._gradients_of_arrays([*arriving[:at], *arriving[at + 1 : -1]], False)
        # Not a part of an array of twice the size, which would stay with it.
        gradients[X] = self._contiguous(gradients[X])
        of_matrix = self._moved.of_matrix(self._of_products_kept)
        gradients[R] = gradients[R] + self._shaped(of_matrix, tuple(arrays[R].shape))
        state = self.interface.slots.states.start + self._place
        if self._through_moved_R is not None and gradients[state] is not None:
            gradients[state] = gradients[state] + self._through_moved_R[1]
        return gradients

    def _gates(self) -> Any:
        """Return pre-activations, and their tangents with all known products added.

        The tangent's call has added those with R's tangent.
        """
        assert self.tangent is not None
        x = self.arrays[X] if self.preactivations is None else self.preactivations
        moved = self._apart(self.tangent.gates, self.gates, self._gate_axis, True)
        if self.tangent.gates == self.recipe.gates == self._all_gates and self._of_moved.adds_in_place:
            own = self._apart(self.recipe.gates, self.gates, self._gate_axis, False)
            words = in_words(self.xp, x)
            (own if words is x else own.view(words.dtype)).copy_(words)
            self._of_moved.add_to(moved)
            return self.gates
        return self._together(self.recipe.gates, x, moved + self._of_moved.of(tangent=False)[0], self._gate_axis)

    @property
    def _total_slot(self) -> int:
        return len(FIXED) + len(self.recipe.parameters) + len(self.recipe.states)

    @property
    def _place(self) -> int:
        """The index of the output among the states."""
        assert self.recipe.output is not None
        return self.recipe.output

    @property
    def _sums(self) -> tuple[bool, ...]:
        assert self.recipe.sums is not None
        return self.recipe.sums

    @cached_property
    def _output(self) -> SavedOutput:
        return SavedOutput(self.interface, self.xp, self.arrays, self.y, self._place)

    @cached_property
    def _moved(self) -> SavedOutput:
        """The tangent of y, after that of its initial state."""
        slots, arrays = self.interface.slots, [*self.arrays]
        arrays[slots.states] = self.tangents[slots.states]
        return SavedOutput(self.interface, self.xp, arrays, self.moved_y, self._place)

    @cached_property
    def _of_call(self) -> TangentProducts:
        return TangentProducts(self.interface, self._sums, self._output, self._matrix, self._moved_matrix, None)

    @cached_property
    def _of_moved(self) -> TangentProducts:
        bias = self.tangents[RECURRENT_BIAS]
        return TangentProducts(self.interface, self._sums, self._moved, self._matrix, None, bias)

    @cached_property
    def _of_products_kept(self) -> Any:
        """The kept gradients of all products of R, in the order of its gates."""
        return self._of_call.of_gates(self.dproducts)

    @cached_property
    def _along(self) -> Any:
        """The adjoint of the tangent of y."""
        through, _ = self._output.of_output(self._of_products_kept, self._matrix)
        along = self.dy + through.reshape(tuple(self.dy.shape))
        return self._contiguous(along.reshape(self._output.shape))

    @cached_property
    def _through_moved_R(self) -> tuple[Any, Any] | None:
        """The gradients of y and of its initial state through the products with R's tangent."""
        if self._moved_matrix is None:
            return None
        of_y, of_initial = self._output.of_output(self._of_products_kept, self._moved_matrix)
        return self._contiguous(of_y), of_initial

    @property
    def _matrix(self) -> Any:
        return self._shaped(self.arrays[R], self.interface.R_shape)

    @property
    def _moved_matrix(self) -> Any:
        return self._shaped(self.tangents[R], self.interface.R_shape)


def _layout_of(array: Any) -> tuple[tuple[int, ...], str] | None:
    return None if array is None else (tuple(array.shape), str(array.dtype).removeprefix("torch."))
