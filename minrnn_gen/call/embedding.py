"""Conversion of arrays between a cell with projected units, or inputs per step, and the equal cell without them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.call.joined import contiguous, library_of, zeros_like
from minrnn_gen.call.product_shapes import ProductShape, equal_neighbours
from minrnn_gen.call.step_inputs import gathered_inputs, spread_inputs


@dataclass(frozen=True)
class Embedding:
    """Maps calls of `outer`, with P units, to calls of `inner`, with H units everywhere, and maps results back.

    The projected units are the first of each head, also where one head of the inner cell has those of all; `mask` is the
    parameter of the inner cell that marks them. Inputs X.* of one
    value per step repeat it in all channels. All functions take arrays of NumPy, CuPy, torch or JAX, or only of `library` if it
    is set, and are differentiable where the arrays are.
    """

    outer: Interface
    inner: Interface
    mask: str | None = None
    library: Any = None

    def arguments(self, arguments: CallArguments) -> CallArguments:
        """Return the checked arguments of a call for the inner kernel."""
        x, parameters, state, inputs = arguments.x, arguments.parameters, arguments.state, arguments.inputs
        if self.outer.step_inputs:
            inputs = spread_inputs(self.outer, inputs, x, self.library)
        if not self.outer.products:
            return arguments._replace(inputs=inputs)
        bias = arguments.recurrent_bias
        named = dict(parameters or {})
        for name in self.outer.projected_parameters:
            named[name] = self.widened(named[name])
        if self.mask is not None:
            named[self.mask] = self.within(x if arguments.R is None else arguments.R)
        return arguments._replace(
            inputs=inputs,
            R=None if arguments.R is None else self.matrices(arguments.R),
            recurrent_bias=bias if bias is None or not self.outer.takes_recurrent_bias else self.biases(bias),
            parameters=named or None,
            state=None if not state else self.states(state),
        )

    def matrices(self, R: Any) -> Any:
        """Return R [Gr, N, D, D] for the inner kernel."""
        return self._by_shape(R, self.outer.has_unequal_products, tuple, self._squares)

    def biases(self, bias: Any) -> Any:
        """Return the recurrent bias [Gr, N, D] for the inner kernel."""
        heads, units = self.inner.heads, self.inner.head_dim

        def embedded(rows: Any, _: ProductShape) -> Any:
            wide = self._padded(rows, -1, self._width)
            return wide.reshape((*wide.shape[:-2], heads, units))

        groups = self.outer.heads
        return self._by_shape(bias, self.outer.has_unequal_biases, lambda shape: (groups, shape.rows // groups), embedded)

    def _by_shape(
        self,
        array: Any,
        is_flat: bool,
        sizes_of: Callable[[ProductShape], tuple[int, ...]],
        embedded: Callable[[Any, ProductShape], Any],
    ) -> Any:
        """Return the embedded arrays of all products, by runs of equal shapes; `sizes_of` returns the sizes of one product."""
        axes = self.outer.directions
        flat = array if is_flat else array.reshape((*axes, -1))
        runs, first = [], 0
        for shape, count in equal_neighbours(self.outer.product_shapes):
            sizes = (count, *sizes_of(shape))
            last = first + math.prod(sizes)
            runs.append(embedded(flat[..., first:last].reshape((*axes, *sizes)), shape))
            first = last
        return runs[0] if len(runs) == 1 else self._library(array).concatenate(runs, axis=len(axes))

    def states(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Return states, or their gradients, for the inner kernel."""
        projected = self.outer.projected_states
        return {
            name: self.widened(value) if value is not None and name in projected else value for name, value in states.items()
        }

    def of_states(self, states: Sequence[Any]) -> list[Any]:
        """Return states in the cell's order of the inner kernel; of none, none."""
        pairs = zip(self.outer.states, states, strict=True) if states else ()
        return [self.widened(value) if name in self.outer.projected_states else value for name, value in pairs]

    def final(self, states: Sequence[Any]) -> tuple[Any, ...]:
        """Return states of sequences, or their gradients, from the inner kernel's."""
        return tuple(
            self._narrowed(value, -1) if value is not None and name in self.outer.projected_states else value
            for name, value in zip(self.outer.states, states, strict=True)
        )

    def by_name(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Return states by name from the inner kernel's."""
        return dict(zip(states, self.final([*states.values()]), strict=True))

    def over_time(self, states: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return states after every step of those of the inner kernel; of none, none."""
        pairs = zip(self.outer.states, states, strict=True) if states else ()
        return tuple(self._channels(value, name in self.outer.projected_states) for name, value in pairs)

    def y(self, y: Any) -> Any:
        """Return y from the inner kernel's y."""
        return self._channels(y, bool(self.outer.output_size))

    def y_of_step(self, y: Any) -> Any:
        """Return y of a single step from the inner kernel's."""
        return self._narrowed(y, -1) if self.outer.output_size else y

    def dy(self, dy: Any) -> Any:
        """Return the gradient of y for the inner kernel."""
        return self.widened(dy, self._channel_axis(dy)) if self.outer.output_size else dy

    def gradients(self, gradients: Mapping[str, Any]) -> dict[str, Any]:
        """Return gradients by name from the inner kernel's."""
        outer, named = self.outer, dict(gradients)
        if outer.step_inputs:
            named["inputs"] = gathered_inputs(outer, named["inputs"])
        if not outer.products:
            return named
        named["state"] = dict(zip(outer.states, self.final(tuple(named["state"].values())), strict=True))
        if "R" in named:
            named["R"] = self._matrices_of(named["R"])
        if "recurrent_bias" in named:
            named["recurrent_bias"] = self._biases_of(named["recurrent_bias"])
        if "parameters" in named:
            of_names = {name: value for name, value in named["parameters"].items() if name != self.mask}
            for name in outer.projected_parameters:
                of_names[name] = self._narrowed(of_names[name], -1)
            named["parameters"] = of_names
            if not of_names:
                del named["parameters"]
        return named

    def _matrices_of(self, R: Any) -> Any:
        matrices = {
            gate: self._rectangle(R[..., place, :, :, :], shape)
            for place, (gate, shape) in enumerate(zip(self.outer.recurrent_gates, self.outer.product_shapes, strict=True))
        }
        if self.outer.has_unequal_products:
            return matrices
        return self._library(R).concatenate([matrix[..., None, :, :, :] for matrix in matrices.values()], axis=-4)

    def _biases_of(self, bias: Any) -> Any:
        biases = {}
        for place, (gate, shape) in enumerate(zip(self.outer.recurrent_gates, self.outer.product_shapes, strict=True)):
            by_head = bias[..., place, :, :].reshape((*self.outer.directions, self.outer.heads, self._width))
            row = by_head[..., : shape.rows // self.outer.heads]
            biases[gate] = contiguous(row.reshape((*self.outer.directions, shape.heads, shape.out)))
        if not self.outer.has_unequal_biases:
            return self._library(bias).concatenate([row[..., None, :, :] for row in biases.values()], axis=-3)
        return {gate: row for gate, row in biases.items() if gate not in self.outer.unbiased}

    def _squares(self, matrices: Any, shape: ProductShape) -> Any:
        """Return matrices [.., N, Dout, Din] of a shape as the inner kernel's [.., N, D, D], with zeros."""
        if shape.heads == 1:
            return self._spread(self._spread(matrices, -1), -2)
        matrices = self._padded(self._padded(matrices, -1, self._width), -2, self._width)
        return matrices if shape.heads == self.inner.heads else self._across(matrices)

    def _across(self, matrices: Any) -> Any:
        """Return the square matrices of heads as one block-diagonal matrix over all heads."""
        *lead, heads, width, _ = matrices.shape
        block = (width, width)
        # Heads blocks of zeros after each block put block n at place n (heads + 1), on the diagonal of heads by heads blocks.
        zeros = zeros_like(matrices, (*lead, heads, heads, *block))
        spread = self._library(matrices).concatenate([matrices[..., None, :, :], zeros], axis=-3)
        squares = spread.reshape((*lead, heads * (heads + 1), *block))[..., : heads * heads, :, :]
        rows = squares.reshape((*lead, heads, heads, *block)).swapaxes(-3, -2)
        return rows.reshape((*lead, 1, heads * width, heads * width))

    def _rectangle(self, matrix: Any, shape: ProductShape) -> Any:
        """Return the matrix of a shape from the inner kernel's, which is padded with zeros."""
        if shape.heads == 1:
            return self._gathered(self._gathered(matrix, -1, shape.of), -2, shape.out)
        if shape.heads == self.inner.heads:
            return contiguous(matrix[..., : shape.out, : shape.of])
        starts = [head * self._width for head in range(shape.heads)]
        blocks = [matrix[..., start : start + shape.out, start : start + shape.of] for start in starts]
        return self._library(matrix).concatenate(blocks, axis=-3)

    def within(self, like: Any) -> Any:
        """Return the parameter `mask`, in the dtype and on the device of another array."""
        heads, units = self.outer.heads, self.outer.projection_size // self.outer.heads
        ones = zeros_like(like, (*self.outer.directions, heads, units)) + 1
        return self._padded(ones, -1, self._width).reshape((*self.outer.directions, self.inner.hidden_size))

    def _channel_axis(self, array: Any) -> int:
        """Return the axis of channels of y, counted from the end; of a single step it is the last."""
        axes = Y_AXES[self.outer.layout]
        return axes.index("h") - len(axes) if len(array.shape) == len(axes) else -1

    def _channels(self, array: Any, is_projected: bool) -> Any:
        return self._narrowed(array, self._channel_axis(array)) if is_projected else array

    def widened(self, array: Any, axis: int = -1) -> Any:
        """Return an array with the P units of each head, and of each direction in the channels of y, padded with zeros to D."""
        by_head = _split(array, axis, self.outer.projection_size // self.outer.heads)
        return _merged(self._padded(by_head, axis, self._width), axis)

    def _narrowed(self, array: Any, axis: int) -> Any:
        return self._first_of_heads(array, axis, self.outer.projection_size // self.outer.heads)

    @property
    def _width(self) -> int:
        """The units of the inner kernel that a head of the outer cell has."""
        return self.inner.hidden_size // self.outer.heads

    def _spread(self, array: Any, axis: int) -> Any:
        """Return an array over all heads with as many units as the inner kernel has, each head's units first."""
        if array.shape[axis] == self.inner.hidden_size:
            return array
        by_head = _split(array, axis, array.shape[axis] // self.outer.heads)
        return _merged(self._padded(by_head, axis, self._width), axis)

    def _gathered(self, array: Any, axis: int, size: int) -> Any:
        """Undo `_spread`: return `size` units along the axis of a spread array."""
        return array if array.shape[axis] == size else self._first_of_heads(array, axis, size // self.outer.heads)

    def _first_of_heads(self, array: Any, axis: int, units: int) -> Any:
        by_head = _split(array, axis, self._width)
        cut = (..., slice(0, units), *(slice(None),) * (-1 - axis))
        return contiguous(_merged(by_head[cut], axis))

    def _padded(self, array: Any, axis: int, size: int) -> Any:
        """Return an array padded with zeros at the end of an axis, counted from the end, to a size."""
        shape = list(array.shape)
        if shape[axis] == size:
            return array
        shape[axis] = size - shape[axis]
        return self._library(array).concatenate([array, zeros_like(array, tuple(shape))], axis=axis)

    def _library(self, array: Any) -> Any:
        return library_of(array) if self.library is None else self.library


def _split(array: Any, axis: int, size: int) -> Any:
    """View an axis, counted from the end, as two axes, the second of size `size`."""
    shape = tuple(array.shape)
    at = len(shape) + axis
    return array.reshape((*shape[:at], shape[at] // size, size, *shape[at + 1 :]))


def _merged(array: Any, axis: int) -> Any:
    shape = tuple(array.shape)
    at = len(shape) + axis
    return array.reshape((*shape[: at - 1], shape[at - 1] * shape[at], *shape[at + 1 :]))
