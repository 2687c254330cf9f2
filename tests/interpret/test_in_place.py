"""Runs in place: of sequences all of whose steps count, what a plain run writes; of those without a step, nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minrnn_gen
from minrnn_gen.call.arguments import CallArguments
from minrnn_gen.interpret.toolchain import has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="kernels are compiled by a host C++ compiler, and there is none")

FULL = pytest.mark.matrix_full
BATCH, TIME, BEGIN, STEPS = 2, 96, 32, 40
SPECS: tuple[dict[str, Any], ...] = (
    {"model": "min_gru", "hidden_size": 4, "layout": "BDT"},
    {"model": "min_lstm", "hidden_size": 32, "layout": "TBD", "direction": "reverse"},
    {"model": "selective", "hidden_size": 4, "state_size": 2, "layout": "BDT"},
    {"model": "gated_linear", "hidden_size": 4, "state_size": 2, "groups": 2, "direction": "reverse"},
    {"model": "min_gru", "hidden_size": 32},
    {"model": "rg_lru", "hidden_size": 32},
    {"model": "selective", "hidden_size": 32, "state_size": 4, "layout": "TBD"},
)


# Every day a scan of which nothing counts, and one of n values of which all does.
EVERYDAY = ((SPECS[0], 0), (SPECS[3], 1))


@pytest.mark.parametrize(
    ("spec", "counts"),
    [pytest.param(spec, counts, marks=() if (spec, counts) in EVERYDAY else FULL) for spec in SPECS for counts in (0, 1)],
    ids=str,
)
def test_steps_within_arrays_run_again_where_they_count(spec: dict[str, Any], counts: int) -> None:
    kernel = minrnn_gen.compile({**spec, "precision": "fp32"}, gpu="h200", device="interpret")
    interface, random = kernel.interface, np.random.default_rng(0)
    states, axis = len(kernel.states), interface.x_axes.index("t")
    y_axis = interface.y_shape(0, 1).index(1)

    def normal(shape: Any) -> Any:
        return random.normal(size=shape).astype(np.float32)

    def within(array: Any, of: int) -> Any:
        return np.moveaxis(np.moveaxis(array, of, 0)[BEGIN : BEGIN + STEPS], 0, of)

    x = normal(interface.shape(interface.x_axes, BATCH, TIME))
    part = within(x, axis)
    common: dict[str, Any] = {
        "x": np.ascontiguousarray(part),
        "parameters": {name: normal(interface.shape_of_parameter(name)) for name in interface.parameters} or None,
        "state": {name: normal(interface.shape_of_state(name, BATCH)) for name in kernel.states},
        "shared": {name: normal(interface.shape(interface.shared_axes, BATCH, STEPS)) for name in interface.shared} or None,
    }
    y, final, saved = kernel.forward(**common)
    dy, dstate = normal(y.shape), {name: normal(value.shape) for name, value in final.items()}
    expected = kernel.backward(saved, dy, dstate)

    whole = [normal(interface.y_shape(BATCH, TIME)) for _ in range(1 + len(saved.arrays()))]
    before, into = [array.copy() for array in whole], [within(array, y_axis) for array in whole]
    arrays = CallArguments(**{**common, "x": part}, lengths=np.full(BATCH, counts * STEPS)).flat(interface)
    assert arrays is not None
    ends = kernel.executor.forward_in_place(arrays, into, False, True).final
    for end, name in zip(ends, kernel.states, strict=True):
        np.testing.assert_array_equal(end, final[name] if counts else common["state"][name])
    for array, was, values, run in zip(whole, before, into, (y, *saved.arrays()), strict=True):
        if counts:
            np.testing.assert_array_equal(values, run)
        within(was, y_axis)[...] = values if counts else within(was, y_axis)
        np.testing.assert_array_equal(array, was)

    dx_whole, dy_whole = normal(x.shape), normal(whole[0].shape)
    within(dy_whole, y_axis)[...] = dy
    for values, run in zip(into, (y, *saved.arrays()), strict=True):
        values[...] = run
    dx, dx_before = within(dx_whole, axis), dx_whole.copy()
    incoming = (within(dy_whole, y_axis), *dstate.values())
    raw = kernel.executor.backward_in_place(arrays, into, incoming, dx, False)
    for gradient, name in zip(raw.initial, kernel.states, strict=True):
        np.testing.assert_array_equal(gradient, expected["state"][name] if counts else dstate[name])
    if counts:
        np.testing.assert_array_equal(dx, expected["x"])
        for gradient, name in zip(raw.shared, interface.shared, strict=True):
            np.testing.assert_array_equal(gradient, expected["shared"][name])
    else:
        for sums in (*raw.shared, *raw.vectors.values(), *(() if raw.sums is None else (raw.sums,))):
            assert not np.any(sums)
    within(dx_before, axis)[...] = dx
    np.testing.assert_array_equal(dx_whole, dx_before)
    assert len(raw.initial) == states
