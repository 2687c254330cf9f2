"""Scans of maps on host arrays: every form beside a loop in extended precision, cut anywhere, forwards and backwards."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.everyday import in_turn
from support.examples import examples
from support.host_code import BY, RUNNERS

import minrnn_gen
from minrnn_gen.errors import BadInput
from minrnn_gen.raw_scan.map_arguments import FORMS

MAPS = [form for form in FORMS if form != "scalar"]


def matrices(form: str, a: Any) -> Any:
    """Return maps of a form as full ones."""
    if form == "full":
        return a
    p, q = a[..., 0], a[..., 1]
    upper = -q if form == "rotation" else 0 * q
    return np.stack([np.stack([p, upper], -1), np.stack([q, p], -1)], -2)


def loop(form: str, a: Any, b: Any, h0: Any, axis: int, reverse: bool) -> tuple[Any, Any]:
    """Return (y, final) step by step in the extended precision of the arrays."""
    maps, b = matrices(form, a), np.moveaxis(b, axis, 0)
    is_constant = maps.ndim - 1 != b.ndim
    maps = maps if is_constant else np.moveaxis(maps, axis, 0)
    state = np.zeros(b.shape[1:], b.dtype) if h0 is None else h0
    y = np.zeros_like(b)
    for t in range(len(b))[:: -1 if reverse else 1]:
        state = ((maps if is_constant else maps[t]) * state[..., None, :]).sum(-1) + b[t]
        y[t] = state
    return np.moveaxis(y, 0, axis), state


@st.composite
def calls(draw: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return arrays of a scan in float64, and its options."""
    form = draw(st.sampled_from(MAPS))
    size = draw(st.sampled_from((2, 3, 4))) if form == "full" else 2
    shape = [draw(st.integers(0, 5)) for _ in range(draw(st.integers(1, 3)))]
    axis = draw(st.integers(0, len(shape) - 1))
    shape[axis] = draw(st.integers(0, 40))
    behind = shape[axis + 1 :]
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    of_map = (size, size) if form == "full" else (2,)
    a = random.uniform(-1, 1, (*(behind if draw(st.booleans()) else shape), *of_map)) / size
    b = random.uniform(-1, 1, (*shape, size))
    h0 = random.uniform(-1, 1, (*shape[:axis], *behind, size)) if draw(st.booleans()) else None
    counted = axis - draw(st.sampled_from((0, len(shape) + 1)))
    return {"a": a, "b": b, "h0": h0}, {"form": form, "axis": counted, "reverse": draw(st.booleans())}


@pytest.mark.parametrize("runner", RUNNERS)
@settings(max_examples=examples(60), deadline=None)
@given(call=calls())
def test_every_form_is_the_loop(runner: str, call: Any) -> None:
    arrays, options = call
    axis = options["axis"] % arrays["b"].ndim
    wide = [None if one is None else one.astype(np.longdouble) for one in arrays.values()]
    expected = loop(options["form"], *wide, axis, options["reverse"])
    with BY[runner]():
        found = minrnn_gen.scan(**arrays, **options)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other.astype(float), rtol=0, atol=1e-14)


@pytest.mark.parametrize("runner", RUNNERS)
@settings(max_examples=examples(40), deadline=None)
@given(call=calls(), seed=st.integers(0, 2**32 - 1))
def test_gradients_are_those_of_the_loop(runner: str, call: Any, seed: int) -> None:
    # Results are polynomials of the arrays, so that imaginary steps give derivatives without differences.
    arrays, options = call
    axis = options["axis"] % arrays["b"].ndim
    random = np.random.default_rng(seed)
    with BY[runner]():
        y, final = minrnn_gen.scan(**arrays, **options)
        dy, dfinal = random.normal(size=y.shape), random.normal(size=final.shape)
        gradients = minrnn_gen.scan_backward(arrays["a"], y, dy, arrays["h0"], dfinal, **options)
    assert gradients[0].shape == arrays["a"].shape and gradients[1].shape == y.shape and gradients[2].shape == final.shape
    for name, gradient in zip(("a", "b", "h0"), gradients, strict=True):
        if arrays[name] is None:
            continue
        step = 1e-30 * random.normal(size=gradient.shape)
        moved = {key: one if key != name or one is None else one + 1j * step for key, one in arrays.items()}
        as_complex = [None if one is None else one.astype(np.clongdouble) for one in moved.values()]
        after, last = loop(options["form"], *as_complex, axis, options["reverse"])
        derivative = ((after.imag * dy).sum() + (last.imag * dfinal).sum()) / 1e-30
        assert abs(float(derivative) - (gradient * step).sum() / 1e-30) <= 1e-11 * (1 + abs(float(derivative)))


