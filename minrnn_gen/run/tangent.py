"""The arrays of a tangent's call: the call's arrays and their tangents in the form of the tangent's kernel, and back.

Lists of arrays are by slot of the call; None stands for an absent array, and in lists of tangents for zeros. All functions take
arrays of NumPy, CuPy, torch or JAX, `xp` being their library's namespace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import add
from typing import Any

from minrnn_gen.build.tangent_cells import Picks, TangentRecipe
from minrnn_gen.call.altered import permuted
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.slots import BIAS, RECURRENT_BIAS, SEQUENCES, WEIGHT, R, X
from minrnn_gen.run.saved_output import SavedOutput, in_words, multiplied
from minrnn_gen.run.tangent_products import TangentProducts, zeros_of

Arrays = Sequence[Any]
Backward = Callable[[Any], Arrays]
"""Returns the gradients of a call by slot, of that of its y."""


@dataclass(frozen=True)
class TangentCall:
    """A call of a kernel with this `interface`, whose tangent the kernel of `recipe` computes.

    `arrays` are the call's, by slot; `tangents` are theirs. `preactivations`: x times the weight, where the call saved it.
    """

    interface: Interface
    recipe: TangentRecipe
    xp: Any
    arrays: Arrays
    tangents: Arrays
    y: Any
    preactivations: Any = None

    def arguments(self) -> list[Any]:
        """Return the arrays of the tangent's call by its slots."""
        slots = self.interface.slots
        x, dx = self._preactivations(self.arrays, self.tangents)
        inputs, moved_inputs = ([*of[slots.inputs]] for of in (self.arrays, self.tangents))
        if self._of_output is not None and self.recipe.gates == self._all_gates and self._of_output.adds_in_place:
            joined = self._joined((x, dx), (inputs, moved_inputs))
            self._of_output.add_to(joined[X])
            return joined
        if self._of_output is not None:
            known, beside = self._of_output.of(tangent=False)
            moved, moved_beside = self._of_output.of(tangent=True)
            x, dx = sum_of(x, known), sum_of(dx, moved)
            inputs, moved_inputs = inputs + beside, moved_inputs + moved_beside
        return self._joined((x, dx), (inputs, moved_inputs))

    def apart(self) -> tuple[list[Any], Any] | None:
        """Return the arrays of the tangent's call with an x that has the gates alone, and their tangents, of the same shape.

        None where the tangent's kernel reads other gates, or products of y.
        """
        slots, (x, dx) = self.interface.slots, self._preactivations(self.arrays, self.tangents)
        if self._of_output is not None or self.recipe.gates != self._all_gates:
            return None
        arrays = self._joined((x, None), (self.arrays[slots.inputs], self.tangents[slots.inputs]), is_apart=True)
        return arrays, zeros_of(x) if dx is None else self._contiguous(dx)

    def _joined(self, x: tuple[Any, Any], inputs: tuple[Arrays, Arrays], is_apart: bool = False) -> list[Any]:
        """Return the arrays of the tangent's call, from pre-activations and inputs, each with its tangent.

        `is_apart`: x has no tangents of gates.
        """
        recipe, slots, arrays, tangents = self.recipe, self.interface.slots, self.arrays, self.tangents
        bias = self._of_gates(*(self._shaped(of[BIAS], self._bias_shape) for of in (arrays, tangents)))
        gates = x[0] if is_apart else self._together(recipe.gates, *x, self._gate_axis)
        fixed = [self._contiguous(gates), None, None, bias, None]
        if arrays[R] is not None:
            fixed[R] = self._matrices(arrays[R], tangents[R])
            fixed[RECURRENT_BIAS] = self._recurrent_biases(arrays[RECURRENT_BIAS], tangents[RECURRENT_BIAS])
        return [
            *fixed,
            *arrays[SEQUENCES],
            *_picked(recipe.parameters, arrays[slots.parameters], tangents[slots.parameters]),
            *_picked(recipe.states, arrays[slots.states], tangents[slots.states]),
            *_picked(recipe.shared, arrays[slots.shared], tangents[slots.shared]),
            *map(self._contiguous, _picked(recipe.inputs, *inputs)),
        ]

    def incoming(self, dstate: Arrays) -> list[Any]:
        """Return the gradients of the tangent's call's final states from those of the call's; none for none."""
        return [dstate[place] if is_tangent else zeros_of(dstate[place]) for place, is_tangent in self.recipe.states if dstate]

    def final(self, states: Arrays) -> list[Any]:
        """Return the tangents of the final states from the final states of the tangent's call."""
        places = {pick: number for number, pick in enumerate(self.recipe.states)}
        return [states[places[place, True]] for place in range(len(self.interface.states))]

    def gradients(self, arriving: Arrays, backward: Backward) -> list[Any]:
        """Return the gradients of the call's arrays from those of the tangent's call, None for arrays without a gradient.

        `backward`: the call's backward, for gradients through the y that the tangent reads.
        """
        recipe, slots, arrays = self.recipe, self.interface.slots, self.arrays
        gradients, of_x, of_inputs = self._gradients_of_arrays(arriving, recipe.sums is not None)
        if self._of_output is None or recipe.sums is None:
            return gradients
        count = slots.inputs.stop - slots.inputs.start
        beside = range(count, count + len(recipe.sums) - sum(recipe.sums))
        of_products = [
            (of, [of_inputs.get((place, moved)) for place in beside]) for moved, of in zip((False, True), of_x, strict=True)
        ]
        of_weights, of_y, of_initial = self._of_output.back(*of_products)
        of_weights = {slot: self._shaped(gradient, tuple(arrays[slot].shape)) for slot, gradient in of_weights.items()}
        assert recipe.output is not None
        if gradients[state := slots.states.start + recipe.output] is not None:
            of_weights[state] = of_initial
        more = backward(self._contiguous(of_y))
        return [sum_of(sum_of(gradient, more[slot]), of_weights.get(slot)) for slot, gradient in enumerate(gradients)]

    def _gradients_of_arrays(
        self, arriving: Arrays, reads_both: bool
    ) -> tuple[list[Any], list[Any], dict[tuple[int, bool], Any]]:
        """Return the gradients of the call's arrays but for those through y, of pre-activations and of inputs.

        Those of pre-activations are followed by those of their tangents, None unless a weight or `reads_both` needs them.
        """
        recipe, slots, arrays = self.recipe, self.interface.slots, self.arrays
        gradients: list[Any] = [None] * slots.total
        of_x: list[Any] = [None, None]
        if arriving[X] is not None:
            reads_both = reads_both or arrays[WEIGHT] is not None
            of_x[: 1 + reads_both] = [
                self._apart(recipe.gates, arriving[X], self._gate_axis, moved) for moved in (False, True)[: 1 + reads_both]
            ]
            gradients[X] = of_x[0]
            if arrays[WEIGHT] is not None:
                gradients[X], gradients[WEIGHT] = self.through_weight(*of_x)
        if arriving[BIAS] is not None:
            bias = self._apart(recipe.gates, arriving[BIAS], len(self.interface.directions), False)
            gradients[BIAS] = self._shaped(bias, tuple(arrays[BIAS].shape))
        if arriving[R] is not None:
            gradients[R] = self._shaped(self._of_products(arriving[R], ("R", "d")), tuple(arrays[R].shape))
        if arriving[RECURRENT_BIAS] is not None:
            biases = self._of_products(arriving[RECURRENT_BIAS], ("R",))
            gradients[RECURRENT_BIAS] = self._shaped(biases, tuple(arrays[RECURRENT_BIAS].shape))
        in_order = iter(arriving[SEQUENCES.stop :])
        for picks, places in (
            (recipe.parameters, slots.parameters),
            (recipe.states, slots.states),
            (recipe.shared, slots.shared),
        ):
            gradients[places] = _unpicked(picks, places.stop - places.start, [next(in_order) for _ in picks])
        of_inputs = dict(zip(recipe.inputs, in_order, strict=True))
        count = slots.inputs.stop - slots.inputs.start
        own = tuple(pick for pick in recipe.inputs if pick[0] < count)
        gradients[slots.inputs] = _unpicked(own, count, [of_inputs[pick] for pick in own])
        return gradients, of_x, of_inputs

    @cached_property
    def _of_output(self) -> TangentProducts | None:
        """The products of y that the tangent's kernel reads, if any."""
        recipe, interface = self.recipe, self.interface
        if recipe.output is None or recipe.sums is None:
            return None
        output = SavedOutput(interface, self.xp, self.arrays, self.y, recipe.output)
        matrix, moved = (self._shaped(of[R], interface.R_shape) for of in (self.arrays, self.tangents))
        return TangentProducts(interface, recipe.sums, output, matrix, moved, self.arrays[RECURRENT_BIAS])

    @property
    def _all_gates(self) -> Picks:
        return tuple((place, moved) for moved in (False, True) for place in range(len(self.interface.gates)))

    @property
    def _gate_axis(self) -> int:
        return self.interface.preactivation_axes.index("g")

    @property
    def _bias_shape(self) -> tuple[int, ...]:
        return self.interface.shape(self.interface.gate_axes, 0, 0)

    def _preactivations(self, arrays: Arrays, tangents: Arrays) -> tuple[Any, Any]:
        """Return the pre-activations and their tangent, without bias."""
        x, weight, dx, dweight = arrays[X], arrays[WEIGHT], tangents[X], tangents[WEIGHT]
        if weight is None:
            return x, dx
        moved = [self._product(*pair) for pair in ((dx, weight), (x, dweight)) if None not in map(_presence, pair)]
        product = self._product(x, weight) if self.preactivations is None else self.preactivations
        return product, reduce(add, moved) if moved else None

    def _product(self, x: Any, weight: Any) -> Any:
        """Return x times the weight as pre-activations."""
        interface = self.interface
        order = interface.x_axes.replace("i", "")
        rows = permuted(x, [interface.x_axes.index(axis) for axis in (*order, "i")])
        product = self._multiplied(rows, permuted(weight, (1, 0)))
        product = product.reshape((*product.shape[:-1], *self._bias_shape))
        own = order + interface.gate_axes
        return permuted(product, [own.index(axis) for axis in interface.preactivation_axes])

    def through_weight(self, dx: Any, along: Any = None) -> tuple[Any, Any]:
        """Return the gradients of x and of the weight from those of pre-activations and of their tangents, `along`."""
        interface, order = self.interface, self.interface.x_axes.replace("i", "")
        sides = ((gradient, of[X], of[WEIGHT]) for gradient, of in ((dx, self.arrays), (along, self.tangents)))
        to_rows = [interface.x_axes.index(axis) for axis in (*order, "i")]
        back = [(order + "i").index(axis) for axis in interface.x_axes]
        own = order + interface.gate_axes
        of_x, of_weight = [], []
        for gradient, inputs, matrix in sides:
            if gradient is None:
                continue
            rows = permuted(gradient, [interface.preactivation_axes.index(axis) for axis in own])
            rows = rows.reshape((*rows.shape[:2], interface.weight_rows))
            if matrix is not None:
                of_x.append(permuted(self._multiplied(rows, matrix), back))
            if inputs is not None:
                flat = permuted(inputs, to_rows).reshape((-1, interface.input_size))
                of_weight.append(self._multiplied(permuted(rows.reshape((-1, interface.weight_rows)), (1, 0)), flat))
        return self._contiguous(reduce(add, of_x)), reduce(add, of_weight)

    def _multiplied(self, left: Any, right: Any) -> Any:
        return multiplied(self.xp, self.interface.precision, left, right)

    def _of_gates(self, primal: Any, tangent: Any) -> Any:
        """Return a bias and its tangent as one; None where there is neither."""
        if primal is None:
            return None
        return self._contiguous(self._together(self.recipe.gates, primal, tangent, len(self.interface.directions)))

    def _matrices(self, matrix: Any, tangent: Any) -> Any:
        axis = len(self.interface.directions)
        primal = self._shaped(matrix, self.interface.R_shape)
        moved = primal if tangent is None else self._shaped(tangent, self.interface.R_shape)
        parts = [_part(moved if kind == "dR" else primal, place, axis) for place, kind in self.recipe.products]
        return self._contiguous(self.xp.concatenate(parts, axis=axis))

    def _recurrent_biases(self, bias: Any, tangent: Any) -> Any:
        if bias is None:
            return None
        axis, shape = len(self.interface.directions), self.interface.recurrent_bias_shape
        primal = self._shaped(bias, shape)
        zeros = zeros_of(primal)
        kinds = {"R": primal, "d": zeros if tangent is None else self._shaped(tangent, shape), "dR": zeros}
        parts = [_part(kinds[kind], place, axis) for place, kind in self.recipe.products]
        return self._contiguous(self.xp.concatenate(parts, axis=axis))

    def _of_products(self, gradient: Any, kinds: tuple[str, ...]) -> Any:
        """Return the gradient of R, or of its bias, summed over the products of these kinds."""
        axis = len(self.interface.directions)
        by_place: dict[int, list[Any]] = {place: [] for place in range(len(self.interface.recurrent_gates))}
        for number, (place, kind) in enumerate(self.recipe.products):
            if kind in kinds:
                by_place[place].append(_part(gradient, number, axis))
        zeros = zeros_of(_part(gradient, 0, axis))
        return self.xp.concatenate([reduce(add, parts) if parts else zeros for parts in by_place.values()], axis=axis)

    def _together(self, picks: Picks, primal: Any, tangent: Any, axis: int) -> Any:
        """Return the picked parts of an array and of its tangent along an axis."""
        moved = zeros_of(primal) if tangent is None else tangent
        count = primal.shape[axis]
        if picks == tuple((place, is_moved) for is_moved in (False, True) for place in range(count)):
            return self.xp.concatenate([primal, moved], axis=axis)
        parts = [_part(moved if is_moved else primal, place, axis) for place, is_moved in picks]
        return self.xp.concatenate(parts, axis=axis)

    def _apart(self, picks: Picks, gradient: Any, axis: int, moved: bool) -> Any:
        """Return the gradient of an array, or of its tangent, from the gradient of `_together`."""
        places = {pick: number for number, pick in enumerate(picks)}
        count = len(self.interface.gates)
        first = places.get((0, moved), len(picks))
        if picks[first : first + count] == tuple((place, moved) for place in range(count)):
            return gradient[(*(slice(None),) * axis, slice(first, first + count))]
        zeros = zeros_of(_part(gradient, 0, axis))
        parts = [_part(gradient, places[place, moved], axis) if (place, moved) in places else zeros for place in range(count)]
        return self.xp.concatenate(parts, axis=axis)

    def _shaped(self, array: Any, shape: tuple[int, ...]) -> Any:
        if array is None or tuple(array.shape) == shape or math.prod(shape) != math.prod(array.shape):
            return array
        return array.reshape(shape)

    def _contiguous(self, array: Any) -> Any:
        if array is None:
            return None
        if hasattr(array, "contiguous"):
            words = in_words(self.xp, array)
            return array.contiguous() if words is array else words.contiguous().view(array.dtype)
        return self.xp.ascontiguousarray(array) if hasattr(self.xp, "ascontiguousarray") else array


