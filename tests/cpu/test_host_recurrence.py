"""The two ways the host walks a recurrence: both within the bound, and no element ever feels another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kernel_inputs import RAW_KINDS, drawn_coefficients, drawn_state
from support.oracle import assert_within, oracle

from minrnn_gen.cpu import recurrence
from minrnn_gen.cpu.recurrence import scan
from minrnn_gen.precision import precision_of

seeds = st.integers(0, 2**32 - 1)
# Around every number of steps that matters: none, the serial end of the parallel scan, powers of two, what sizes choose.
times = st.one_of(st.integers(0, 70), st.sampled_from((127, 128, 129, 1000)))
# Products of coefficients above 1 overflow where the states do not; for these the sizes choose the sequential way.
BOUNDED_KINDS = tuple(kind for kind in RAW_KINDS if kind != "powers")


def drawn(kind: str, seed: int, time: int, dtype: Any) -> tuple[Any, Any, Any]:
    steps = drawn_coefficients(kind, seed, (time, 2, 3))
    return steps["a"].astype(dtype), steps["b"].astype(dtype), drawn_state("raw", seed, 2, 3)["h"].astype(dtype)


@pytest.mark.parametrize("precision_name", ["fp32", "fp64"])
@pytest.mark.parametrize("method", ["sequential", "parallel", None])
@given(kind=st.sampled_from(BOUNDED_KINDS), seed=seeds, time=times, block=st.sampled_from((1, 6, 100, 1 << 16)))
def test_within_the_bound(precision_name: str, method: Any, kind: str, seed: int, time: int, block: int) -> None:
    precision = precision_of(precision_name)
    a, b, initial = drawn(kind, seed, time, precision.arithmetic_dtype)
    expected = oracle(np, "raw", {"a": a, "b": b}, {"h": initial}, {}, precision)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "PARALLEL_BLOCK_ELEMENTS", block)
        states = scan(a, b, initial, method)
    assert states.dtype == initial.dtype and np.array_equal(states[0], initial)
    assert_within(expected.y, expected.y_bound, states[1:])
    assert_within(expected.states["h"], expected.state_bounds["h"], states[-1])


@given(seed=seeds, time=times, grows=st.booleans())
def test_growing_states_are_walked_step_by_step(seed: int, time: int, grows: bool) -> None:
    """With coefficients above 1 a product of several may overflow, or vanish, where no state does."""
    a, b, initial = drawn("powers" if grows else "mixed", seed, time, np.float32)
    a[::2] *= 2.0**60 if grows else 1
    a[1::2] *= 2.0**-60 if grows else 1
    precision = precision_of("fp32")
    with np.errstate(all="ignore"):
        states = scan(a, b, initial)
        expected = oracle(np, "raw", {"a": a, "b": b}, {"h": initial}, {}, precision)
    in_range = np.isfinite(expected.y.astype(np.float32)).all(axis=0)
    assert_within(expected.y[:, in_range], expected.y_bound[:, in_range], states[1:, in_range])


@given(
    kind=st.sampled_from(RAW_KINDS),
    seed=seeds,
    time=times,
    odd=st.sampled_from((np.nan, np.inf, -np.inf, 1e30, 1.5, 0.0)),
    data=st.data(),
)
def test_no_element_feels_another(kind: str, seed: int, time: int, odd: float, data: st.DataObject) -> None:
    """To the last bit, whatever stands in the other: not even by the choice of the method."""
    a, b, initial = drawn(kind, seed, time, np.float32)
    with np.errstate(all="ignore"):
        before = scan(a, b, initial)
        place = data.draw(st.tuples(st.integers(0, max(time - 1, 0)), st.integers(0, 1), st.integers(0, 2)))
        for steps in (a, b):
            if time:
                steps[place] = odd
        initial[place[1:]] = initial[place[1:]] if time else odd
        after = scan(a, b, initial)
    others = np.ones((2, 3), bool)
    others[place[1:]] = False
    assert np.array_equal(before[:, others], after[:, others], equal_nan=True)
    # Nor does the past feel the future, unless that lets the element grow and so is walked another way.
    if time and not abs(odd) > 1:
        assert np.array_equal(before[: place[0] + 1], after[: place[0] + 1], equal_nan=True)
