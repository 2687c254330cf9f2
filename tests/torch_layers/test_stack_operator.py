"""Layers on top of each other are one operator and one node of autograd; they compute what they do one by one."""

from __future__ import annotations

from typing import Any

import pytest
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
stack = needed("minrnn_gen.torch.layers.stack")

BATCH, TIME, INPUTS, HIDDEN = 2, 4, 5, 6
OPERATORS = torch.ops.minrnn_gen

LAYERS = {
    "lstm": lambda: wing.LSTM(INPUTS, HIDDEN, 3),
    "gru in both directions": lambda: wing.GRU(INPUTS, HIDDEN, 2, bidirectional=True, batch_first=False),
    "rg_lru": lambda: wing.RGLRU(INPUTS, HIDDEN, 2),
    "qrnn": lambda: wing.QRNN(INPUTS, HIDDEN, 2),
    "s4d in both directions": lambda: wing.RNN("s4d", INPUTS, HIDDEN, 2, state_size=3, bidirectional=True),
}


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return LAYERS[request.param]()


def states_of(layer: Any) -> tuple[Any, ...]:
    runs = layer.num_layers * (2 if layer.bidirectional else 1)
    batch = BATCH if layer.batch_first else TIME
    values = layer._made.values
    return tuple(torch.randn(runs, batch, *values[name], requires_grad=True) for name in layer.states)


def results(layer: Any, x: Any, states: tuple[Any, ...], of: slice = slice(None)) -> list[Any]:
    """Return outputs and gradients; a loss of those results that are `of` it."""
    x = x.detach().requires_grad_()
    y, last = layer(x, (states if len(states) > 1 else states[0]) if states else None)
    found = [y, *(last if isinstance(last, tuple) else (last,))]
    loss = sum(one.square().sum() for one in found[of])
    return [*found, *torch.autograd.grad(loss, [x, *states, *layer.parameters()], allow_unused=True)]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        zeros = torch.zeros_like(one if other is None else other) if None in (one, other) else None
        torch.testing.assert_close(zeros if one is None else one, zeros if other is None else other, rtol=0, atol=0)


@pytest.mark.parametrize("of", [slice(None), slice(1), slice(1, None), slice(1, 2)])
@pytest.mark.parametrize("with_states", [False, True])
def test_layers_at_once_are_layers_one_by_one(
    layer: Any, with_states: bool, of: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, states = torch.randn(BATCH, TIME, INPUTS), states_of(layer) if with_states else ()
    found = results(layer, x, states, of)
    with torch.no_grad():
        plain = layer(x, (states if len(states) > 1 else states[0]) if states else None)[0]
    monkeypatch.setattr(stack, "_reaches_down", lambda _: False)
    expected = results(layer, x, states, of)
    assert_equal(found, expected)
    assert_equal([plain], found[:1])


def test_sequences_of_several_lengths_too(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(BATCH, TIME, INPUTS)
    batch = x.shape[0 if layer.batch_first else 1]
    lengths = torch.randint(1, x.shape[1 if layer.batch_first else 0] + 1, (batch,))

    def run() -> list[Any]:
        y, last = layer(x, lengths=lengths)
        last = last[0] if isinstance(last, tuple) else last
        return [y, last, *torch.autograd.grad(y.square().sum() + last.sum(), list(layer.parameters()))]

    found = run()
    monkeypatch.setattr(stack, "_reaches_down", lambda _: False)
    assert_equal(found, run())


def test_it_is_one_node() -> None:
    layer = LAYERS["lstm"]()
    y, last = layer(torch.randn(BATCH, TIME, INPUTS))
    last, _ = last
    assert y.grad_fn is last.grad_fn and "Recurrence" in type(y.grad_fn).__name__
    graphs: list[Any] = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    torch.compiler.reset()
    compiled, x = torch.compile(layer, fullgraph=True, backend=counting), torch.randn(BATCH, TIME, INPUTS)
    torch.testing.assert_close(compiled(x)[0], layer(x)[0], rtol=0, atol=0)
    (graph,) = graphs
    called = [str(node.target) for node in graph.graph.nodes if "minrnn_gen" in str(node.target)]
    assert called == ["minrnn_gen.layers.default"]


@pytest.mark.parametrize("name", ["lstm", "qrnn"])
def test_compiled_layers_have_gradients_of_their_parameters_alone(name: str) -> None:
    """The gradient of an input that asks for none is a result of the operator all the same."""
    layer, x = LAYERS[name](), torch.randn(BATCH, TIME, INPUTS)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(run(x)[0].square().sum(), list(layer.parameters())) for run in (compiled, layer))
    assert_equal(list(found), list(expected))


@pytest.mark.parametrize("dropout", [0.5, pytest.param(0.0, marks=pytest.mark.matrix_full)])
def test_the_operators_keep_what_their_schemas_say(dropout: float) -> None:
    layer = LAYERS["gru in both directions"]()
    recipes = list(layer._made.recipes["fp32"])
    given = [one for below in range(layer.num_layers) for one in layer._parameters_of(below, layer._made)]
    parameters = [None if one is None else one.detach().requires_grad_() for one in given]
    x, states = torch.randn(BATCH, TIME, INPUTS, requires_grad=True), list(states_of(layer))
    masks = [torch.rand(BATCH, TIME, 2 * HIDDEN) < dropout] if dropout else []
    for state in (states, []):
        call = (x, None, None, None, masks, parameters, state)
        torch.library.opcheck(OPERATORS.layers.default, (recipes, True, dropout, *call))
        with torch.no_grad():
            torch.library.opcheck(OPERATORS.layers.default, (recipes, False, dropout, *call))
            y, *rest = OPERATORS.layers(recipes, True, dropout, *call)
        final, saved = rest[: len(states)], rest[len(states) :]
        plain = [None if one is None else one.detach() for one in parameters]
        of_call = (x.detach(), None, None, None, masks, plain, [one.detach() for one in state])
        torch.library.opcheck(OPERATORS.layers_backward.default, (recipes, dropout, *of_call, y, saved, y, final))


def test_layers_below_the_first_that_is_trained_keep_nothing() -> None:
    layer, x = wing.LSTM(INPUTS, HIDDEN, 2), torch.randn(BATCH, TIME, INPUTS)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_("_l1" in name)
    y, _ = layer(x)
    saved = [one for one in y.grad_fn.saved_tensors if one is not None]
    assert not any(one is parameter for one in saved for parameter in layer.parameters() if not parameter.requires_grad)
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(y.sum(), trained)
    layer.requires_grad_()
    assert_equal(list(found), list(torch.autograd.grad(layer(x)[0].sum(), trained)))


def test_third_derivatives_are_refused() -> None:
    layer, x = wing.GRU(INPUTS, HIDDEN, 2), torch.randn(BATCH, TIME, INPUTS, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), x, create_graph=True)
    with pytest.raises(BadInput, match="a third derivative"):
        second.sum().backward()


def test_an_exported_stack_is_one_operator() -> None:
    layer, x = wing.LSTM(INPUTS, HIDDEN, 2), torch.randn(BATCH, TIME, INPUTS)
    with torch.no_grad():
        exported = torch.export.export(
            layer, (x,), dynamic_shapes=({0: torch.export.Dim("batch"), 1: torch.export.Dim("time")},)
        )
        assert str(exported.graph).count("minrnn_gen.layers.default") == 1
        longer = torch.randn(BATCH + 1, 2 * TIME, INPUTS)
        torch.testing.assert_close(exported.module()(longer)[0], layer(longer)[0], rtol=0, atol=0)
