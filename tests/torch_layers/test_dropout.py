"""Dropout between layers: its masks and values beside torch's, the same bits however the layers are run, and its gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.needed import needed
from support.newer_torch import needs_torch

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
stack = needed("minrnn_gen.torch.layers.stack")
dropout = needed("minrnn_gen.torch.layers.dropout")

BATCH, TIME, INPUTS, HIDDEN = 2, 4, 5, 6
SIGMAS = 5
LAYERS = {
    "lstm": lambda **options: wing.LSTM(INPUTS, HIDDEN, 3, **options),
    "gru in both directions": lambda **options: wing.GRU(INPUTS, HIDDEN, 2, bidirectional=True, batch_first=False, **options),
    "qrnn": lambda **options: wing.QRNN(INPUTS, HIDDEN, 2, **options),
    "torch's lstm": lambda **options: wing.nn.LSTM(INPUTS, HIDDEN, 3, batch_first=True, **options),
}


def layer_of(name: str, probability: float = 0.4) -> Any:
    torch.manual_seed(0)
    return LAYERS[name](dropout=probability)


def outcome(layer: Any, x: Any, seed: int = 7) -> list[Any]:
    """Return outputs, states and gradients."""
    x = x.detach().requires_grad_()
    torch.manual_seed(seed)
    y, last = layer(x)
    results = [y, *(last if isinstance(last, tuple) else (last,))]
    loss = sum(one.square().sum() for one in results)
    return [*results, *torch.autograd.grad(loss, [x, *layer.parameters()])]


def are_equal(ones: list[Any], others: list[Any]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.93])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zeros_are_as_many_and_values_as_large_as_of_torch(probability: float, dtype: Any) -> None:
    torch.manual_seed(3)
    ones = torch.ones(64, 50, 100, dtype=dtype)
    masks = dropout.draw_masks(ones, 100, 2, probability)
    theirs = torch.nn.functional.dropout(ones, probability)
    sigma = math.sqrt(probability * (1 - probability) / ones.numel())
    for mask in masks:
        ours = dropout.dropped(ones, mask, probability)
        assert ours.dtype is dtype and abs((ours == 0).double().mean() - probability) <= SIGMAS * sigma
        # Rounded once: the number of the dtype that is nearest to the factor.
        assert {*ours.unique().tolist()} == {0.0, torch.tensor(1 / (1 - probability), dtype=dtype).item()}
        assert ours.unique().double().sub(theirs.unique().double()).abs().max() <= 2 * torch.finfo(dtype).eps / (
            1 - probability
        )
    # Layers have masks of their own.
    both = (masks[0] & masks[1]).double().mean()
    assert abs(both - (1 - probability) ** 2) <= SIGMAS * math.sqrt((1 - probability) ** 2 / ones.numel())


@pytest.mark.parametrize("name", LAYERS)
def test_layers_at_once_have_the_bits_of_layers_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = layer_of(name), torch.randn(TIME, BATCH, INPUTS)
    found = outcome(layer, x)
    assert are_equal(found, outcome(layer, x)) and not torch.equal(found[0], outcome(layer, x, seed=8)[0])
    with torch.no_grad():
        torch.manual_seed(7)
        assert torch.equal(layer(x)[0], found[0])
    monkeypatch.setattr(stack, "_reaches_down", lambda _: False)
    assert are_equal(found, outcome(layer, x))


def test_gradients_are_those_of_layers_of_torch_with_the_same_masks() -> None:
    layer, x = layer_of("lstm").double(), torch.randn(BATCH, TIME, INPUTS, dtype=torch.float64)
    found = outcome(layer, x)
    theirs = [torch.nn.LSTM(size, HIDDEN, batch_first=True).double() for size in (INPUTS, HIDDEN, HIDDEN)]
    for number, one in enumerate(theirs):
        own = {name.replace(f"_l{number}", "_l0"): value for name, value in layer.state_dict().items() if f"_l{number}" in name}
        one.load_state_dict(own)
    x = x.requires_grad_()
    torch.manual_seed(7)
    masks = dropout.draw_masks(x, HIDDEN, 2, 0.4)
    y, states = x, []
    for number, one in enumerate(theirs):
        y, last = one(y if not number else y * masks[number - 1] / 0.6)
        states.append(last)
    results = [y, *(torch.cat(parts) for parts in zip(*states, strict=True))]
    parameters = [parameter for one in theirs for parameter in one.parameters()]
    gradients = torch.autograd.grad(sum(one.square().sum() for one in results), [x, *parameters])
    for one, other in zip(found, [*results, *gradients], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_nothing_is_drawn_in_evaluation_nor_at_a_probability_of_zero(name: str) -> None:
    x = torch.randn(TIME, BATCH, INPUTS)
    expected = layer_of(name, 0.0)
    for layer in (expected, layer_of(name).eval()):
        before = torch.get_rng_state()
        y, _ = layer(x)
        assert torch.equal(before, torch.get_rng_state()) and torch.equal(y, expected.eval()(x)[0])
    before = torch.get_rng_state()
    layer_of(name)(x)
    assert not torch.equal(before, torch.get_rng_state())


def test_all_is_dropped_at_a_probability_of_one() -> None:
    layer, x = layer_of("lstm", 1.0), torch.randn(BATCH, TIME, INPUTS)
    y, _ = layer(x)
    (gradient,) = torch.autograd.grad(y.sum(), layer.weight_ih_l0)
    assert torch.equal(gradient, torch.zeros_like(gradient)) and bool(y.isfinite().all())
    # It is as if the last layer had read zeros, whatever was there.
    assert torch.equal(y, layer(100 * x)[0])
    infinite = torch.full((2, 3, 4), math.inf)
    (mask,) = dropout.draw_masks(infinite, 4, 1, 1.0)
    assert torch.equal(dropout.dropped(infinite, mask, 1.0), torch.zeros_like(infinite))


def test_a_compiled_layer_draws_the_same_and_is_one_operator() -> None:
    layer, x = layer_of("lstm"), torch.randn(BATCH, TIME, INPUTS)
    called: list[str] = []

    def counting(graph: Any, inputs: Any) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes if "minrnn_gen" in str(node.target))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch.compiler.reset()
    assert are_equal(outcome(torch.compile(layer, fullgraph=True, backend=counting), x), outcome(layer, x))
    assert called == ["minrnn_gen.layers.default"]


@needs_torch("2.7", "it says whether a program is exported; before, all layers are one operator")
def test_an_exported_layer_in_training_has_an_operator_for_each_layer() -> None:
    layer, x = layer_of("lstm"), torch.randn(BATCH, TIME, INPUTS)
    with torch.no_grad():
        exported = torch.export.export(layer, (x,))
        assert str(exported.graph).count("minrnn_gen.recurrence.default") == 3
        torch.manual_seed(7)
        found = exported.module()(x)[0]
        torch.manual_seed(7)
        assert torch.equal(found, layer(x)[0])


def test_functional_calls_and_checkpoints_draw_the_same() -> None:
    layer, x = layer_of("lstm"), torch.randn(BATCH, TIME, INPUTS)
    torch.manual_seed(7)
    y, _ = torch.func.functional_call(layer, dict(layer.named_parameters()), (x,))
    torch.manual_seed(7)
    assert torch.equal(y, layer(x)[0])
    expected = outcome(layer, x)
    torch.manual_seed(7)
    y, last = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    loss = sum(one.square().sum() for one in (y, *last))
    assert are_equal(list(torch.autograd.grad(loss, list(layer.parameters()))), expected[4:])


def test_only_what_is_above_a_frozen_layer_keeps_its_masks() -> None:
    layer, x = layer_of("lstm"), torch.randn(BATCH, TIME, INPUTS)
    expected = outcome(layer, x)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_("_l0" not in name)
    torch.manual_seed(7)
    y, last = layer(x)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(sum(one.square().sum() for one in (y, *last)), trained)
    assert are_equal([y, *gradients], [expected[0], *expected[4 + 4 :]])
