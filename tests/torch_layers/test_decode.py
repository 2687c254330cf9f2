"""Layers a step at a time and in words: steps are the forward's own, and the decision behind each layer can be read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.needed import needed

from minrnn_gen.cell.files import library_names, vector_library_names
from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")

BATCH, TIME, INPUTS, HIDDEN = 2, 5, 4, 6
# Steps and sequences add products in other orders: a few roundings of the values, which are of order 1.
ROUNDINGS = 64
EPSILON = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}
LAYERS = {"lstm": wing.LSTM, "gru": wing.GRU, "elman": wing.Elman, "slstm": wing.SLSTM, "ind_rnn": wing.IndRNN}


def states_of(states: Any) -> tuple[Any, ...]:
    return states if isinstance(states, tuple) else (states,)


def decoded(layer: Any, x: Any, state: Any) -> tuple[Any, Any]:
    """Return what a layer gives token by token; time is the last axis but one of x."""
    outputs = []
    for x_t in x.unbind(-2):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, -2), state


@given(
    model=st.sampled_from((*library_names(), *vector_library_names())),
    layers=st.integers(1, 3),
    batch_first=st.booleans(),
    dtype=st.sampled_from(sorted(EPSILON, key=str)),
    cut=st.integers(0, TIME),
)
def test_steps_are_the_forward(model: str, layers: int, batch_first: bool, dtype: Any, cut: int) -> None:
    """After a prompt of any length, none included, in every precision and order of axes."""
    sizes = {"state_size": 3} if model in vector_library_names() else {}
    layer = wing.RNN(model, INPUTS, HIDDEN, layers, batch_first=batch_first, dtype=dtype, **sizes)
    x = torch.randn(BATCH, TIME, INPUTS, dtype=dtype)
    with torch.no_grad():
        whole, last = layer(x if batch_first else x.transpose(0, 1))
        whole = whole if batch_first else whole.transpose(0, 1)
        prompt = x[:, :cut] if batch_first else x[:, :cut].transpose(0, 1)
        state = layer(prompt)[1] if cut else None
    y, state = decoded(layer, x[:, cut:], state) if cut < TIME else (whole[:, cut:], state)
    slack = ROUNDINGS * EPSILON[dtype]
    torch.testing.assert_close(y, whole[:, cut:], rtol=slack, atol=slack)
    for ours, theirs in zip(states_of(state), states_of(last), strict=True):
        assert ours.dtype is theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=slack, atol=slack)
    assert not y.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "RNN"])
def test_layers_of_torchs_names_step_in_torchs_dtypes(name: str, dtype: Any) -> None:
    layer = getattr(wing.nn, name)(INPUTS, HIDDEN, 2, batch_first=True, dtype=dtype)
    x = torch.randn(BATCH, TIME, INPUTS, dtype=dtype)
    with torch.no_grad():
        whole, last = layer(x)
    y, state = decoded(layer, x, None)
    slack = ROUNDINGS * EPSILON[dtype]
    torch.testing.assert_close(y, whole, rtol=slack, atol=slack)
    assert {one.dtype for one in states_of(state)} == {one.dtype for one in states_of(last)} == {dtype}


def test_a_step_without_a_batch_and_under_autocast() -> None:
    layer, x = wing.GRU(INPUTS, HIDDEN, 2), torch.randn(TIME, INPUTS)
    y, state = decoded(layer, x, None)
    with torch.no_grad():
        whole, last = layer(x)
    torch.testing.assert_close(y, whole)
    torch.testing.assert_close(state, last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y_t, _ = layer.step(torch.randn(BATCH, INPUTS))
    assert y_t.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("refused", "said"),
    (
        (lambda: wing.LSTM(INPUTS, HIDDEN, bidirectional=True).step(torch.rand(2, INPUTS)), "the layer is bidirectional"),
        (lambda: wing.LSTM(INPUTS, HIDDEN).step(torch.rand(2, 3, INPUTS)), "x_t has shape .* without a batch"),
        (lambda: wing.LSTM(INPUTS, HIDDEN).step(torch.rand(2, INPUTS + 1)), "input_size is 4"),
        (lambda: wing.LSTM(INPUTS, HIDDEN).step(torch.rand(2, INPUTS), torch.rand(1, 2, HIDDEN)), "hx has 1 state;"),
        (lambda: wing.LSTM(INPUTS, HIDDEN).step([1.0]), "x_t"),
        (lambda: wing.LSTM(INPUTS, HIDDEN).explain("sideways"), "forward, backward, step"),
        (lambda: wing.LSTM(INPUTS, HIDDEN).explain(batch=0), "positive integers"),
        (lambda: wing.LSTM(INPUTS, HIDDEN).explain(dtype=torch.int8), "dtype is torch.int8"),
    ),
)
def test_what_no_step_and_no_explanation_takes_is_one_sentence(refused: Any, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        refused()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("which", ["forward", "backward", "step"])
def test_layers_are_explained_once_for_equal_ones(which: Any) -> None:
    text = wing.MinGRU(INPUTS, HIDDEN, 3).explain(which, batch=3, time=17)
    assert text.count(f"layout BTD: {which}") == 2  # the first layer, which has other inputs, and both others
    assert text.startswith("layer 0 of 3") and "layers 1, 2 of 3" in text
    assert "class      scan" in text and "limit      " in text
