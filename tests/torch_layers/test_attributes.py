"""Attributes that are set after a layer was made: it is the layer that would be made so, or it refuses and stays what it is."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.needed import needed

from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
every_layer = needed("support.every_layer")
set_later = needed("support.set_later")
OF_EACH = every_layer.parameters()


@pytest.mark.parametrize("layer", OF_EACH)
def test_each_works_or_refuses(layer: Any) -> None:
    torch.manual_seed(0)
    names = set_later.public_names(layer)
    assert {"training"} < {*names}
    taken = [
        name for name in names for value in set_later.VALUES.get(name, set_later.ANY) if set_later.check(layer, name, value)
    ]
    assert "training" in taken and (layer.kind is wing.SelectiveScan or {"batch_first", "dropout"} <= {*taken})


@pytest.mark.parametrize("layer", OF_EACH)
def test_what_the_constructor_takes_is_no_attribute_without_a_part(layer: Any) -> None:
    """Names of arguments that a layer does not keep: set, they would be forgotten silently."""
    made = layer.make()
    kept = {*set_later.public_names(layer)}
    for name, parameter in inspect.signature(layer.kind).parameters.items():
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if is_named and name not in kept and name not in ("device", "dtype", "batch", "time"):
            with pytest.raises(BadInput, match=rf"^{name} cannot be set to .*make another"):
                setattr(made, name, object())


@given(st.data())
def test_any_order_of_them(data: st.DataObject) -> None:
    set_later.check_drawn(data.draw)


def test_a_layer_in_the_other_layout_is_that_layer() -> None:
    x = torch.randn(3, 5, every_layer.INPUTS)
    layer = wing.LSTM(every_layer.INPUTS, 6, 2, batch_first=False, bidirectional=True)
    expected = layer(x.transpose(0, 1))[0].transpose(0, 1)
    layer.batch_first = True
    torch.testing.assert_close(layer(x)[0], expected)
    assert layer._made == wing.LSTM(every_layer.INPUTS, 6, 2, bidirectional=True)._made


def test_weights_that_are_exchanged_may_have_other_sizes() -> None:
    """As units are pruned from a layer of torch.nn: sizes first or weights first, calls in between are refused."""
    layer, smaller = wing.nn.LSTM(4, 6, 2), wing.nn.LSTM(4, 3, 1)
    layer.hidden_size = 3
    x = torch.randn(5, 2, 4)
    with pytest.raises(BadInput, match=r"weight has shape \[24, 4\]; \[12, 4\] is expected"):
        layer(x)
    for name, parameter in smaller.named_parameters():
        setattr(layer, name, parameter)
    layer.num_layers = 1
    assert torch.equal(layer(x)[0], smaller(x)[0])
    with pytest.raises(BadInput, match="bidirectional is true, but the layer lacks weight_ih_l0_reverse"):
        layer.bidirectional = True
    assert layer.bidirectional is False and torch.equal(layer(x)[0], smaller(x)[0])
