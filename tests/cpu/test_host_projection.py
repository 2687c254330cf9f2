"""Gradients through the input projection on the host: those of the pre-activations, through the product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.kernel_inputs import LAYOUTS
from support.sequence_cases import HIDDEN, Y_ORDERS, Case, assert_close, assert_same, cases, kernel_of

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.precision import PRECISION_NAMES, precision_of

INPUTS = 5


def both_kernels(model: str, direction: str, layout: str) -> tuple[Any, Any]:
    """The kernel that owns the projection, and the one in BTD that is given pre-activations."""
    return kernel_of(model, direction, layout, input_size=INPUTS), kernel_of(model, direction)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=examples(10))
@given(drawn=cases(("min_gru", "rg_lru", "qrnn", "gru")), padding=st.sampled_from((0.0, np.nan)))
def test_are_those_of_the_product(layout: str, direction: str, drawn: tuple[str, Case], padding: float) -> None:
    model, case = drawn
    if "cu_seqlens" in case.arguments and layout != "BTD":
        return
    projecting, plain = both_kernels(model, direction, layout)
    arguments, dy, dfinal = dict(case.arguments), case.dy, case.dfinal
    rows, time, gates, _ = arguments.pop("x").shape
    random = np.random.default_rng(7)
    runs = 2 if direction == "bidirectional" else 1
    x = random.normal(size=(rows, time, INPUTS))
    weight = random.normal(size=(runs * gates * HIDDEN, INPUTS))
    shape: tuple[int, ...] = (rows, time, gates, HIDDEN)
    if direction == "bidirectional":
        shape = (rows, time, 2, gates, HIDDEN)
        for name in ("state", "parameters"):
            arguments[name] = {key: np.stack([one, -one]) for key, one in arguments[name].items()}
        vectors = [name for name in ("bias", "R", "recurrent_bias") if name in arguments]
        arguments |= {name: np.stack([arguments[name], -arguments[name]]) for name in vectors}
        dy, dfinal = np.concatenate([dy, -dy], -1), {name: np.stack([one, one]) for name, one in dfinal.items()}
    y, final, saved = plain.forward((x @ weight.T).reshape(shape), **arguments)
    expected = plain.backward(saved, dy, dfinal)
    product = expected["x"].reshape(rows, time, len(weight))
    expected["x"] = product @ weight
    expected["weight"] = np.einsum("btn,bti->ni", product, x)

    order = Y_ORDERS[layout]
    if "lengths" in arguments:
        x[np.arange(time) >= arguments["lengths"][:, None]] = padding
    given_x = np.ascontiguousarray(x.transpose(order))
    y_found, final_found, saved = projecting.forward(given_x, weight=weight, **arguments)
    assert_close(y_found, y.transpose(order))
    assert_close(final_found, final)
    found = projecting.backward(saved, np.ascontiguousarray(dy.transpose(order)), dfinal)
    assert_close(found, expected | {"x": expected["x"].transpose(order)})
    assert_same(projecting.backward(saved, np.ascontiguousarray(dy.transpose(order)), dfinal), found)


@pytest.mark.parametrize("precision", PRECISION_NAMES)
def test_each_has_the_dtype_of_its_array(precision: str) -> None:
    named = precision_of(precision)
    storage, carried = numpy_dtype(named.storage_dtype), numpy_dtype(named.arithmetic_dtype)
    kernel = kernel_of("rg_lru", precision=precision, input_size=INPUTS)
    random = np.random.default_rng(0)
    arrays = {
        "x": random.normal(size=(2, 9, INPUTS)).astype(storage),
        "weight": random.normal(size=(3 * HIDDEN, INPUTS)).astype(storage),
        "bias": random.normal(size=3 * HIDDEN).astype("float32"),
    }
    decay = random.normal(size=HIDDEN).astype(storage)
    y, _, saved = kernel.forward(**arrays, parameters={"decay": decay})
    gradients = kernel.backward(saved, y)
    for name, one in arrays.items():
        assert gradients[name].dtype == one.dtype and gradients[name].shape == one.shape, name
    assert gradients["parameters"]["decay"].dtype == storage and gradients["state"]["h"].dtype == carried
    assert list(gradients) == ["x", "state", "weight", "bias", "parameters"]
