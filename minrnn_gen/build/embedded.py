"""The builder of a spec's kernels: for a cell with products of several shapes or inputs per step, the serving cell's."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from minrnn_gen.build.builder import Builder
from minrnn_gen.build.recipe import check_projection_size
from minrnn_gen.config.spec import load_spec

BuilderT = TypeVar("BuilderT", bound=Builder)


def embedded_builder(builder: BuilderT) -> tuple[BuilderT, str | None] | None:
    """Return the builder of the kernels that serve a cell with several products or inputs per step, and `Embedding.mask`.

    None for any other cell, which has its own kernels.
    """
    source = builder.cell_source
    if not source.has_products or builder.cell.projection.is_plain:
        if not source.has_step_inputs:
            return None
        file = {**source.document.data, "inputs": dict.fromkeys(source.document.data["inputs"], 1)}
        return replace(
            builder, spec=load_spec({**builder.spec.model_dump(), "model": file, "gpu": builder.spec.gpu_asked})
        ), None
    from minrnn_gen.cell.embedding import embedded_cell

    check_projection_size(builder.spec, builder.cell_source, builder.cell.projection)
    spec, cell = builder.spec, builder.cell
    file, mask = embedded_cell(cell, spec.hidden_size, spec.projection_size or 0, spec.heads)
    biases = dict(cell.projection.biases)
    has_bias = any(biases.get(gate, builder.takes_recurrent_bias) for gate in cell.recurrent_gates)
    keys = {**spec.model_dump(), "model": file, "projection_size": None, "recurrent_bias": has_bias}
    keys |= {"gpu": spec.gpu_asked, "heads": 1 if cell.projection.across else spec.heads}
    return replace(builder, spec=load_spec(keys)), mask


def builder_of_kernels(builder: BuilderT) -> BuilderT:
    """Return the builder of the kernels that run a builder's calls: itself, unless the cell has products of several shapes."""
    embedded = embedded_builder(builder)
    return builder if embedded is None else embedded[0]


def folded_builder(builder: BuilderT) -> tuple[BuilderT, str] | None:
    """Return the builder of kernels with the last product of a cell folded into all others, and that product's gate.

    None where the output is not that product alone.
    """
    source = builder.cell_source
    if not source.has_products or source.has_step_inputs or builder.cell.projection.is_plain:
        return None
    from minrnn_gen.cell.folding import folded_cell

    folded = folded_cell(builder.cell)
    if folded is None:
        return None
    has_bias = any(
        dict(builder.cell.projection.biases).get(gate, builder.takes_recurrent_bias) for gate in _others(builder, folded.gate)
    )
    keys = {**builder.spec.model_dump(), "model": folded.file, "projection_size": None, "recurrent_bias": has_bias}
    return replace(builder, spec=load_spec({**keys, "gpu": builder.spec.gpu_asked})), folded.gate


def _others(builder: Builder, gate: str) -> tuple[str, ...]:
    return tuple(name for name in builder.cell.recurrent_gates if name != gate)
