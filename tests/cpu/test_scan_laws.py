"""Laws of a scan: composition is associative, sequences can be cut anywhere, and never touch each other."""

from __future__ import annotations

import functools
from fractions import Fraction
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
)
from support.oracle import CELLS, assert_within, oracle
from support.uncompiled_kernels import host_kernel

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.precision import PRECISION_NAMES, precision_of

Affine = tuple[Any, Any]

seeds = st.integers(0, 2**32 - 1)
precisions = st.sampled_from(PRECISION_NAMES)
layouts = st.sampled_from(LAYOUTS)
affine_of_integers = st.tuples(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
fp32 = st.floats(width=32, allow_nan=False, min_value=-4, max_value=4)

IDENTITY = (1, 0)


def after(later: Affine, earlier: Affine) -> Affine:
    """(s -> a s + b) after an earlier step; templates/scan_forward_channels.cu.j2 composes in this form."""
    return later[0] * earlier[0], later[0] * earlier[1] + later[1]


@given(affine_of_integers, affine_of_integers, affine_of_integers)
def test_composition_is_associative(first: Affine, second: Affine, third: Affine) -> None:
    assert after(third, after(second, first)) == after(after(third, second), first)


@given(affine_of_integers, affine_of_integers, st.integers(-(10**6), 10**6))
def test_composition_is_what_the_steps_do(first: Affine, second: Affine, state: int) -> None:
    a, b = after(second, first)
    assert a * state + b == second[0] * (first[0] * state + first[1]) + second[1]


@given(affine_of_integers)
def test_the_identity_changes_nothing(step: Affine) -> None:
    assert after(step, IDENTITY) == after(IDENTITY, step) == step


@given(st.lists(st.tuples(fp32, fp32), min_size=1, max_size=24), st.data())
def test_any_order_in_fp32_is_within_the_bound(steps: list[Affine], data: st.DataObject) -> None:
    """However the steps are bracketed: pairs are composed in a drawn order until one is left."""
    exact = functools.reduce(lambda first, then: after(then, first), [tuple(map(Fraction, step)) for step in steps])
    left = [(np.float32(a), np.float32(b)) for a, b in steps]
    while len(left) > 1:
        at = data.draw(st.integers(0, len(left) - 2))
        left[at : at + 2] = [after(left[at + 1], left[at])]
    a, b = (np.array([step[part] for step in steps], np.float64).reshape(-1, 1, 1) for part in (0, 1))
    expected = oracle(np, "raw", {"a": a, "b": b}, {"h": np.zeros((1, 1))}, {}, precision_of("fp32"))
    assert abs(Fraction(float(left[0][1])) - exact[1]) <= Fraction(float(expected.state_bounds["h"].item()))


@settings(max_examples=examples(60))
@given(
    cell=st.sampled_from(tuple(CELLS)),
    kind=st.sampled_from(range(7)),
    precision_name=precisions,
    layout=layouts,
    seed=seeds,
    time=st.integers(0, 130),
    cut=st.floats(0, 1),
)
def test_a_sequence_can_be_cut_anywhere(
    cell: str, kind: int, precision_name: str, layout: str, seed: int, time: int, cut: float
) -> None:
    """scan(T) is scan(T1), then scan(T2) from the state that is left: whole and cut are within the same bound."""
    precision = precision_of(precision_name)
    shape = (time, 2, 5)
    gates = (
        drawn_coefficients(RAW_KINDS[kind], seed, shape) if cell == "raw" else drawn_gates(cell, GATE_KINDS[kind], seed, shape)
    )
    x = arranged(np, gates, "TBD").astype(numpy_dtype(precision.storage_dtype))
    state = {name: one.astype(numpy_dtype(precision.arithmetic_dtype)) for name, one in drawn_state(cell, seed, 2, 5).items()}
    parameters = {name: one.astype(x.dtype) for name, one in drawn_parameters(cell, seed, 5).items()}
    kernel = host_kernel(cell, 5, precision_name, layout)
    order = (0, 1, 2, 3) if layout == "TBD" else (1, 0, 2, 3) if layout == "BTD" else (1, 2, 3, 0)

    def run(part: slice, before: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        y, final = kernel(np.ascontiguousarray(x[part].transpose(order)), state=before, parameters=parameters)
        return by_time(y, layout), final

    stored = {name: x[:, :, index] for index, name in enumerate(gates)}
    expected = oracle(np, cell, stored, state, parameters, precision)
    middle = int(cut * time)
    whole = run(slice(None), state)
    first, between = run(slice(middle), state)
    second, last = run(slice(middle, None), between)
    for y, final in (whole, (np.concatenate([first, second]), last)):
        assert_within(expected.y, expected.y_bound, y)
        for name in kernel.states:
            assert_within(expected.states[name], expected.state_bounds[name], final[name])


@given(
    cell=st.sampled_from(tuple(CELLS)),
    precision_name=precisions,
    layout=layouts,
    seed=seeds,
    poison=st.sampled_from((np.nan, np.inf, -np.inf)),
    at=st.tuples(st.integers(0, 39), st.integers(0, 2), st.integers(0, 4)),
    data=st.data(),
)
def test_what_is_not_finite_stays_where_it_is(
    cell: str,
    precision_name: str,
    layout: str,
    seed: int,
    poison: float,
    at: tuple[int, int, int],
    data: st.DataObject,
) -> None:
    """NaN or an infinity in one channel of one sequence reaches no other, nor an earlier time, and no warning is given."""
    precision = precision_of(precision_name)
    storage, carried = numpy_dtype(precision.storage_dtype), numpy_dtype(precision.arithmetic_dtype)
    kind = "slow"
    gates = drawn_coefficients(kind, seed, (40, 3, 5)) if cell == "raw" else drawn_gates(cell, kind, seed, (40, 3, 5))
    gates = {name: gate.astype(storage) for name, gate in gates.items()}
    state = {name: one.astype(carried) for name, one in drawn_state(cell, seed, 3, 5).items()}
    parameters = {name: one.astype(storage) for name, one in drawn_parameters(cell, seed, 5).items()}
    kernel = host_kernel(cell, 5, precision_name, layout)
    clean, clean_final = kernel(arranged(np, gates, layout), state=state, parameters=parameters)

    gates[data.draw(st.sampled_from(sorted(gates)))][at] = poison
    y, final = kernel(arranged(np, gates, layout), state=state, parameters=parameters)
    time, sequence, channel = at
    touched = np.zeros((40, 3, 5), bool)
    # An infinite coefficient lets its element be walked another way from the start: other roundings, and no more.
    touched[time if np.isnan(poison) else 0 :, sequence, channel] = True
    assert np.isfinite(by_time(y, layout)[:time, sequence, channel].astype(float)).all()
    assert np.array_equal(by_time(y, layout)[~touched], by_time(clean, layout)[~touched])
    for name in kernel.states:
        assert np.array_equal(final[name][~touched[-1]], clean_final[name][~touched[-1]])
    if np.isnan(poison):
        assert np.isnan(by_time(y, layout)[at])


@pytest.mark.parametrize("layout", LAYOUTS)
@given(precision_name=precisions, seed=seeds)
def test_integers_that_are_kept_add_up_exactly(layout: str, precision_name: str, seed: int) -> None:
    """With a = 1 a scan is a cumulative sum, and of small integers every rounding is exact: no tolerance at all."""
    precision = precision_of(precision_name)
    storage = numpy_dtype(precision.storage_dtype)
    random = np.random.default_rng(seed)
    # Sums stay below 2^8, which bfloat16 has exactly.
    b = random.integers(-1, 2, (120, 2, 5))
    h0 = random.integers(1, 100, (2, 5))
    x = arranged(np, {"a": np.ones(b.shape), "b": b}, layout).astype(storage)
    y, final = host_kernel("raw", 5, precision_name, layout)(x, state={"h": h0.astype(numpy_dtype(precision.arithmetic_dtype))})
    exact = np.cumsum(b, axis=0) + h0
    assert np.array_equal(by_time(y, layout).astype(np.int64), exact)
    assert np.array_equal(final["h"], exact[-1])


@given(precision_name=precisions, layout=layouts, seed=seeds)
def test_a_state_that_is_dropped_leaves_no_trace(precision_name: str, layout: str, seed: int) -> None:
    """With a = 0, y is b, bit for bit."""
    precision = precision_of(precision_name)
    gates = {
        name: one.astype(numpy_dtype(precision.storage_dtype))
        for name, one in drawn_coefficients("zero", seed, (20, 2, 5)).items()
    }
    state = {"h": drawn_state("raw", seed, 2, 5)["h"].astype(numpy_dtype(precision.arithmetic_dtype))}
    y, final = host_kernel("raw", 5, precision_name, layout)(arranged(np, gates, layout), state=state)
    assert np.array_equal(by_time(y, layout), gates["b"])
    assert np.array_equal(final["h"], gates["b"][-1].astype(final["h"].dtype))


@given(precision_name=precisions, seed=seeds)
def test_signs_alternate_exactly(precision_name: str, seed: int) -> None:
    """With a = -1 or 1 and b = 0 the state keeps its size, bit for bit, and has the product of the signs."""
    precision = precision_of(precision_name)
    storage, carried = numpy_dtype(precision.storage_dtype), numpy_dtype(precision.arithmetic_dtype)
    a = drawn_coefficients("signs", seed, (90, 2, 5))["a"]
    # In storage precision already, so that storing y rounds nothing.
    h0 = drawn_state("raw", seed, 2, 5)["h"].astype(storage).astype(carried)
    x = arranged(np, {"a": a, "b": np.zeros_like(a)}, "BTD").astype(storage)
    y, _ = host_kernel("raw", 5, precision_name, "BTD")(x, state={"h": h0})
    assert np.array_equal(by_time(y, "BTD").astype(carried), np.cumprod(a, axis=0) * h0)


def test_a_long_sequence_with_slow_gates() -> None:
    """Where errors add up: 20,000 steps that each keep all but a ten-thousandth."""
    drawn = drawn_coefficients("slower", 0, (20_000, 1, 5))
    # Of one sign, so that nothing cancels and relative errors mean something.
    gates = {name: np.abs(one).astype(np.float32) for name, one in drawn.items()}
    state = {"h": np.abs(drawn_state("raw", 0, 1, 5)["h"]).astype(np.float32)}
    expected = oracle(np, "raw", gates, state, {}, precision_of("fp32"))
    y, final = host_kernel("raw", 5, "fp32")(arranged(np, gates, "BTD"), state=state)
    assert_within(expected.y, expected.y_bound, by_time(y, "BTD"))
    assert_within(expected.states["h"], expected.state_bounds["h"], final["h"])
    # Tight enough to see bfloat16 anywhere on the way.
    assert np.max(expected.y_bound / expected.y) < 2.0**-8


@pytest.mark.parametrize("precision_name", PRECISION_NAMES)
def test_overflow_is_an_infinity_without_a_warning(precision_name: str) -> None:
    """As on a GPU: what storage cannot hold is infinite, infinity times 0 is NaN, and nobody is warned."""
    storage = numpy_dtype(precision_of(precision_name).storage_dtype)
    largest = {"float64": 1e300, "float32": 1e38, "bfloat16": 1e38, "float16": 6e4}[storage.name]
    a = np.array([1, largest, largest, 0]).reshape(4, 1, 1)
    x = arranged(np, {"a": a, "b": np.full((4, 1, 1), largest)}, "BTD").astype(storage)
    y, _ = host_kernel("raw", 1, precision_name)(x)
    y = by_time(y, "BTD").astype(np.float64).reshape(-1)
    assert y[0] == float(x[0, 0, 1, 0])
    assert y[1] == y[2] == np.inf
    # fp16 is computed in fp32, whose infinity is farther away: 0 times a number leaves b.
    assert np.isnan(y[3]) if precision_name != "fp16" else y[3] == y[0]


def test_a_projection_that_overflows_is_silent() -> None:
    kernel = host_kernel("raw", 1, "fp32", "BTD", input_size=2)
    x = np.full((1, 3, 2), np.finfo(np.float32).max)
    x[0, 0, 1] = -np.inf
    y, _ = kernel(x, weight=np.full((2, 2), np.float32(2)))
    assert not np.isfinite(y).any()
