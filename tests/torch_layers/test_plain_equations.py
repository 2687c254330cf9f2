"""Layers of every cell beside autograd of the plain equations, in float64."""

from __future__ import annotations

from typing import Any

import pytest
from support.needed import needed
from support.reference_cells import plain_layer

from minrnn_gen.cell.files import library_names

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

BATCH, TIME, INPUTS, HIDDEN = 3, 9, 4, 6
# Sums of a few dozen products of numbers of size 1, in two orders.
TOLERANCE = 1e-10


@pytest.mark.parametrize("model", library_names())
def test_of_every_cell(model: str) -> None:
    torch.manual_seed(0)
    heads = 2 if model in ("slstm", "gru") else 1
    layer = wing.RNN(model, INPUTS, HIDDEN, heads=heads, dtype=torch.float64)
    x = torch.randn(BATCH, TIME, INPUTS, dtype=torch.float64, requires_grad=True)
    parameters = dict(layer.named_parameters())
    expected, last = plain_layer(model, {name.removesuffix("_l0"): one for name, one in parameters.items()}, x, heads)
    y, final = layer(x)
    final = final if isinstance(final, tuple) else (final,)
    torch.testing.assert_close(y, expected, rtol=0, atol=TOLERANCE)
    for one, other in zip(final, last, strict=True):
        torch.testing.assert_close(one[0], other, rtol=0, atol=TOLERANCE)
    assert_same_gradients(y, expected, [x, *parameters.values()])


@pytest.mark.parametrize(
    "model", [name if name == "lif" else pytest.param(name, marks=pytest.mark.matrix_full) for name in library_names()]
)
def test_second_gradients_of_every_cell(model: str) -> None:
    torch.manual_seed(0)
    heads = 2 if model in ("slstm", "gru") else 1
    layer = wing.RNN(model, INPUTS, HIDDEN, heads=heads, dtype=torch.float64)
    x = torch.randn(BATCH, TIME, INPUTS, dtype=torch.float64, requires_grad=True)
    parameters = dict(layer.named_parameters())
    expected, _ = plain_layer(model, {name.removesuffix("_l0"): one for name, one in parameters.items()}, x, heads)
    assert_same_second_gradients(layer(x)[0], expected, [x, *parameters.values()])


def assert_same_gradients(y: Any, expected: Any, inputs: list[Any]) -> None:
    dy = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    pairs = zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(expected, inputs, dy), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


def assert_same_second_gradients(y: Any, expected: Any, inputs: list[Any]) -> None:
    """Compare the gradients of a penalty on all gradients, by which surrogates and constants have theirs too."""
    found = []
    for values in (y, expected):
        first = torch.autograd.grad(values.square().sum(), inputs, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in first)
        found.append(torch.autograd.grad(penalty, inputs, materialize_grads=True))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE)
