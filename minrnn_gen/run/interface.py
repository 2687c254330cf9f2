"""The interface of a spec's kernels: what they accept, by the sizes of the spec and the names of its cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.recipe import check_projection_size, check_sizes_of_vectors
from minrnn_gen.call.interface import Interface
from minrnn_gen.call.product_shapes import ProductShape
from minrnn_gen.cell.files import CellSource
from minrnn_gen.cell.projection import NO_PROJECTION
from minrnn_gen.config.spec import Spec
from minrnn_gen.plan.problem import CellShape
from minrnn_gen.precision import precision_of

if TYPE_CHECKING:  # imported only where the cache has no answer
    from minrnn_gen.cell.language import Cell


def interface_of(builder: Builder, cell: CellShape) -> Interface:
    """Return the interface of a builder's kernels, for a cell of this shape."""
    spec = builder.spec
    precision = precision_of(spec.precision)
    if cell.recurrent_gates or spec.input_size:  # without a matrix nothing is multiplied
        precision = precision.with_product(spec.fp32_product)
    return Interface(
        layout=spec.layout,
        precision=precision,
        hidden_size=spec.hidden_size,
        input_size=spec.input_size,
        gates=cell.gates,
        states=cell.states,
        parameters=cell.parameters,
        direction=spec.direction,
        recurrent_gates=cell.recurrent_gates,
        heads=spec.heads,
        inputs=cell.inputs,
        block_diagonal=cell.block_diagonal,
        step_inputs=builder.cell.step_inputs if builder.cell_source.has_step_inputs else (),
        **_vectors_of(builder),
        **{"takes_recurrent_bias": builder.takes_recurrent_bias, **_projection_of(builder)},
    )


def _vectors_of(builder: Builder) -> dict[str, Any]:
    """Return an interface's fields for a cell with the axis n; raises BadInput for a spec whose sizes do not fit the cell."""
    spec = builder.spec
    check_sizes_of_vectors(spec, builder.cell_source)
    if not builder.cell_source.has_vectors:
        return {}
    vectors = builder.cell.vectors
    return {
        "vector_states": vectors.states,
        "vector_parameters": vectors.parameters,
        "shared": vectors.shared,
        "state_size": spec.state_size,
        "groups": spec.groups or 1,
    }


def _projection_of(builder: Builder) -> dict[str, Any]:
    """Return an interface's fields for a cell that lists products; raises BadInput for a size that does not fit the cell."""
    source = builder.cell_source
    if not source.has_products:
        check_projection_size(builder.spec, source, NO_PROJECTION)
        return {}
    return projection_of(builder.spec, source, builder.cell, builder.takes_recurrent_bias)


def projection_of(spec: Spec, source: CellSource, cell: Cell, has_recurrent_bias: bool) -> dict[str, Any]:
    """Return an interface's fields for a cell's projection; `has_recurrent_bias`: the default of each product.

    Raises BadInput for a size that does not fit the cell.
    """
    projection = cell.projection
    check_projection_size(spec, source, cell.projection)
    if projection.is_plain:
        return {}
    size, biases = spec.projection_size or 0, dict(projection.biases)

    def shape(gate: str) -> ProductShape:
        heads = 1 if gate in projection.across else spec.heads
        out, of = (size if gate in names else spec.hidden_size for names in (projection.to, projection.of))
        return ProductShape(heads, out // heads, of // heads)

    unbiased = tuple(gate for gate in cell.recurrent_gates if not biases.get(gate, has_recurrent_bias))
    return {
        "takes_recurrent_bias": len(unbiased) < len(cell.recurrent_gates),
        "model": source.name,
        "projection_size": size,
        "projected_states": projection.states,
        "projected_parameters": projection.parameters,
        "output_size": size if projection.output else 0,
        "products": tuple(map(shape, cell.recurrent_gates)),
        "unbiased": unbiased,
    }
