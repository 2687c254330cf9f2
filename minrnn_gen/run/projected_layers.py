"""Layers with projected units: their parameters by gate, and the conversion to parameters of the kernels that serve them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from minrnn_gen.call.embedding import Embedding
from minrnn_gen.call.folding import Folding
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.joined import zeros_like
from minrnn_gen.cell.embedding import embedded_cell
from minrnn_gen.cell.files import CellSource
from minrnn_gen.cell.folding import folded_cell
from minrnn_gen.cell.language import Cell
from minrnn_gen.config.spec import Spec, load_spec
from minrnn_gen.precision import precision_of
from minrnn_gen.run.interface import projection_of


@dataclass(frozen=True)
class ProjectedLayers:
    """Kernels of a layer for a cell with projected units.

    `cell` is the file of the kernels' cell; `embedding` converts arrays of one direction to theirs. `folded`, for calls without
    initial states: the file of the cell whose output is the operand of the last product, and its conversion of arrays.
    """

    cell: dict[str, Any]
    embedding: Embedding
    folded: tuple[dict[str, Any], Folding] | None = None

    def folded_spec(self, spec: Spec) -> Spec | None:
        """Return the spec of the kernels with the output's own product folded into the others; None where there is none."""
        if self.folded is None:
            return None
        file, folding = self.folded
        return load_spec(spec, model=file, projection_size=None, recurrent_bias=folding.inner.takes_recurrent_bias)

    @property
    def outer(self) -> Interface:
        """The interface of the cell before embedding."""
        return self.embedding.outer

    def spec(self, spec: Spec) -> Spec:
        """Return the spec of the kernels."""
        return load_spec(spec, model=self.cell, projection_size=None, heads=self.embedding.inner.heads)

    @property
    def biased_gates(self) -> tuple[str, ...]:
        """The gates of R whose products have a bias."""
        return tuple(gate for gate in self.outer.recurrent_gates if gate not in self.outer.unbiased)

    def shapes_of_products(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the matrices of all gates, by these names."""
        return {name: (shape.rows, shape.of) for name, shape in zip(names, self.outer.product_shapes, strict=True)}

    def shapes_of_biases(self, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        """Return {name: shape} of the biases, one name for each gate that has a bias; empty where `names` is."""
        by_gate = dict(zip(self.outer.recurrent_gates, self.outer.product_shapes, strict=True))
        return {name: (by_gate[gate].rows,) for name, gate in zip(names, self.biased_gates, strict=True)}


def projected_layers(spec: Spec, source: CellSource, cell: Cell, has_recurrent_bias: bool) -> ProjectedLayers | None:
    """Return the additional parts of a cell's layers; None where all products have one shape and bias.

    Raises BadInput for a size that does not fit the cell.
    """
    fields = projection_of(spec, source, cell, has_recurrent_bias)
    if not fields:
        return None
    file, mask = embedded_cell(cell, spec.hidden_size, spec.projection_size or 0, spec.heads)
    plain = Interface(
        layout=spec.layout,
        precision=precision_of(spec.precision),
        hidden_size=spec.hidden_size,
        input_size=None,
        gates=cell.gates,
        states=cell.states,
        parameters=cell.parameters,
        recurrent_gates=cell.recurrent_gates,
        heads=spec.heads,
        takes_recurrent_bias=fields["takes_recurrent_bias"],
    )
    inner = replace(plain, heads=1 if cell.projection.across else spec.heads)
    outer, folded = replace(plain, **fields), folded_cell(cell)
    if folded is None:
        return ProjectedLayers(file, Embedding(outer, inner, mask))
    others = tuple(gate for gate in cell.recurrent_gates if gate != folded.gate)
    has_bias = any(gate not in outer.unbiased for gate in others)
    of_folded = replace(plain, recurrent_gates=others, takes_recurrent_bias=has_bias)
    return ProjectedLayers(file, Embedding(outer, inner, mask), (folded.file, Folding(outer, of_folded, folded.gate)))


class NamedParameters(NamedTuple):
    """The parameters of one run over time: R's matrices and biases, each of one gate or of neighbours, and a call's own.

    The call's own are weight and bias, None where absent, and the cell's vectors.
    """

    products: Sequence[Any]
    product_biases: Sequence[Any]
    weight: Any
    bias: Any
    vectors: Sequence[Any]


def embedded_parameters(embedding: Embedding, vectors: Sequence[str], named: NamedParameters, is_first: bool) -> list[Any]:
    """Return R, weight, bias, recurrent bias and vectors in the form of the kernels; `is_first`: the layer reads the input.

    `embedding` has the library of all arrays; `vectors` are the names of the cell's vectors.
    """
    outer, library = embedding.outer, embedding.library
    joined = library.concatenate([matrix.reshape(-1) for matrix in named.products])
    R = embedding.matrices(joined if outer.has_unequal_products else joined.reshape(outer.R_shape))
    recurrent_bias = None
    if named.product_biases:
        rows = _bias_rows(embedding, library.concatenate([*named.product_biases]))
        rows = rows if outer.has_unequal_biases else rows.reshape(outer.recurrent_bias_shape)
        recurrent_bias = embedding.biases(rows).reshape(-1)
    weight = named.weight if is_first or not outer.output_size else embedding.widened(named.weight)
    own = [
        embedding.widened(vector) if name in outer.projected_parameters else vector
        for name, vector in zip(vectors, named.vectors, strict=True)
    ]
    own += [] if embedding.mask is None else [embedding.within(joined)]
    return [R.reshape((-1, embedding.inner.head_dim)), weight, named.bias, recurrent_bias, *own]


def folded_parameters(folding: Folding, named: NamedParameters, before: Sequence[Any]) -> list[Any]:
    """Return R, weight, bias, recurrent bias and vectors in the form of the kernels whose output R.p multiplies afterwards.

    `before`: R.p of the layer before, of each direction [N, P / N, D], which the weight multiplies; none of the first layer.
    """
    library = folding.library
    others, own = folding.parts(library.concatenate([matrix.reshape(-1) for matrix in named.products]))
    recurrent_bias = None
    if named.product_biases:
        recurrent_bias = folding.biases(_bias_rows(folding, library.concatenate([*named.product_biases]))).reshape(-1)
    weight = named.weight
    if before:
        rows, (heads, units) = weight.shape[0], before[0].shape[:2]
        pieces = weight.reshape((rows, len(before), heads, units)).swapaxes(0, 1)
        products = [library.einsum("gno,noi->gni", pieces[place], matrix) for place, matrix in enumerate(before)]
        weight = library.concatenate([product.reshape((rows, -1)) for product in products], axis=-1)
    R = folding.matrices(others, own).reshape((-1, folding.inner.head_dim))
    return [R, weight, named.bias, recurrent_bias, *named.vectors]


def _bias_rows(embedding: Embedding | Folding, biases: Any) -> Any:
    """Return the bias of all gates in one array, 0 for gates without a bias."""
    parts, first = [], 0
    for gate, shape in zip(embedding.outer.recurrent_gates, embedding.outer.product_shapes, strict=True):
        has_bias = gate not in embedding.outer.unbiased
        parts.append(biases[first : first + shape.rows] if has_bias else zeros_like(biases, (shape.rows,)))
        first += shape.rows if has_bias else 0
    return embedding.library.concatenate(parts)
