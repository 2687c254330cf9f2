"""An array at an address from which no GPU loads is its caller's mistake, and no finding about the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.emulated_calls import arguments_of, kernel_of, moved
from support.examples import examples

from minrnn_gen.errors import BadInput
from minrnn_gen.interpret import toolchain
from minrnn_gen.interpret.kernel import InterpretedKernel

pytestmark = pytest.mark.skipif(
    not toolchain.has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none"
)

SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 4, "input_size": 3},
    {"model": "rg_lru", "hidden_size": 4, "precision": "fp16"},
    {"model": "lstm", "hidden_size": 4, "recurrent_bias": True},
    {"model": "ind_rnn", "hidden_size": 4, "precision": "fp64"},
)


def names_of(arguments: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in arguments.items():
        yield from ((name, inner) for inner in value) if isinstance(value, dict) else [(name, "")]


def whole_arguments(kernel: InterpretedKernel) -> dict[str, Any]:
    interface, arguments = kernel.interface, arguments_of(kernel, 2, 3)
    if interface.input_size:
        arguments["x"] = np.zeros(interface.shape(interface.x_axes, 2, 3), np.float32)
        arguments["weight"] = np.zeros((interface.weight_rows, interface.input_size), np.float32)
    if interface.takes_recurrent_bias:
        arguments["recurrent_bias"] = np.zeros(interface.recurrent_bias_shape, np.float32)
    return arguments


@settings(max_examples=examples(20))
@given(st.sampled_from(SPECS), st.data())
def test_an_unaligned_array_is_refused_by_its_name(spec: dict[str, Any], data: st.DataObject) -> None:
    kernel = kernel_of(**spec)
    arguments = whole_arguments(kernel)
    name, inner = data.draw(st.sampled_from(sorted(names_of(arguments))))
    array = arguments[name][inner] if inner else arguments[name]
    offset = data.draw(st.integers(1, array.itemsize - 1))
    if inner:
        arguments[name] = {**arguments[name], inner: moved(array, offset)}
    else:
        arguments[name] = moved(array, offset)
    with pytest.raises(
        BadInput, match=rf"^{name}.*{inner}.* starts at address \d+, no multiple of the {array.itemsize} bytes"
    ) as caught:
        kernel(**arguments)
    assert "\n" not in str(caught.value)


def test_gradients_at_such_an_address_are_refused_too() -> None:
    kernel = kernel_of(model="min_gru", hidden_size=4)
    y, state, saved = kernel.forward(**arguments_of(kernel, 2, 3))
    with pytest.raises(BadInput, match=r"^dy starts at address"):
        kernel.backward(saved, moved(y, 2))
    with pytest.raises(BadInput, match=r"^dstate.*h.* starts at address"):
        kernel.backward(saved, y, {"h": moved(state["h"], 1)})