def sum_of(first: Any, second: Any) -> Any:
    """Return a sum of two arrays, of which either may be None."""
    return first if second is None else second if first is None else first + second


def _presence(array: Any) -> bool | None:
    return None if array is None else True


def _part(array: Any, place: int, axis: int) -> Any:
    return array[(*(slice(None),) * axis, slice(place, place + 1))]


def _picked(picks: Picks, primal: Arrays, tangents: Arrays) -> list[Any]:
    """Return the picked arrays, with zeros for absent ones; all None where all are absent."""
    present = next((array for array in (*primal, *tangents) if array is not None), None)
    if present is None:
        return [None] * len(picks)
    likes = [next((array for array in pair if array is not None), present) for pair in zip(primal, tangents, strict=True)]
    chosen = [(tangents if is_tangent else primal)[place] for place, is_tangent in picks]
    return [zeros_of(likes[place]) if array is None else array for (place, _), array in zip(picks, chosen, strict=True)]


def _unpicked(picks: Picks, count: int, gradients: Arrays) -> list[Any]:
    """Return the gradients of `count` arrays from the gradients of the picked ones; arrays that were not picked get zeros."""
    present = {pick: gradient for pick, gradient in zip(picks, gradients, strict=True) if gradient is not None}
    if not present:
        return [None] * count
    # A value without an effect on the tangent is left out of it, but its tangent is there.
    return [present[place, False] if (place, False) in present else zeros_of(present[place, True]) for place in range(count)]
