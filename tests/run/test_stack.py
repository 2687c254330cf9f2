"""Layers beside each other on pieces of time compute what they do one after the other, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.emulated_code import HAS_COMPILER
from support.needed import needed
from support.small_problems import (
    BF16,
    CLUSTER,
    DENSE,
    FIVE,
    FP16,
    GRID,
    LARGE,
    LEAKY,
    LSTM,
    ONCE,
    SHARED_CELLS,
    STREAMED,
    TWO_PRODUCTS,
    TWO_THAT_SUM,
    WantedBuilder,
)

from minrnn_gen.build.store import Store
from minrnn_gen.config.spec import load_spec
from minrnn_gen.interpret.kernel import InterpretedKernel
from minrnn_gen.run.layers.stack import Cut, StackRun
from minrnn_gen.run.target import target_of

torch = pytest.importorskip("torch")
dropout = needed("minrnn_gen.torch.layers.dropout")

pytestmark = pytest.mark.skipif(
    not HAS_COMPILER, reason="the kernels' text is compiled by a host C++ compiler, and there is none"
)

LAYERS, BATCH, TIME = 2, 3, 7
PROBABILITY = 0.3
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}

# What is asked for, the variables of the kernels, the layout, and what calls have.
WAYS = {
    "lstm, dropout": (LSTM, DENSE, "BTD", "dropout state"),
    "lstm": (LSTM, DENSE, "BTD", "state"),
    "time first": (LSTM, DENSE | {"batch_tile": 4}, "TBD", "resets state"),
    "time first, dropout": ({"model": "gru", "hidden_size": 24}, DENSE, "TBD", "dropout resets"),
    "dropout without vectors": ({"model": "elman", "hidden_size": 9}, DENSE, "BTD", "dropout"),
    "gru": (BF16 | {"model": "gru", "hidden_size": 24}, DENSE, "BTD", "resets state"),
    "heads": (FP16 | {"model": "slstm", "hidden_size": 32, "heads": 2}, DENSE, "TBD", "resets"),
    "parameters": (LEAKY | BF16, DENSE, "BTD", "state"),
    "cluster": (LSTM, DENSE | CLUSTER, "BTD", "resets"),
    "reduce-scatter": (LSTM, DENSE | SHARED_CELLS | CLUSTER, "TBD", "state"),
    "grid": (LSTM, DENSE | GRID, "BTD", "state"),
    "grid of five": ({"model": "elman", "hidden_size": 72}, DENSE | FIVE, "BTD", ""),
    "tf32": ({"model": "gru", "hidden_size": 40}, DENSE, "BTD", "state"),
    "large batch": (LSTM, LARGE, "BTD", "resets state"),
    "large batch, gradients of products alone": (BF16 | TWO_PRODUCTS | {"hidden_size": 40}, LARGE, "TBD", "state"),
    "large batch in tf32": (ONCE | {"model": "gru", "hidden_size": 20}, LARGE, "BTD", "resets"),
    "large batch in clusters": (LSTM, LARGE | TWO_THAT_SUM | {"batch_tile": 16}, "BTD", ""),
    "large batch, R streamed": (LSTM, STREAMED, "BTD", "state"),
}


class Stack:
    """Layers of one kernel, emulated, and a call of them."""

    def __init__(self, asked: dict[str, Any], wanted: dict[str, int], layout: str, flags: str, folder: Path) -> None:
        size = {"hidden_size": 40} | asked
        gpu = "a100" if wanted.get("grid_blocks", 1) > 1 else "h200"
        spec = load_spec(size | {"layout": layout, "input_size": size["hidden_size"], "batch": BATCH, "gpu": gpu})
        builder = WantedBuilder(spec, target_of(spec), Store(folder), wanted=tuple(wanted.items()))
        self.kernel = InterpretedKernel(builder, ())
        self.interface = interface = self.kernel.interface
        self.run = StackRun([interface] * LAYERS, builder, self.kernel.executor.backend)
        torch.manual_seed(0)
        dtype, hidden = DTYPES[spec.precision], spec.hidden_size
        shape = (BATCH, TIME, hidden) if layout == "BTD" else (TIME, BATCH, hidden)
        self.layers = [
            (
                torch.randn(interface.R_shape).to(dtype) * 0.3,
                torch.randn(interface.weight_rows, hidden).to(dtype) * 0.3,
                torch.randn(interface.weight_rows).to(dtype),
                torch.randn(interface.recurrent_rows).to(dtype) if interface.takes_recurrent_bias else None,
                *(torch.rand(hidden) for _ in interface.parameters),
            )
            for _ in range(LAYERS)
        ]
        self.x, self.dy = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        self.resets = torch.rand(BATCH, TIME) < 0.3 if "resets" in flags else None
        self.dropout = PROBABILITY if "dropout" in flags else 0.0
        self.masks = dropout.draw_masks(self.x, hidden, LAYERS - 1, self.dropout)
        states = [torch.randn(LAYERS, BATCH, hidden) for _ in interface.states]
        self.states = states if "state" in flags else [None] * len(interface.states)
        self.dfinal = [torch.randn(LAYERS, BATCH, hidden) if "state" in flags else None for _ in interface.states]

    def step(self, cut: Cut) -> tuple[list[Any], list[Any]]:
        """Return the results of a forward that saves, and the gradients of its backward."""
        call = [self.x, self.resets, *(tensor for layer in self.layers for tensor in layer), *self.states, *self.masks]
        results = self.run.forward(call, cut, True, self.dropout)
        saved = results[1 + len(self.interface.states) :]
        return results, self.run.backward(call, [results[0], *saved], [self.dy, *self.dfinal], cut, self.dropout)

    def dropped_below(self, layer: int, values: Any) -> Any:
        """Return what dropout makes of the output that a layer reads, or of its gradient."""
        return dropout.dropped(values, self.masks[layer - 1], self.dropout) if layer and self.masks else values

    def one_by_one(self) -> tuple[list[Any], list[Any]]:
        """Return the same results and gradients of calls of the kernel, layer by layer."""
        names, y = self.interface.states, self.x
        calls, inner, finals, extra = [], [], [], []
        for layer, (R, weight, bias, recurrent_bias, *own) in enumerate(self.layers):
            initial = {name: state[layer] for name, state in zip(names, self.states, strict=True) if state is not None}
            y, final, saved = self.kernel.forward(
                self.dropped_below(layer, y),
                R,
                weight=weight,
                bias=bias,
                recurrent_bias=recurrent_bias,
                parameters=dict(zip(self.interface.parameters, own, strict=True)) or None,
                state=initial or None,
                resets=self.resets,
            )
            calls.append(saved)
            finals.append(final)
            extra += saved.arrays()
            inner.append(y)
        dy, of_layers, dinitial = self.dy, [], []
        for layer in reversed(range(LAYERS)):
            dstate = {name: state[layer] for name, state in zip(names, self.dfinal, strict=True) if state is not None}
            named = self.kernel.backward(calls[layer], dy, dstate or None)
            dy = self.dropped_below(layer, named["x"])
            own = [named["parameters"][name] for name in self.interface.parameters]
            of_layers = [named["R"], named["weight"], named["bias"], named.get("recurrent_bias"), *own, *of_layers]
            dinitial.insert(0, named["state"])
        stacked = [torch.stack([states[name] for states in finals]) for name in names]
        started = self.states[0] is not None
        initial = [torch.stack([states[name] for states in dinitial]) if started else None for name in names]
        return [y, *stacked, *extra, *inner[:-1]], [dy, None, *of_layers, *initial, *(None for _ in self.masks)]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert [one is None for one in found] == [one is None for one in expected]
    for one, other in zip(found, expected, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other.reshape(one.shape), rtol=0, atol=0)


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.matrix_full if number else ()) for number, way in enumerate(WAYS)]
)
def test_a_cut_changes_no_bit(way: str, tmp_path: Path) -> None:
    asked, wanted, layout, flags = WAYS[way]
    stack = Stack(asked, wanted, layout, flags, tmp_path)
    with torch.no_grad():
        uncut, one_by_one = stack.step(Cut(1, 1)), stack.one_by_one()
        assert_same(uncut[0], one_by_one[0])
        assert_same(uncut[1], one_by_one[1])
        for cut in (Cut(2, 3), Cut(1, TIME)):
            results, gradients = stack.step(cut)
            assert_same(results, uncut[0])
            assert_same(gradients, uncut[1])


@pytest.mark.matrix_full
def test_the_kernels_are_those_that_are_wanted(tmp_path: Path) -> None:
    for number, (asked, wanted, layout, flags) in enumerate(WAYS.values()):
        stack = Stack(asked, wanted, layout, flags, tmp_path / str(number))
        forward = stack.kernel.plan.variables
        assert ("row_tiles" in wanted) == ("row_tiles" in forward)
        assert {name: forward[name] for name in ("grid_blocks",) if name in wanted} == {
            name: wanted[name] for name in ("grid_blocks",) if name in wanted
        }
