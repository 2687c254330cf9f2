"""Attributes of torch's layers that replaced layers lack: the sentence names what helps, and it does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from support.needed import needed

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

HELP = (r"layer\.use_torch\(\)", r"replace\(model, back=True\)", r"replace\(model, leave=")


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.GRU(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def third_derivative(model: Any, x: Any, _folder: Path) -> None:
    value = model(x.requires_grad_()).square().sum()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        value = gradient.square().sum()


def traced(model: Any, x: Any, _folder: Path) -> None:
    torch.jit.trace(model, (x,))


def scripted(model: Any, _x: Any, _folder: Path) -> None:
    torch.jit.script(model)


def to_onnx(model: Any, x: Any, folder: Path) -> None:
    pytest.importorskip("onnx")
    torch.onnx.export(model, (x,), str(folder / "model.onnx"), dynamo=False)


def to_onnx_by_export(model: Any, x: Any, folder: Path) -> None:
    pytest.importorskip("onnxscript")
    torch.onnx.export(model, (x,), str(folder / "model.onnx"), dynamo=True, verbose=False)


WAYS = (third_derivative, traced, scripted, to_onnx, to_onnx_by_export)


@pytest.mark.filterwarnings("ignore")  # torch.jit and one exporter are deprecated
@pytest.mark.parametrize(
    "way", (*WAYS[:-1], pytest.param(WAYS[-1], marks=pytest.mark.matrix_full)), ids=lambda way: way.__name__
)
def test_the_sentence_names_what_helps(way: Any, tmp_path: Path) -> None:
    model, x = Model(), torch.randn(5, 2, 3)
    wing.replace(model)
    with pytest.raises(Exception, match="minrnn_gen") as caught:
        way(model, x, tmp_path)
    said, error = "", caught.value
    while error is not None:  # a compiler and an exporter put their own words around it
        said, error = f"{said}\n{error}", error.__cause__ or error.__context__
    for name in HELP:
        assert re.search(name, said), said
    if way in (to_onnx, to_onnx_by_export):
        assert "minrnn_gen.torch.export_operators" in said and "onnx_translations(program)" in said
    model.layer.use_torch()
    way(model, x, tmp_path)
    wing.replace(model, leave=["layer"])
    way(model, x, tmp_path)
