"""Parameters and states of layers with projected units as the kernels that serve them take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from minrnn_gen.call.embedding import Embedding
from minrnn_gen.errors import BadInput
from minrnn_gen.layers.architecture import Architecture, Names
from minrnn_gen.run.projected_layers import NamedParameters, embedded_parameters


def embedding_of(made: Architecture) -> Embedding | None:
    """Return the map to arrays of the kernels; None where they take a layer's own."""
    return None if made.projected is None else replace(made.projected.embedding, library=torch)


def parameters_of_kernels(
    made: Architecture, names: Names, layer: int, named: Callable[[Sequence[str | None]], list[Any]]
) -> list[Any]:
    """Return R, weight, bias, recurrent bias and vectors of one run over time, of the `named` parameters of a layer.

    Raises BadInput for a matrix or a bias of another shape than the layer's.
    """
    embedding = embedding_of(made)
    if embedding is None:
        return named(names.in_call_order())
    of_products = names.products + names.product_biases
    for name, parameter in zip(of_products, named(of_products), strict=True):
        if tuple(parameter.shape) != made.shapes[name]:
            raise BadInput(f"parameter {name} has shape {list(parameter.shape)}; {list(made.shapes[name])} is expected")
    _, weight, bias, _, *vectors = named(names.in_call_order())
    of_run = NamedParameters(named(names.products), named(names.product_biases), weight, bias, vectors)
    return embedded_parameters(embedding, made.vectors, of_run, is_first=layer == 0)
