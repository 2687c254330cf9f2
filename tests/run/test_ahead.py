"""Kernels compiled ahead of calls are exactly those that the calls run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.built_kernels import build_nothing
from support.everyday import one_in
from support.fake_device import as_if_on_a_device, executor_on
from support.uncompiled_kernels import compiled_for_host

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.errors import BadInput
from minrnn_gen.run.kernels import CompiledKernels

SIZES = [(1, 1), (3, 40), (60, 7)]
SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 64, "precision": "fp32"},
    {"model": "min_lstm", "hidden_size": 40, "precision": "fp32", "layout": "BDT", "direction": "bidirectional"},
    {"model": "lstm", "hidden_size": 64, "precision": "bf16"},
    {"model": "gru", "hidden_size": 2048, "precision": "fp64", "training": False},
    {"model": "ind_rnn", "hidden_size": 64, "precision": "fp32", "direction": "reverse"},
)


@pytest.mark.parametrize("spec", one_in(2, SPECS), ids=lambda spec: spec["model"])
def test_calls_of_prepared_sizes_compile_nothing(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = compiled_for_host(spec, plans_sizes=True)
    built = build_nothing(monkeypatch)
    interface, seen = kernel.interface, []
    dtype = numpy_dtype(interface.precision.storage_dtype)
    # Nothing is written, and what is in new memory may be anything.
    on_device = as_if_on_a_device(kernel, executor=executor_on(kernel, CompiledKernels(kernel.builder, ())))
    with on_device, np.errstate(all="ignore"):
        kernel.prepare(SIZES, lambda done, of: seen.append((done, of)))
        ahead = set(built)
        assert len(built) == len(ahead) and any(done == of for done, of in seen)
        built.clear()
        for batch, time in SIZES:
            x = np.zeros(interface.shape(interface.x_axes, batch, time), dtype)
            given = {"parameters": {name: np.zeros(interface.parameter_shape, dtype) for name in interface.parameters}}
            R = np.zeros(interface.R_shape, dtype) if interface.recurrent_gates else None
            kernel(x, R, **given)
            if spec.get("training", True):
                y, _, saved = kernel.forward(x, R, **given)
                kernel.backward(saved, y)
            if not interface.directions:
                kernel.step(np.zeros(interface.shape("bgh", batch, 1), dtype), R, **given)
    assert built == []


@pytest.mark.matrix_full
@pytest.mark.parametrize("spec", [SPECS[0], SPECS[2]], ids=lambda spec: spec["model"])
def test_prepared_calls_with_reset_states_and_holds_compile_nothing(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = compiled_for_host(spec, plans_sizes=True)
    built = build_nothing(monkeypatch)
    serving = kernel.altered(begins=True, holds=True)[0]
    interface, dtype = serving.interface, numpy_dtype(serving.interface.precision.storage_dtype)
    on_device = as_if_on_a_device(serving, executor=executor_on(serving, CompiledKernels(serving.builder, ())))
    with on_device, np.errstate(all="ignore"):
        kernel.prepare(SIZES, reset_states=True, holds=True)
        assert built
        built.clear()
        for batch, time in SIZES:
            x = np.zeros(interface.shape(interface.x_axes, batch, time), dtype)
            R = np.zeros(interface.R_shape, dtype) if interface.recurrent_gates else None
            inputs = {name: np.zeros(interface.shape(interface.channel_axes, batch, time), dtype) for name in serving.inputs}
            y, _, saved = serving.forward(x, R, inputs=inputs, resets=np.ones((batch, time), bool))
            serving.backward(saved, y)
    assert built == []


@pytest.mark.parametrize("sizes", [[(0, 1)], [(1,)], [(1, 2, 3)], [3], [(1.0, 2)], [(True, 1)], [("1", 2)]])
def test_what_are_no_sizes_is_one_sentence(sizes: Any) -> None:
    with pytest.raises(BadInput, match=r"^sizes has .*; pairs \(batch, time\) of positive integers are expected$"):
        compiled_for_host(SPECS[0], plans_sizes=True).prepare(sizes)
