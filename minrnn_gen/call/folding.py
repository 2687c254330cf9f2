"""Conversion of arrays between a cell whose output is a product h[t] = R.p(u) and the cell whose output is u."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.call.array import is_tensor
from minrnn_gen.call.interface import Y_AXES, Interface


@dataclass(frozen=True)
class Folding:
    """Maps calls of `outer`, without initial states, to calls of `inner`, and maps results back.

    R.g R.p is made once per call, in the dtype of R; `gate` is p. Arrays are those of a library with gradients, torch or JAX.
    """

    outer: Interface
    inner: Interface
    gate: str
    library: Any = None

    def serves(self, arguments: CallArguments) -> bool:
        """Whether a call has no initial states, and R and a bias of the right shapes; other code refuses or serves the rest."""
        outer, bias = self.outer, arguments.recurrent_bias
        has_bias = bias is None or (outer.takes_recurrent_bias and _shape_of(bias) == outer.recurrent_bias_shape)
        return arguments.state is None and _shape_of(arguments.R) == outer.R_shape and has_bias

    def parts(self, R: Any) -> tuple[Any, Any]:
        """Return the matrices of all products but p, [.., Gr - 1, N, D, P / N], and the matrix of p, [.., N, P / N, D]."""
        axes, shapes, place = self.outer.directions, self.outer.product_shapes, self.outer.recurrent_gates.index(self.gate)
        counts = [
            sum(shape.elements for shape in run) for run in (shapes[:place], shapes[place : place + 1], shapes[place + 1 :])
        ]
        before, own, after = self._split(R.reshape((*axes, -1)), counts)
        others = before if not counts[2] else after if not counts[0] else self.library.concatenate([before, after], axis=-1)
        return others.reshape((*axes, len(shapes) - 1, *shapes[place - 1])), own.reshape((*axes, *shapes[place]))

    def arguments(self, arguments: CallArguments, matrices: tuple[Any, Any]) -> CallArguments:
        """Return the arguments of a call, checked, of the inner kernel; `matrices` are the `parts` of R."""
        bias = arguments.recurrent_bias
        return arguments._replace(R=self.matrices(*matrices), recurrent_bias=None if bias is None else self.biases(bias))

    def matrices(self, others: Any, own: Any) -> Any:
        """Return R.g R.p of the `parts` of R, R of the inner kernel."""
        if self.inner.heads == 1 and not self.outer.directions:  # one product of two matrices
            folded = others.reshape((-1, others.shape[-1])) @ own.reshape(own.shape[-2:])
        else:
            folded = others @ own[..., None, :, :, :]
        return folded.reshape(self.inner.R_shape)

    def biases(self, bias: Any) -> Any:
        """Return the recurrent bias of the inner kernel."""
        counts = self._counts([shape.rows for shape in self.outer.product_shapes])
        before, _, after = self._split(bias.reshape((*self.outer.directions, -1)), counts)
        return self.library.concatenate([before, after], axis=-1).reshape(self.inner.recurrent_bias_shape)

    def _counts(self, sizes: list[int]) -> list[int]:
        """Return the sizes of the products before p, of p, and after it."""
        place = self.outer.recurrent_gates.index(self.gate)
        return [sum(sizes[:place]), sizes[place], sum(sizes[place + 1 :])]

    def _split(self, array: Any, counts: list[int]) -> Any:
        """Return an array in parts along its last axis."""
        if is_tensor(array):
            return array.split(counts, -1)
        return self.library.split(array, [counts[0], counts[0] + counts[1]], axis=-1)

    def over_time(self, values: Any, own: Any) -> Any:
        """Return R.p, with the matrix `own`, of the values of all steps, shaped like y."""
        if own.shape[0] == 1 and self.outer.layout != "BDT" and not self.outer.directions:
            return values @ own.reshape(own.shape[-2:]).swapaxes(0, 1)
        out, of = own.shape[-2:]
        matrices = own.reshape((-1, out, of))
        axes, sizes = Y_AXES[self.outer.layout], list(values.shape)
        place = axes.index("h")
        split = values.reshape((*sizes[:place], matrices.shape[0], of, *sizes[place + 1 :]))
        before, after = axes[:place], axes[place + 1 :]
        projected = self.library.einsum(f"{before}ni{after},noi->{before}no{after}", split, matrices)
        return projected.reshape((*sizes[:place], -1, *sizes[place + 1 :]))

    def last(self, state: Any, own: Any) -> Any:
        """Return R.p of states of sequences, in their dtype."""
        matrices = own.to(state.dtype) if is_tensor(own) else own.astype(state.dtype)
        if own.shape[0] == 1 and not self.outer.directions:
            return state @ matrices.reshape(own.shape[-2:]).swapaxes(0, 1)
        axes = "d" if self.outer.directions else ""
        split = state.reshape((*state.shape[:-1], *matrices.shape[-3::2]))
        return self.library.einsum(f"{axes}bni,{axes}noi->{axes}bno", split, matrices).reshape((*state.shape[:-1], -1))


def _shape_of(array: Any) -> tuple[int, ...]:
    return tuple(getattr(array, "shape", ()))
