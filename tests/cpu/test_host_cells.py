"""The host target against the oracle: every cell, precision and layout, from sequences of no step to several tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.kernel_inputs import (
    GATE_KINDS,
    LAYOUTS,
    RAW_KINDS,
    arranged,
    by_time,
    drawn_coefficients,
    drawn_gates,
    drawn_parameters,
    drawn_state,
    laid_out,
)
from support.oracle import CELLS, Arithmetic, Tracked, assert_within, oracle
from support.uncompiled_kernels import host_kernel

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.cpu import call as host_call
from minrnn_gen.precision import PRECISION_NAMES, precision_of

seeds = st.integers(0, 2**32 - 1)
precisions = st.sampled_from(PRECISION_NAMES)
layouts = st.sampled_from(LAYOUTS)
# Few hidden sizes, since each is a kernel of its own; on the host nothing depends on it.
shapes = st.tuples(st.sampled_from((0, 1, 2, 3, 31, 64, 65, 200)), st.integers(0, 3), st.sampled_from((1, 5, 8)))


def gates_of(cell: str, kind: str, seed: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    return drawn_coefficients(kind, seed, shape) if cell == "raw" else drawn_gates(cell, kind, seed, shape)


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str]:
    cell = draw(st.sampled_from(tuple(CELLS)))
    return cell, draw(st.sampled_from(RAW_KINDS if cell == "raw" else GATE_KINDS))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision_name", PRECISION_NAMES)
@settings(max_examples=examples(10))
@given(case=cases(), shape=shapes, seed=seeds, narrow_vectors=st.booleans(), has_bias=st.booleans())
def test_agrees_with_the_oracle(
    precision_name: str,
    layout: str,
    case: tuple[str, str],
    shape: tuple[int, int, int],
    seed: int,
    narrow_vectors: bool,
    has_bias: bool,
) -> None:
    (cell, kind), precision = case, precision_of(precision_name)
    storage, carried = numpy_dtype(precision.storage_dtype), numpy_dtype(precision.arithmetic_dtype)
    vectors = storage if narrow_vectors else numpy_dtype("float32")
    gates = {name: gate.astype(storage) for name, gate in gates_of(cell, kind, seed, shape).items()}
    state = {name: one.astype(carried) for name, one in drawn_state(cell, seed, *shape[1:]).items()}
    parameters = {name: one.astype(vectors) for name, one in drawn_parameters(cell, seed, shape[2]).items()}
    random = np.random.default_rng([seed, 3])
    bias = random.normal(size=(len(gates), shape[2])).astype(vectors) if has_bias else None
    if has_bias and cell == "raw":
        bias[0] = 0  # added to a, it would let the state grow beyond every number
    named_bias = None if bias is None else dict(zip(gates, bias, strict=True))
    expected = oracle(np, cell, gates, state, parameters, precision, named_bias)

    kernel = host_kernel(cell, shape[2], precision_name, layout)
    y, final = kernel(arranged(np, gates, layout), state=state, parameters=parameters, bias=bias)
    assert y.dtype == storage
    assert final.keys() == set(kernel.states) == {CELLS[cell].state}
    assert {one.dtype for one in final.values()} == {carried}
    assert_within(expected.y, expected.y_bound, by_time(y, layout))
    for name, one in final.items():
        assert_within(expected.states[name], expected.state_bounds[name], one)
    if bias is not None:
        flat, _ = kernel(arranged(np, gates, layout), state=state, parameters=parameters, bias=bias.reshape(-1))
        assert np.array_equal(flat, y, equal_nan=True)


@pytest.mark.parametrize("cell", CELLS)
def test_orders_are_the_published_ones(cell: str) -> None:
    kernel = host_kernel(cell, 8, "fp32")
    assert (kernel.gates, kernel.states) == (CELLS[cell].gates, (CELLS[cell].state,))


@given(cell=st.sampled_from(tuple(CELLS)), precision=precisions, layout=layouts, seed=seeds, batch=st.integers(0, 3))
def test_a_step_is_a_call_of_one_step(cell: str, precision: str, layout: str, seed: int, batch: int) -> None:
    table = precision_of(precision)
    storage, carried = numpy_dtype(table.storage_dtype), numpy_dtype(table.arithmetic_dtype)
    gates = {name: gate.astype(storage) for name, gate in gates_of(cell, "slow", seed, (1, batch, 5)).items()}
    state = {name: one.astype(carried) for name, one in drawn_state(cell, seed, batch, 5).items()}
    parameters = {name: one.astype(storage) for name, one in drawn_parameters(cell, seed, 5).items()}
    kernel = host_kernel(cell, 5, precision, layout)
    x = arranged(np, gates, "TBD")
    y_t, after = kernel.step(x[0], state=state, parameters=parameters)
    y, final = kernel(arranged(np, gates, layout), state=state, parameters=parameters)
    assert np.array_equal(y_t, by_time(y, layout)[0])
    assert y_t.dtype == y.dtype
    assert all(np.array_equal(after[name], final[name]) for name in kernel.states)


@given(cell=st.sampled_from(tuple(CELLS)), precision=precisions, layout=layouts, seed=seeds)
def test_no_state_is_a_state_of_zeros(cell: str, precision: str, layout: str, seed: int) -> None:
    table = precision_of(precision)
    x = arranged(np, gates_of(cell, "slow", seed, (9, 2, 5)), layout).astype(numpy_dtype(table.storage_dtype))
    parameters = {name: one.astype(x.dtype) for name, one in drawn_parameters(cell, seed, 5).items()}
    zeros = {CELLS[cell].state: np.zeros((2, 5), numpy_dtype(table.arithmetic_dtype))}
    kernel = host_kernel(cell, 5, precision, layout)
    given_none, _ = kernel(x, parameters=parameters)
    given_zeros, _ = kernel(x, parameters=parameters, state=zeros)
    assert np.array_equal(given_none, given_zeros)


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=examples(10))
@given(
    cell=st.sampled_from(("min_gru", "qrnn", "rg_lru")),
    precision_name=precisions,
    seed=seeds,
    time=st.integers(0, 5),
    batch=st.integers(0, 3),
    has_bias=st.booleans(),
)
def test_a_projection_is_a_matrix_product(
    layout: str,
    cell: str,
    precision_name: str,
    seed: int,
    time: int,
    batch: int,
    has_bias: bool,
) -> None:
    hidden, inputs, precision = 5, 7, precision_of(precision_name)
    storage, carried = numpy_dtype(precision.storage_dtype), numpy_dtype(precision.arithmetic_dtype)
    random = np.random.default_rng(seed)
    names = CELLS[cell].gates
    x = random.normal(size=(time, batch, inputs)).astype(storage)
    weight = random.normal(size=(len(names) * hidden, inputs)).astype(storage)
    bias = random.normal(size=(len(names), hidden)).astype(storage) if has_bias else None
    state = {name: one.astype(carried) for name, one in drawn_state(cell, seed, batch, hidden).items()}
    parameters = {name: one.astype(storage) for name, one in drawn_parameters(cell, seed, hidden).items()}

    # Higham, section 3.1: a dot product of n terms is within n u of the sum of their magnitudes, in whatever order.
    arithmetic = Arithmetic.of(np, precision)
    wide_x, wide_weight = x.astype(np.float64), weight.astype(np.float64)
    product = (wide_x @ wide_weight.T).reshape(time, batch, len(names), hidden)
    bound = inputs * arithmetic.u * (abs(wide_x) @ abs(wide_weight).T).reshape(product.shape)
    gates = {name: Tracked(product[:, :, g], bound[:, :, g], arithmetic) for g, name in enumerate(names)}
    expected = oracle(np, cell, gates, state, parameters, precision, _named(names, bias))

    kernel = host_kernel(cell, hidden, precision_name, layout, input_size=inputs)
    y, final = kernel(np.ascontiguousarray(laid_out(x, layout)), weight=weight, bias=bias, state=state, parameters=parameters)
    assert_within(expected.y, expected.y_bound, by_time(y, layout))
    assert_within(*(side[CELLS[cell].state] for side in (expected.states, expected.state_bounds, final)))
    if time:
        y_t, _ = kernel.step(x[0], weight=weight, bias=bias, state=state, parameters=parameters)
        assert_within(expected.y[0], expected.y_bound[0], y_t)


def _named(names: tuple[str, ...], bias: Any) -> dict[str, Any] | None:
    return None if bias is None else dict(zip(names, bias, strict=True))


@given(cell=st.sampled_from(tuple(CELLS)), layout=layouts, seed=seeds)
def test_the_reference_is_the_oracle(cell: str, layout: str, seed: int) -> None:
    """`reference` takes the arrays of a call and computes in float64, so it is within the bound of fp64, unrounded."""
    gates = {name: gate.astype(np.float16) for name, gate in gates_of(cell, "slow", seed, (40, 2, 5)).items()}
    state = {name: one.astype(np.float32) for name, one in drawn_state(cell, seed, 2, 5).items()}
    parameters = {name: one.astype(np.float16) for name, one in drawn_parameters(cell, seed, 5).items()}
    expected = oracle(np, cell, gates, state, parameters, precision_of("fp64"))
    y, final = host_kernel(cell, 5, "fp16", layout).reference(arranged(np, gates, layout), state=state, parameters=parameters)
    assert y.dtype == np.float64
    assert_within(expected.y, expected.y_bound, by_time(y, layout))
    assert_within(*(side[CELLS[cell].state] for side in (expected.states, expected.state_bounds, final)))


@pytest.mark.parametrize("cell", CELLS)
def test_the_blocks_of_the_host_target_do_not_show(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Coefficients are computed for a block of steps at once; wherever the blocks end, the bound is the same."""
    gates = {name: one.astype(np.float32) for name, one in gates_of(cell, "slow", 0, (50, 2, 5)).items()}
    parameters = {name: one.astype(np.float32) for name, one in drawn_parameters(cell, 0, 5).items()}
    state = {name: one.astype(np.float32) for name, one in drawn_state(cell, 0, 2, 5).items()}
    expected = oracle(np, cell, gates, state, parameters, precision_of("fp32"))
    kernel = host_kernel(cell, 5, "fp32")
    for elements in (host_call.BLOCK_ELEMENTS, 1, 30, 70, 330):
        monkeypatch.setattr(host_call, "BLOCK_ELEMENTS", elements)
        y, final = kernel(arranged(np, gates, "BTD"), parameters=parameters, state=state)
        assert_within(expected.y, expected.y_bound, by_time(y, "BTD"))
        assert_within(*(side[CELLS[cell].state] for side in (expected.states, expected.state_bounds, final)))
