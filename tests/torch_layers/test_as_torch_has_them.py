"""Layers beside those of torch.nn with the same weights: outputs, states, gradients, names, initialisation, conventions."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from support.needed import needed

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

BATCH, TIME, INPUTS, HIDDEN = 3, 7, 5, 6
# The bound that is promised in fp32; sums of a few dozen products of numbers of size 1 come to a tenth of it.
TOLERANCE = 1e-5
PAIRS = {
    "lstm": (wing.LSTM, torch.nn.LSTM, {}),
    "gru": (wing.GRU, torch.nn.GRU, {}),
    "tanh": (wing.Elman, torch.nn.RNN, {}),
    "relu": (wing.Elman, torch.nn.RNN, {"nonlinearity": "relu"}),
}


def pair(name: str, *sizes: int, **options: Any) -> tuple[Any, Any]:
    """Return a layer and torch's, with torch's weights in both."""
    ours, theirs, more = PAIRS[name]
    options = {"batch_first": True, **more, **options}
    one, other = ours(*(sizes or (INPUTS, HIDDEN)), **options), theirs(*(sizes or (INPUTS, HIDDEN)), **options)
    one.load_state_dict(other.state_dict())
    return one, other


def as_tuple(states: Any) -> tuple[Any, ...]:
    return states if isinstance(states, tuple) else (states,)


def initial(layer: Any, batch: int, seed: int = 1) -> Any:
    """Return initial states, which require grad, as the layer takes them."""
    generator = torch.Generator().manual_seed(seed)
    shape = (layer.num_layers * (2 if layer.bidirectional else 1), batch, HIDDEN)
    states = tuple(torch.randn(shape, generator=generator, requires_grad=True) for _ in layer.states)
    return states if len(states) > 1 else states[0]


def gradients(layer: Any, results: Any, *inputs: Any) -> list[Any]:
    """Return the gradients of a sum of all results, each element with a weight of its own."""
    generator, loss = torch.Generator().manual_seed(2), 0
    for one in results:
        loss = loss + (one * torch.randn(one.shape, generator=generator)).sum()
    parameters = dict(sorted(layer.named_parameters())).values()
    return list(torch.autograd.grad(loss, [*inputs, *parameters], retain_graph=True))


def assert_same(found: Any, expected: Any) -> None:
    for one, other in itertools.zip_longest(found, expected):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name", ["lstm", "gru", "tanh"])
def test_outputs_states_and_gradients(name: str, layers: int, bidirectional: bool) -> None:
    ours, theirs = pair(name, INPUTS, HIDDEN, layers, bidirectional=bidirectional)
    x, hx = torch.randn(BATCH, TIME, INPUTS, requires_grad=True), initial(ours, BATCH)
    for states in (hx, None):
        found, expected = ours(x, states), theirs(x, states)
        assert type(found[1]) is type(expected[1])
        results = (found[0], *as_tuple(found[1])), (expected[0], *as_tuple(expected[1]))
        assert_same(*results)
        given = () if states is None else as_tuple(states)
        assert_same(gradients(ours, results[0], x, *given), gradients(theirs, results[1], x, *given))


@pytest.mark.parametrize("sorted_already", [False, True])
@pytest.mark.parametrize(("name", "layers", "bidirectional"), [("lstm", 2, True), ("gru", 1, False), ("tanh", 3, True)])
def test_packed_sequences(name: str, layers: int, bidirectional: bool, sorted_already: bool) -> None:
    ours, theirs = pair(name, INPUTS, HIDDEN, layers, bidirectional=bidirectional)
    x, hx = torch.randn(BATCH, TIME, INPUTS, requires_grad=True), initial(ours, BATCH)
    lengths = [TIME, 4, 1] if sorted_already else [2, TIME, 4]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=sorted_already)
    for states in (hx, None):
        (found, last), (expected, its_last) = ours(packed, states), theirs(packed, states)
        assert torch.equal(found.batch_sizes, expected.batch_sizes)
        for order in ("sorted_indices", "unsorted_indices"):
            ordered, its_order = getattr(found, order), getattr(expected, order)
            assert its_order is None if ordered is None else torch.equal(ordered, its_order)
        results = (found.data, *as_tuple(last)), (expected.data, *as_tuple(its_last))
        assert_same(*results)
        given = () if states is None else as_tuple(states)
        assert_same(gradients(ours, results[0], x, *given), gradients(theirs, results[1], x, *given))


@pytest.mark.parametrize("name", PAIRS)
def test_other_conventions(name: str) -> None:
    """Time first, without a batch, without biases, relu, and what has no gradients at all."""
    ours, theirs = pair(name, batch_first=False, bias=False)
    x = torch.randn(TIME, BATCH, INPUTS)
    hx = initial(ours, BATCH)
    for given, states in ((x, hx), (x[:, 0], tuple(one[:, 0] for one in hx) if isinstance(hx, tuple) else hx[:, 0])):
        with torch.no_grad():
            (y, last), (expected, its_last) = ours(given, states), theirs(given, states)
        assert_same((y, *as_tuple(last)), (expected, *as_tuple(its_last)))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}])
def test_the_same_seed_gives_the_same_parameters_under_the_same_names(name: str, options: dict[str, Any]) -> None:
    ours, theirs, more = PAIRS[name]
    torch.manual_seed(5)
    one = ours(INPUTS, HIDDEN, **options, **more).state_dict()
    torch.manual_seed(5)
    other = theirs(INPUTS, HIDDEN, **options, **more).state_dict()
    assert list(one) == list(other)
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_dropout_is_between_layers_and_only_in_training() -> None:
    ours, theirs = pair("gru", INPUTS, HIDDEN, 2, dropout=1.0)  # all of it: the same on every side
    x = torch.randn(BATCH, TIME, INPUTS)
    assert_same(ours(x), theirs(x))
    assert not torch.equal(ours(x)[0], ours.eval()(x)[0])
    assert_same(ours(x), theirs.eval()(x))
    with pytest.warns(UserWarning, match="there is one"):
        wing.GRU(INPUTS, HIDDEN, dropout=0.5)
