"""Parameters and states of layers with projected units, in the form that their kernels take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from minrnn_gen.call.embedding import Embedding
from minrnn_gen.call.folding import Folding
from minrnn_gen.errors import BadInput
from minrnn_gen.layers.architecture import Architecture, Names
from minrnn_gen.run.projected_layers import NamedParameters, embedded_parameters, folded_parameters


def embedding_of(made: Architecture) -> Embedding | None:
    """Return the map from a layer's arrays to the kernels'; None where the kernels take the layer's own."""
    return None if made.projected is None else replace(made.projected.embedding, library=torch)


def parameters_of_kernels(
    made: Architecture, names: Names, layer: int, named: Callable[[Sequence[str | None]], list[Any]]
) -> list[Any]:
    """Return R, weight, bias, recurrent bias and vectors of one run over time, of the `named` parameters of a layer.

    Raises BadInput for a matrix or a bias of another shape than the layer's.
    """
    embedding = embedding_of(made)
    if embedding is None and made.folding is None:
        return named(names.in_call_order())
    of_products = names.products + names.product_biases
    for name, parameter in zip(of_products, named(of_products), strict=True):
        if tuple(parameter.shape) != made.shapes[name]:
            raise BadInput(f"parameter {name} has shape {list(parameter.shape)}; {list(made.shapes[name])} is expected")
    _, weight, bias, _, *vectors = named(names.in_call_order())
    of_run = NamedParameters(named(names.products), named(names.product_biases), weight, bias, vectors)
    if embedding is not None:
        return embedded_parameters(embedding, made.vectors, of_run, is_first=layer == 0)
    before = _projections(made, layer - 1, named) if layer else []
    with torch.autocast(weight.device.type, enabled=False):
        return folded_parameters(_folding_of(made), of_run, before)


def _folding_of(made: Architecture) -> Folding:
    assert made.folding is not None and made.folding.folded is not None
    return replace(made.folding.folded[1], library=torch)


def _projections(made: Architecture, layer: int, named: Callable[[Sequence[str | None]], list[Any]]) -> list[Any]:
    """Return R.p of a layer, of each direction."""
    joined = [torch.cat([matrix.reshape(-1) for matrix in named(names.products)]) for names in made.names[layer]]
    return [_folding_of(made).parts(R)[1] for R in joined]


def projected(
    made: Architecture, y: Any, final: Sequence[Any], named: Callable[[Sequence[str | None]], list[Any]]
) -> tuple[Any, list[Any]]:
    """Return the output and the final states of layers whose output product is folded into the other products."""
    of_layers = [_projections(made, layer, named) for layer in range(len(made.names))]
    h, *others = final
    with torch.autocast(y.device.type, enabled=False):
        own = torch.stack([matrix for of_layer in of_layers for matrix in of_layer]).to(h.dtype)
        split = h.reshape((*h.shape[:2], own.shape[1], own.shape[3]))
        last = torch.einsum("lbni,lnoi->lbno", split, own).reshape((*h.shape[:2], -1))
        return _folding_of(made).over_time(y, torch.cat(of_layers[-1]).to(y.dtype)), [last, *others]
