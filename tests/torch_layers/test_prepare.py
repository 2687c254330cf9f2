"""Layers compiled ahead: the kernels of all their layers, in the precision of their weights or of what is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.everyday import one_in
from support.needed import needed
from support.uncompiled_kernels import nothing_compiled

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
kernels = needed("minrnn_gen.layers.kernels")


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    with nothing_compiled():
        yield


def passes_of(layer: Any, dtype: Any) -> list[set[str]]:
    """Return the passes that are planned of each layer's kernel."""
    recipes = layer._recipes({torch.float32: "fp32", torch.bfloat16: "bf16"}[dtype])
    return [{key.kernel_pass for key in kernels.kernel_by(recipe).plans} for recipe in recipes]


@pytest.mark.parametrize(
    "make", one_in(3, [lambda: wing.LSTM(4, 8, 2), lambda: wing.nn.GRU(4, 8, 2), lambda: wing.MinGRU(4, 8, 2)])
)
def test_all_layers_are_prepared(make: Any) -> None:
    layer = make()
    assert passes_of(layer, torch.bfloat16) == [set(), set()]
    seen: list[tuple[int, int]] = []
    layer.prepare([(2, 3), (64, 10)], dtype=torch.bfloat16, watch=lambda done, of: seen.append((done, of)))
    assert passes_of(layer, torch.bfloat16) == [{"forward", "backward", "step"}] * 2
    assert passes_of(layer, torch.float32) == [set(), set()] and seen
    layer.prepare([(2, 3)])
    assert all(passes >= {"forward", "backward"} for passes in passes_of(layer, torch.float32))


def test_what_has_no_kernels_is_refused() -> None:
    layer = wing.LSTM(4, 8)
    with pytest.raises(BadInput, match=r"^dtype is torch.int32; one of torch.float64, "):
        layer.prepare([(1, 1)], dtype=torch.int32)
    with pytest.raises(BadInput, match="pairs \\(batch, time\\) of positive integers"):
        layer.prepare([(1, 0)])
