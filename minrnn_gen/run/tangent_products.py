"""The output of a call as the tangent's kernel reads it, as its products with R, and gradients back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minrnn_gen.call.interface import Interface
from minrnn_gen.call.joined import zeros_like
from minrnn_gen.call.slots import RECURRENT_BIAS, R
from minrnn_gen.run.saved_output import SavedOutput

# The axis of gates in products.
GATES = 3


class TangentProducts:
    """The products of a call: each, as `sums` says by gate of R, is added to pre-activations or is an input X.*."""

    def __init__(
        self, interface: Interface, sums: Sequence[bool], output: SavedOutput, matrix: Any, moved: Any, bias: Any
    ) -> None:
        """`matrix` is R, `moved` its tangent or None, `bias` the recurrent bias or None."""
        self._interface, self._sums, self._output = interface, sums, output
        self._matrix, self._moved, self._bias = matrix, moved, bias

    def of(self, tangent: bool) -> tuple[Any, list[Any]]:
        """Return the sum added to pre-activations, or to their tangents, and the inputs; None where absent."""
        beside = [place for place, is_sum in enumerate(self._sums) if not is_sum]
        if tangent and self._moved is None:
            return None, [None] * len(beside)
        products = self._output.products(*((self._moved, None) if tangent else (self._matrix, self._bias)))
        axes = self._interface.channel_axes
        inputs = [self._output.in_layout(products[:, :, :, place], axes) for place in beside]
        if len(beside) == len(self._sums):
            return None, inputs
        gates, own = self._interface.gates, self._gates_with_sums
        if tuple(own) != gates:
            zeros = zeros_of(products[:, :, :, :1])
            parts = [products[:, :, :, own[gate] : own[gate] + 1] if gate in own else zeros for gate in gates]
            products = self._output.xp.concatenate(parts, axis=GATES)
        return self._output.in_layout(products, self._interface.preactivation_axes), inputs

    @property
    def adds_in_place(self) -> bool:
        """Whether `add_to` serves."""
        is_sum = all(self._sums) and self._interface.recurrent_gates == self._interface.gates
        return is_sum and self._bias is None and self._output.adds_in_place

    def add_to(self, sums: Any) -> None:
        """Add all products in one multiplication to `sums`: pre-activations, followed by their tangents if R has one."""
        matrices, axis = [self._matrix, self._moved], len(self._interface.directions)
        matrix = self._matrix if self._moved is None else self._output.xp.concatenate(matrices, axis=axis)
        self._output.add_products(sums, matrix)

    def back(self, known: Any, moved: Any) -> tuple[dict[int, Any], Any, Any]:
        """Return the gradients of R and its bias by slot, of y, and of its initial state, from the gradients of the products.

        known, moved: for the products with R and with its tangent, the gradients of pre-activations and of the inputs.
        """
        xp, axis = self._output.xp, len(self._interface.directions)
        gradient = self.of_gates(*known)
        of_weights = {R: self._output.of_matrix(gradient)}
        if self._bias is not None:
            of_weights[RECURRENT_BIAS] = self._output.of_bias(gradient, self._bias)
        matrix = self._matrix
        if self._moved is not None:
            gradient = xp.concatenate([gradient, self.of_gates(*moved)], axis=GATES)
            matrix = xp.concatenate([matrix, self._moved], axis=axis)
        return of_weights, *self._output.of_output(gradient, matrix)

    def of_gates(self, of_x: Any, of_inputs: Sequence[Any] = ()) -> Any:
        """Return the gradients of the products of all gates of R, from those of pre-activations and of inputs."""
        interface, inputs = self._interface, iter(of_inputs)
        x, own = self._output.by_run(of_x, interface.preactivation_axes), self._gates_with_sums
        if tuple(own) == interface.gates == interface.recurrent_gates:
            return x
        parts = []
        for gate in interface.recurrent_gates:
            if gate in own:
                place = interface.gates.index(gate)
                parts.append(x[:, :, :, place : place + 1])
            else:
                gradient = next(inputs)
                zeros = zeros_of(x[:, :, :, :1])
                parts.append(
                    zeros if gradient is None else self._output.by_run(gradient, interface.channel_axes)[:, :, :, None]
                )
        return self._output.xp.concatenate(parts, axis=GATES)

    @property
    def _gates_with_sums(self) -> dict[str, int]:
        pairs = enumerate(zip(self._interface.recurrent_gates, self._sums, strict=True))
        return {gate: place for place, (gate, is_sum) in pairs if is_sum}


def zeros_of(like: Any) -> Any:
    """Return zeros of the shape of an array."""
    return zeros_like(like, tuple(like.shape))
