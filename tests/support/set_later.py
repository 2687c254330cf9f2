"""Attributes set on layers that are made: equal to a layer that is made so, or refused in one sentence."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from support.every_layer import HIDDEN, INPUTS, LAYERS, Layer, flat

from minrnn_gen.errors import BadInput

# What is tried for each attribute; ANY for those that are not listed, which a new one may be.
VALUES: dict[str, tuple[Any, ...]] = {
    "batch_first": (True, False, None, "yes"),
    "bias": (True, False, None),
    "bidirectional": (True, False, None),
    "training": (True, False),
    "dropout": (0.0, 0.5, 1, 2.0, -1, "half", None, True),
    "num_layers": (1, 2, 0, 1.5, None),
    "input_size": (INPUTS, INPUTS + 1, 0, None),
    "hidden_size": (HIDDEN, HIDDEN + 2, -1, None, [6]),
    "proj_size": (0, 2, None),
    "heads": (1, 2, 4),
    "precision": (None, "fp64", "fp32", "bf16", "fp8"),
    "forget_bias": (None, 1.0, "one"),
    "model": ("lstm", "gru", 3),
    "mode": ("LSTM", "GRU", "RNN_TANH", "RNN_RELU", "CRNN", []),
    "nonlinearity": ("tanh", "relu", "selu"),
}
ANY = (None, 0, 1, True, 2.0, "else")
# What no constructor takes by this name, or each layer of the list has anyway.
_NOT_GIVEN = {"training", "mode", "model", "input_size", "hidden_size"}


def public_names(layer: Layer) -> list[str]:
    """Return the attributes that a layer keeps and shows."""
    return [name for name in vars(layer.make()) if not name.startswith("_")]


def check(layer: Layer, name: str, value: Any, made: Any = None) -> bool:
    """Set an attribute; say whether that was taken. Raises AssertionError where it neither works nor is refused whole."""
    made = layer.make() if made is None else made
    before, x = copy.copy(vars(made)), layer.input()
    try:
        setattr(made, name, value)
    except BadInput as refused:
        assert "\n" not in str(refused) and name in str(refused), refused
        kept = {key: one for key, one in vars(made).items() if not key.startswith("_")}
        assert kept == {key: one for key, one in before.items() if not key.startswith("_")}
        return False
    assert getattr(made, name) == value
    expected = _made_so(layer, made)
    made.eval()
    if expected is None:  # no constructor makes it: what is called now says what is wrong
        try:
            made(x)
        except BadInput as refused:
            assert "\n" not in str(refused)
            return False
        raise AssertionError(f"{layer.name}.{name} = {value!r} is called as if nothing were set")
    for one, other in zip(flat(made(x)), flat(expected.eval()(x)), strict=True):
        assert torch.equal(one, other), (layer.name, name, value)
    return True


def _made_so(layer: Layer, made: Any) -> Any:
    """Return a layer with the attributes and weights of `made`, None where its weights are not those of such a layer."""
    kept = vars(made)
    options = {name: kept[name] for name in VALUES if name in kept and name not in _NOT_GIVEN}
    if "nonlinearity" in kept:
        options["nonlinearity"] = "relu" if kept["mode"] == "RNN_RELU" else "tanh"  # mode is what torch reads
    if not kept.get("proj_size"):
        options.pop("proj_size", None)  # which GRU and RNN do not take
    try:
        with warnings.catch_warnings(action="ignore"):  # dropout of one layer
            fresh = layer.make(**options)
        if fresh.load_state_dict(made.state_dict(), strict=False).missing_keys:
            return None
    except (BadInput, RuntimeError, ValueError):
        return None
    same = all(vars(fresh).get(name) == kept.get(name) for name in _NOT_GIVEN - {"training"})
    return fresh if same else None


def check_drawn(draw: Callable[[Any], Any], most: int = 4) -> None:
    """Set drawn attributes of a drawn layer, one after the other."""
    layer = draw(st.sampled_from(LAYERS))
    made, names = layer.make(), public_names(layer)
    for _ in range(draw(st.integers(1, most))):
        name = draw(st.sampled_from(names))
        check(layer, name, draw(st.sampled_from(VALUES.get(name, ANY))), made)
