"""Layers of cells with inputs X.*: their gradients, steps and masks, in torch.compile and autocast, and what they refuse."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.everyday import one_in
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
gradients_are_right = needed("support.gradients_checked").gradients_are_right
GAPS = needed("support.input_cells").GAPS

BATCH, TIME, INPUTS, HIDDEN, LAYERS = 2, 4, 3, 5, 2
NAMES = tuple(GAPS["inputs"])


def inputs_of(*shape: int, dtype: Any = None) -> dict[str, Any]:
    return {name: torch.randn(*shape, dtype=dtype or torch.float64, requires_grad=True) for name in NAMES}


@pytest.mark.parametrize(("bidirectional", "batch_first"), one_in(4, itertools.product((True, False), (False, True))))
def test_gradients_are_those_of_differences_and_of_compiled_layers(bidirectional: bool, batch_first: bool) -> None:
    layer = wing.RNN(GAPS, INPUTS, HIDDEN, LAYERS, bidirectional=bidirectional, batch_first=batch_first, dtype=torch.float64)
    lead = (BATCH, TIME) if batch_first else (TIME, BATCH)
    x = torch.randn(*lead, INPUTS, dtype=torch.float64, requires_grad=True)
    inputs = inputs_of(*lead, *((2,) if bidirectional else ()), HIDDEN)

    def called(x: Any, *values: Any) -> Any:
        return layer(x, inputs=dict(zip(NAMES, values, strict=True)))[0]

    assert gradients_are_right(called, (x, *inputs.values()))
    of_graph = torch.compile(called, fullgraph=True, backend="aot_eager")(x, *inputs.values())
    eager = called(x, *inputs.values())
    assert torch.equal(of_graph, eager)
    arriving = torch.randn_like(eager)
    for one, other in zip(
        torch.autograd.grad(of_graph, (*inputs.values(),), arriving),
        torch.autograd.grad(eager, (*inputs.values(),), arriving),
        strict=True,
    ):
        assert torch.equal(one, other) and one.abs().sum() > 0


def test_each_layer_may_have_its_own() -> None:
    layer, x = wing.RNN(GAPS, INPUTS, HIDDEN, LAYERS), torch.randn(BATCH, TIME, INPUTS)
    inputs = [inputs_of(BATCH, TIME, HIDDEN, dtype=torch.float32) for _ in range(LAYERS)]
    with torch.no_grad():
        y, _ = layer(x, inputs=inputs)
        state = None
        for t in range(TIME):
            of_step = [{name: values[:, t] for name, values in of_layer.items()} for of_layer in inputs]
            y_t, state = layer.step(x[:, t], state, inputs=of_step)
            assert (y_t - y[:, t]).abs().max() < 1e-5
        alone, _ = layer(x[0], inputs=[{name: values[0] for name, values in of_layer.items()} for of_layer in inputs])
        assert (alone - y[0]).abs().max() < 1e-5
        same, _ = layer(x, inputs=inputs[0])
        again, _ = layer(x, inputs=[inputs[0], inputs[0]])
        assert torch.equal(same, again) and not torch.equal(same, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x, inputs=inputs)[0].dtype is torch.bfloat16


def test_what_does_not_fit_is_refused() -> None:
    layer, x = wing.RNN(GAPS, INPUTS, HIDDEN, LAYERS), torch.randn(BATCH, TIME, INPUTS)
    inputs = inputs_of(BATCH, TIME, HIDDEN, dtype=torch.float32)
    less = {name: values for name, values in inputs.items() if name != "gap"}
    for unfit in (None, less, [inputs], inputs | {"gap": 1}, inputs | {"gap": inputs["gap"][:, 1:]}):
        with pytest.raises(BadInput, match="inputs"):
            layer(x, inputs=unfit)
    without = wing.RNN("gru", INPUTS, HIDDEN)
    with pytest.raises(BadInput, match="inputs"):
        without(x, inputs=inputs)
    with pytest.raises(BadInput, match="inputs"):
        without.step(x[:, 0], inputs=inputs)
