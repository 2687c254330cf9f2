"""A step of n values gives the same bits wherever its arrays lie: where they allow it, it moves neighbouring values at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.emulated_calls import kernel_of, moved
from support.examples import examples

from minrnn_gen.interpret import toolchain

pytestmark = pytest.mark.skipif(
    not toolchain.has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none"
)

BATCH = 3
SPECS: tuple[dict[str, Any], ...] = (
    {"model": "selective", "hidden_size": 12, "state_size": 16, "groups": 2, "precision": "fp16"},
    {"model": "s4d", "hidden_size": 5, "state_size": 6},
)


@settings(max_examples=examples(12))
@given(st.sampled_from(SPECS), st.data())
def test_a_step_gives_the_same_bits_wherever_its_arrays_lie(spec: dict[str, Any], data: st.DataObject) -> None:
    kernel, random = kernel_of(**spec), np.random.default_rng(0)
    interface = kernel.interface

    def normal(shape: tuple[int, ...], dtype: Any) -> Any:
        return random.normal(size=shape).astype(dtype)

    def elsewhere(array: Any) -> Any:
        return moved(array, array.itemsize * data.draw(st.sampled_from((0, 1, 4))))

    def apart(array: Any) -> Any:
        """Return the same values with others behind each row."""
        room = data.draw(st.sampled_from((0, 1, 4)))
        return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, room)])[..., : array.shape[-1]]

    storage = np.dtype(interface.precision.storage_dtype)
    x = normal((BATCH, len(interface.gates), interface.hidden_size), storage)
    state = {name: normal(interface.shape_of_state(name, BATCH), np.float32) for name in interface.states}
    axes = interface.shared_axes.replace("t", "")
    shared = {name: normal(interface.shape(axes, BATCH, 1), storage) for name in interface.shared}
    parameters = {name: normal(interface.shape_of_parameter(name), np.float32) for name in interface.parameters}
    y, after = kernel.step(x, state=state, parameters=parameters, shared=shared)
    y_again, after_again = kernel.step(
        x,
        state={name: elsewhere(value) for name, value in state.items()},
        parameters={name: elsewhere(value) for name, value in parameters.items()},
        shared={name: data.draw(st.sampled_from((apart, elsewhere)))(value) for name, value in shared.items()},
    )
    assert np.array_equal(y, y_again) and all(np.array_equal(after[name], after_again[name]) for name in after)