@pytest.mark.parametrize("runner", RUNNERS)
@settings(max_examples=examples(30), deadline=None)
@given(call=calls(), cut=st.floats(0, 1))
def test_a_scan_cut_anywhere_is_the_whole(runner: str, call: Any, cut: float) -> None:
    # Composition is associative: (A3 A2) A1 is A3 (A2 A1), in native code to the last bit, as states are carried in float64.
    arrays, options = call
    axis, reverse = options["axis"] % arrays["b"].ndim, options["reverse"]
    time = arrays["b"].shape[axis]
    at, varies = round(cut * time), arrays["a"].ndim - (options["form"] == "full") == arrays["b"].ndim
    with BY[runner]():
        whole, final = minrnn_gen.scan(**arrays, **options)
        state, parts = arrays["h0"], []
        for part in [slice(at), slice(at, None)][:: -1 if reverse else 1]:
            where = (slice(None),) * axis + (part,)
            y, state = minrnn_gen.scan(arrays["a"][where] if varies else arrays["a"], arrays["b"][where], state, **options)
            parts.append(y)
    joined = np.concatenate(parts[:: -1 if reverse else 1], axis)
    tolerance = 0 if runner == "native" else 1e-14
    np.testing.assert_allclose(joined, whole, rtol=0, atol=tolerance)
    np.testing.assert_allclose(state, final, rtol=0, atol=tolerance)


def companion(*polynomial: float) -> Any:
    return np.array([[-polynomial[1], -polynomial[2]], [1, 0]], np.float32)


def turning(angle: float) -> Any:
    return np.array([np.cos(angle), np.sin(angle)], np.float32)


# Of single precision: the map, and the error allowed over the largest value after 32,768 steps, in full maps as computed with
# maps in float64, in the other forms as with tiles of float32.
HARD = {
    "poles 0.99 e^0.3i": ("full", companion(1, -2 * 0.99 * np.cos(0.3), 0.99**2), 9e-7),
    "a double pole of 0.999": ("full", companion(1, -2 * 0.999, 0.999**2), 7e-6),
    "poles e^0.02i": ("full", companion(1, -2 * np.cos(0.02), 1), 6e-6),
    "the same poles of differences": (
        "full",
        np.array([[2 * np.cos(0.02) - 1, 1], [2 * np.cos(0.02) - 2, 1]], np.float32),
        5e-7,
    ),
    "a rotation of modulus 1": ("rotation", turning(0.3), 1e-4),
    "a dual number near 1": ("dual", np.array([1 - 1e-4, 1], np.float32), 2e-5),
}


def hard_values() -> Any:
    return np.random.default_rng(0).normal(size=(1, 1 << 15, 1, 2)).astype(np.float32)


@functools.cache
def results_of_hard_poles(name: str) -> tuple[Any, Any]:
    form, a, _ = HARD[name]
    return loop(form, a[None].astype(np.longdouble), hard_values().astype(np.longdouble), None, 1, reverse=False)


@pytest.mark.parametrize(("name", "is_constant", "runner"), in_turn(HARD, [True, False], RUNNERS))
def test_hard_poles_keep_their_digits(name: str, is_constant: bool, runner: str) -> None:
    form, a, allowed = HARD[name]
    b = hard_values()
    a = a[None] if is_constant else np.broadcast_to(a, (*b.shape[:-1], *a.shape)).copy()
    with BY[runner]():
        y, final = minrnn_gen.scan(a, b, form=form)
    expected, last = results_of_hard_poles(name)
    largest = np.abs(expected).max()
    assert np.abs(y - expected).max() <= allowed * largest and np.abs(final - last).max() <= allowed * largest


