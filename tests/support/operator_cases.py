"""Modules with layers of every kind of call, as one exported program, and how far other roundings may be from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from support.needed import needed

import minrnn_gen

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

# Two products of the same numbers in another order, of at most so many terms each, and steps that hand the difference on.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float64: 1e-12}


class Case(NamedTuple):
    """A module, and how its inputs are drawn for a batch and a time."""

    module: Any
    draw: Callable[[int, int], tuple[Any, ...]]
    dynamic: tuple[Any, ...]


class Recurrence(torch.nn.Module):
    """A kernel as a function, with the states after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = minrnn_gen.compile({"model": "ind_rnn", "hidden_size": 9, "layout": "BDT", "direction": "reverse"})
        self.u = torch.nn.Parameter(torch.rand(9))

    def forward(self, x: Any, h: Any) -> tuple[Any, ...]:
        y, final, states = wing.recurrence(self.kernel, x, parameters={"u": self.u}, state={"h": h}, all_states=True)
        return y, final["h"], states["h"]


class Sequences(torch.nn.Module):
    """A layer with what says where sequences begin and end."""

    def __init__(self, layer: Any, which: str) -> None:
        super().__init__()
        self.layer, self.which = layer, which

    def forward(self, x: Any, sequences: Any) -> Any:
        return self.layer(x, **{self.which: sequences})


B, T = torch.export.Dim("B"), torch.export.Dim("T")


def stacked() -> Case:
    layer = wing.LSTM(5, 8, num_layers=2, bidirectional=True, batch_first=True)
    return Case(
        layer,
        lambda batch, time: (torch.randn(batch, time, 5), (torch.randn(4, batch, 8), torch.randn(4, batch, 8))),
        ({0: B, 1: T}, ({1: B}, {1: B})),
    )


def in_bfloat16() -> Case:
    layer = wing.GRU(5, 8, num_layers=2, dtype=torch.bfloat16, batch_first=False)
    return Case(layer, lambda batch, time: (torch.randn(time, batch, 5).bfloat16(),), ({0: T, 1: B},))


def with_strides() -> Case:
    layer = wing.MinGRU(5, 8, dtype=torch.float64)
    return Case(layer, lambda batch, time: (torch.randn(5, time, batch).double().permute(2, 1, 0),), ({0: B, 1: T},))


def in_log_space() -> Case:
    layer = wing.RNN("min_gru_log", 5, 8, scan_arithmetic="log", bidirectional=True)
    return Case(layer, lambda batch, time: (torch.randn(batch, time, 5),), ({0: B, 1: T},))


def with_states() -> Case:
    return Case(
        Recurrence(),
        lambda batch, time: (torch.randn(batch, 1, 9, time), torch.randn(batch, 9)),
        ({0: B, 3: T}, {0: B}),
    )


def with_lengths() -> Case:
    return Case(
        Sequences(wing.LSTM(5, 8, batch_first=True), "lengths"),
        lambda batch, time: (torch.randn(batch, time, 5), torch.arange(batch, dtype=torch.int32) % (time + 1)),
        ({0: B, 1: T}, {0: B}),
    )


def with_resets() -> Case:
    return Case(
        Sequences(wing.RGLRU(5, 8, num_layers=2), "resets"),
        lambda batch, time: (torch.randn(batch, time, 5), torch.rand(batch, time) < 0.3),
        ({0: B, 1: T}, {0: B, 1: T}),
    )


def with_boundaries() -> Case:
    def draw(batch: int, time: int) -> tuple[Any, ...]:
        boundaries = torch.tensor([0, *(time * batch * part // 4 for part in (1, 1, 3)), time * batch], dtype=torch.int32)
        return torch.randn(1, time * batch, 5), boundaries

    return Case(Sequences(wing.LSTM(5, 8, bidirectional=True), "cu_seqlens"), draw, ({1: torch.export.Dim("steps")}, None))


def with_shared() -> Case:
    layer = wing.RNN("selective", 5, 8, state_size=3, groups=2, bidirectional=True)
    return Case(layer, lambda batch, time: (torch.randn(batch, time, 5),), ({0: B, 1: T},))


def with_values() -> Case:
    layer = wing.RNN("s4d", 5, 8, num_layers=2, state_size=3)
    return Case(
        layer,
        lambda batch, time: (torch.randn(batch, time, 5), torch.randn(2, batch, 8, 3)),
        ({0: B, 1: T}, {1: B}),
    )


CASES = (
    stacked, in_bfloat16, with_strides, in_log_space, with_states, with_lengths, with_resets, with_boundaries, with_shared,
    with_values,
)  # fmt: skip
# Of every day: layers, 16 bits, inputs S.*, and what comes with strides or boundaries; a kernel takes the compiler a second.
EVERYDAY = (stacked, in_bfloat16, with_strides, with_boundaries, with_shared)


class All(torch.nn.Module):
    """All cases beside each other, so that one library has them."""

    def __init__(self, cases: tuple[Case, ...]) -> None:
        super().__init__()
        self.modules_of_cases = torch.nn.ModuleList(case.module for case in cases)

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        return tuple(module(*given) for module, given in zip(self.modules_of_cases, inputs, strict=True))


def together(cases: tuple[Case, ...]) -> Any:
    """Return the exported program of all cases."""
    torch.manual_seed(3)
    inputs = tuple(case.draw(3, 4) for case in cases)
    return torch.export.export(All(cases).eval(), inputs, dynamic_shapes=(tuple(case.dynamic for case in cases),))


def flat(results: Any) -> list[Any]:
    """Return the tensors of nested tuples."""
    return [tensor for result in results for tensor in (flat(result) if isinstance(result, tuple) else [result])]
