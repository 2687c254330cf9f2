"""Every layer that torch's users may make, each once: what is tested of all of them goes through this list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import minrnn_gen.torch as wing

BATCH, TIME, INPUTS, HIDDEN = 2, 5, 4, 6
OWN_CELL = {"name": "leaky", "equations": "h[t] = keep * h[t-1] + (1 - keep) * tanh(W.h + R.h)", "parameters": ["keep"]}


@dataclass(frozen=True)
class Layer:
    """A class of layers, and how one of INPUTS channels is made; `options` go to its constructor. `cell`: one of n values."""

    kind: type
    make: Callable[..., Any]
    batch_first: bool = True
    cell: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind.__module__}.{self.kind.__name__}{self.cell and f' of {self.cell}'}"

    def input(self, batch: int = BATCH, time: int = TIME, **made: Any) -> Any:
        return torch.randn((batch, time, INPUTS) if self.batch_first else (time, batch, INPUTS), **made)


def _of_cell(kind: type) -> Layer:
    return Layer(kind, lambda **options: kind(INPUTS, HIDDEN, **options))


def _of_n_values(cell: str, **sizes: int) -> Layer:
    return Layer(wing.RNN, lambda **options: wing.RNN(cell, INPUTS, HIDDEN, **{**sizes, **options}), cell=cell)


LAYERS = (
    Layer(wing.RNN, lambda **options: wing.RNN(OWN_CELL, INPUTS, HIDDEN, **options)),
    *map(_of_cell, (wing.LSTM, wing.GRU, wing.SLSTM, wing.Elman, wing.MinGRU, wing.MinGRULog, wing.MinGRUTanh)),
    *map(_of_cell, (wing.MinLSTM, wing.MinLSTMLog, wing.HGRN, wing.RGLRU, wing.QRNN, wing.IndRNN)),
    *map(_of_cell, (wing.PeepholeLSTM, wing.LIF, wing.RecurrentLIF)),
    _of_n_values("selective", num_layers=2, state_size=3, groups=2),
    _of_n_values("gated_linear", state_size=3, bidirectional=True),
    _of_n_values("s4d", num_layers=2, state_size=2),
    Layer(wing.SelectiveScan, lambda **options: wing.SelectiveScan(INPUTS, state_size=3, **options)),
    *(
        Layer(kind, lambda kind=kind, **options: kind(INPUTS, HIDDEN, **options), batch_first=False)
        for kind in (wing.nn.LSTM, wing.nn.GRU, wing.nn.RNN)
    ),
)
# Those that differ in how they are called; the others are one class with another cell.
DIFFERENT = (wing.RNN, wing.LSTM, wing.SelectiveScan, wing.nn.LSTM)


def parameters() -> list[Any]:
    """Return the layers as parameters of a test, those that differ for every day."""
    marks = {True: (), False: (pytest.mark.matrix_full,)}
    is_different = {layer: layer.kind in DIFFERENT and layer.cell in ("", "selective") for layer in LAYERS}
    return [pytest.param(layer, id=layer.name, marks=marks[is_different[layer]]) for layer in LAYERS]


def flat(results: Any) -> list[Any]:
    """Return the tensors of nested results."""
    return [one for result in results for one in flat(result)] if isinstance(results, tuple | list) else [results]


def outcome(layer: Any, x: Any, run: Callable[..., Any] | None = None) -> list[Any]:
    """Return outputs and gradients of a call of a layer; `run`: what calls it."""
    x = x.detach().requires_grad_()
    results = flat(layer(x) if run is None else run(x))
    gradients = torch.autograd.grad(sum(one.float().square().sum() for one in results), [x, *layer.parameters()])
    return [*results, *gradients]