def test_rotations_and_dual_numbers_are_full_maps() -> None:
    random = np.random.default_rng(0)
    a, b = random.normal(size=(2, 9, 3, 2)), random.normal(size=(2, 9, 3, 2))
    for form in ("rotation", "dual"):
        for one, other in zip(
            minrnn_gen.scan(a, b, form=form), minrnn_gen.scan(matrices(form, a), b, form="full"), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_values_that_are_none_stay_in_their_sequence() -> None:
    b = np.ones((3, 6, 2, 2), np.float32)
    b[1, 2, 0] = np.nan
    a = np.full((2, 2, 2), 0.25, np.float32)
    for runner in BY.values():
        with runner():
            y, _ = minrnn_gen.scan(a, b, form="full")
        hurt = np.isnan(y)
        assert hurt[1, 2:, 0].all() and hurt.sum() == hurt[1, 2:, 0].size


GOOD = {"a": np.zeros((2, 5, 3, 2, 2)), "b": np.zeros((2, 5, 3, 2)), "form": "full"}
PAIRS = {"a": np.zeros((2, 5, 3, 2)), "b": np.zeros((2, 5, 3, 2)), "form": "dual"}
BAD = [
    ({**GOOD, "form": "diagonal"}, "form is 'diagonal'; one of scalar, rotation, dual, full is expected"),
    ({**GOOD, "form": None}, "form is null; one of"),
    ({**GOOD, "log_a": True}, "log_a is given with form 'full'"),
    ({**GOOD, "axis": 3}, "axis is 3, the last one of b"),
    ({**GOOD, "axis": 7}, "axis is 7, but b has shape [2, 5, 3, 2]"),
    ({**GOOD, "reverse": 1}, "reverse is 1; True or False is expected"),
    ({**GOOD, "b": np.zeros((2, 5, 3, 5))}, "b has states of 5 values along its last axis; a scan of maps takes 2 to 4"),
    ({**GOOD, "b": np.zeros((2, 5, 3, 1))}, "b has states of 1 values along its last axis; a scan of maps takes 2 to 4"),
    ({**GOOD, "a": np.zeros((3, 2))}, "a has shape [3, 2]; [2, 5, 3, 2, 2] is expected, or [3, 2, 2] for all steps"),
    ({**GOOD, "a": np.zeros((3, 2, 2), np.float32)}, "a has dtype float32; that of b, float64, is expected"),
    ({**GOOD, "b": np.zeros((2, 5, 3, 2), np.float16)}, "b has dtype float16; a scan of maps takes float64 or float32"),
    ({**GOOD, "h0": np.zeros((2, 3, 2), np.float32)}, "h0 has dtype float32; float64 is expected beside b of float64"),
    ({**GOOD, "h0": np.zeros((2, 2))}, "h0 has shape [2, 2]; [2, 3, 2], that of b without axis 1, is expected"),
    ({**GOOD, "b": np.zeros(2)}, "b has shape [2]; an axis of time and a last axis of the state's values are expected"),
    ({**PAIRS, "b": np.zeros((2, 5, 3, 3))}, "b has shape [2, 5, 3, 3]; pairs of numbers along its last axis are expected"),
    ({**PAIRS, "a": np.zeros((5, 2))}, "a has shape [5, 2]; [2, 5, 3, 2], that of b, is expected, or [3, 2] for all steps"),
    ({**PAIRS, "a": np.zeros((3, 2), np.float32)}, "a has dtype float32; that of b, float64, is expected"),
    ({**PAIRS, "h0": np.zeros((3, 2))}, "h0 has shape [3, 2]; [2, 3, 2], that of b without axis 1, is expected"),
    ({**PAIRS, "h0": "zeros"}, "h0 is a str; a NumPy, CuPy or torch array, or any with DLPack, is expected"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD)
def test_bad_input_is_one_sentence(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as caught:
        minrnn_gen.scan(**arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    if "a" in arguments and "h0" not in arguments and "b" in words.split()[:1]:
        with pytest.raises(BadInput):
            minrnn_gen.scan_backward(arguments["a"], arguments["b"], arguments["b"], form=arguments["form"])
