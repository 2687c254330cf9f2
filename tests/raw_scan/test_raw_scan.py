"""minrnn_gen.scan and scan_backward on host arrays: shapes, axes, directions and dtypes against plain loops and exact facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples

import minrnn_gen
from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.config.environment import numpy_alone
from minrnn_gen.errors import BadInput
from minrnn_gen.precision import STORAGE_DTYPES, Precision, precision_storing


@dataclass(frozen=True)
class Case:
    """Arrays in the storage dtype, with any strides; `options` are keywords of scan and scan_backward alike."""

    a: Any
    b: Any
    h0: Any
    options: dict[str, Any]

    @property
    def axis(self) -> int:
        return int(self.options["axis"] % self.a.ndim)

    @property
    def precision(self) -> Precision:
        found = precision_storing(self.a.dtype.name)
        assert found is not None
        return found


def drawn(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    values = random.uniform(-1, 1, shape)
    if dtype.startswith("complex"):
        values = values + 1j * random.uniform(-1, 1, shape)
    return values.astype(numpy_dtype(dtype))


def strided(random: np.random.Generator, array: Any) -> Any:
    """Return equal values in memory with another order of axes, directions and gaps."""
    order = random.permutation(array.ndim)
    padded = np.zeros([array.shape[axis] * 2 for axis in order], array.dtype)
    view = padded[tuple(slice(None, None, 2) for _ in order)].transpose(np.argsort(order))
    if random.integers(2):
        view = view[::-1]
    view[...] = array
    return view


@st.composite
def cases(draw: Any, dtypes: tuple[str, ...] = STORAGE_DTYPES, longest: int = 6) -> Case:
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(0, longest), min_size=1, max_size=4)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    log_a = not dtype.startswith("complex") and draw(st.booleans())
    a, b = drawn(random, shape, dtype), drawn(random, shape, dtype)
    precision = precision_storing(dtype)
    assert precision is not None
    state_shape = np.delete(shape, axis)
    h0 = drawn(random, tuple(state_shape), precision.arithmetic_dtype) if draw(st.booleans()) else None
    if draw(st.booleans()):
        a, b = strided(random, a), strided(random, b)
    return Case(a, b, h0, {"axis": axis, "log_a": log_a, "reverse": draw(st.booleans())})


def wide(array: Any) -> Any:
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def by_time(case: Case, array: Any) -> Any:
    moved = np.moveaxis(array, case.axis, 0)
    return moved[::-1] if case.options["reverse"] else moved


def walked(case: Case) -> tuple[Any, Any, Any]:
    """Return (y, final) in double precision, and how large the values were that made up each y, for its error."""
    a, b = wide(case.a), wide(case.b)
    a = np.exp(a) if case.options["log_a"] else a
    y, size = np.zeros_like(b), np.zeros(b.shape)
    state = np.zeros(np.delete(a.shape, case.axis), a.dtype) if case.h0 is None else wide(case.h0)
    magnitude = abs(state)
    a, b, states, sizes = (by_time(case, array) for array in (a, b, y, size))
    for t in range(len(a)):
        state = a[t] * state + b[t]
        magnitude = abs(a[t]) * magnitude + abs(b[t])
        states[t], sizes[t] = state, magnitude
    return y, state, size


def assert_within(case: Case, result: Any, exact: Any, size: Any, roundoff: float) -> None:
    """Each step rounds a product and a sum, of complex numbers within 4 roundoffs (Brent, Percival & Zimmermann 2007)."""
    steps = case.a.shape[case.axis] + 2
    arithmetic = 8 * steps * case.precision.arithmetic_roundoff * size
    smallest = 2.0**-24 if case.precision.storage_dtype == "float16" else 2.0**-126
    assert (abs(wide(result) - exact) <= arithmetic + roundoff * (abs(exact) + arithmetic) + smallest).all()


# A kernel takes the compiler a second: of every dtype with the whole matrix.
NATIVE_DTYPES = ("float32", "bfloat16", "complex64", "complex128")


@pytest.fixture(params=["numpy", "native", pytest.param("native in every dtype", marks=pytest.mark.matrix_full)])
def dtypes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The dtypes to draw of, and host arrays run by a target."""
    target = request.param.partition(" ")[0]
    monkeypatch.setenv("MINRNN_CPU", target)
    if target == "native" and (reason := why_no_native_code()):
        pytest.skip(reason)
    return NATIVE_DTYPES if request.param == "native" else STORAGE_DTYPES


def of(dtypes: tuple[str, ...], wanted: tuple[str, ...]) -> Any:
    return cases(tuple(dtype for dtype in wanted if dtype in dtypes))


# One target serves all examples of a test.
OF_ONE_TARGET = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@OF_ONE_TARGET
@given(data=st.data())
def test_a_scan_is_the_plain_loop(dtypes: tuple[str, ...], data: st.DataObject) -> None:
    case = data.draw(of(dtypes, STORAGE_DTYPES))
    before = [np.array(case.a), np.array(case.b)]
    y, final = minrnn_gen.scan(case.a, case.b, case.h0, **case.options)
    assert (y.shape, y.dtype) == (case.a.shape, case.a.dtype) and final.dtype.name == case.precision.arithmetic_dtype
    exact, state, size = walked(case)
    assert final.shape == state.shape
    assert_within(case, y, exact, size, case.precision.storage_roundoff)
    if case.a.shape[case.axis]:
        assert_within(case, final, state, by_time(case, size)[-1], 0.0)
    else:
        assert (wide(final) == state).all()
    assert all((one == other).all() for one, other in zip(before, (case.a, case.b), strict=True))


@given(cases())
def test_reverse_is_a_flip(case: Case) -> None:
    options = case.options | {"reverse": not case.options["reverse"]}
    flipped = [np.flip(array, case.axis) for array in (case.a, case.b)]
    y, final = minrnn_gen.scan(case.a, case.b, case.h0, **case.options)
    other, other_final = minrnn_gen.scan(*flipped, case.h0, **options)
    assert np.array_equal(y, np.flip(other, case.axis)) and np.array_equal(final, other_final)
    gradients = minrnn_gen.scan_backward(case.a, y, case.b, case.h0, None, **case.options)
    others = minrnn_gen.scan_backward(flipped[0], other, flipped[1], case.h0, None, **options)
    assert all(np.array_equal(one, np.flip(two, case.axis)) for one, two in zip(gradients[:2], others[:2], strict=True))
    assert np.array_equal(gradients[2], others[2])


@given(cases())
def test_no_state_is_a_state_of_zeros(case: Case) -> None:
    zeros = np.zeros(np.delete(case.a.shape, case.axis), numpy_dtype(case.precision.arithmetic_dtype))
    y, final = minrnn_gen.scan(case.a, case.b, None, **case.options)
    other, other_final = minrnn_gen.scan(case.a, case.b, zeros, **case.options)
    assert np.array_equal(y, other) and np.array_equal(final, other_final)
    gradients = minrnn_gen.scan_backward(case.a, y, case.b, None, None, **case.options)
    others = minrnn_gen.scan_backward(case.a, y, case.b, zeros, zeros, **case.options)
    assert all(np.array_equal(one, two) for one, two in zip(gradients, others, strict=True))


@pytest.mark.parametrize("dtype", STORAGE_DTYPES)
@pytest.mark.parametrize(("shape", "axis"), [((1, 200), 1), ((200, 200), 0), ((3, 200, 5), 1)])
def test_integers_add_up_exactly(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    """With a = 1 a scan is a cumulative sum; sums of at most 200 terms of -1, 0 and 1 are exact in every dtype."""
    random = np.random.default_rng(0)
    whole = random.integers(-1, 2, shape)
    h0 = random.integers(-3, 4, np.delete(shape, axis))
    precision = precision_storing(dtype)
    assert precision is not None
    start = h0.astype(numpy_dtype(precision.arithmetic_dtype))
    values = whole.astype(numpy_dtype(dtype))
    y, final = minrnn_gen.scan(np.ones_like(values), values, start, axis=axis)
    sums = np.cumsum(whole, axis) + np.expand_dims(h0, axis)
    assert np.array_equal(wide(y), sums) and np.array_equal(wide(final), sums.take(-1, axis))
    # And the gradient of a cumulative sum is one from the other end.
    _, db, dh0 = minrnn_gen.scan_backward(np.ones_like(values), y, values, axis=axis)
    assert np.array_equal(wide(db), np.flip(np.cumsum(np.flip(whole, axis), axis), axis))
    assert np.array_equal(wide(dh0), whole.sum(axis))


@pytest.mark.usefixtures("dtypes")
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("width", [1, 3000])
def test_long_sequences_are_walked_in_blocks(dtype: str, width: int) -> None:
    """Beyond a block of the host, and beyond the sizes at which it scans in parallel."""
    random = np.random.default_rng(1)
    whole = random.integers(-1, 2, (1000, width))
    turns = np.ones((1000, width)) if dtype == "float32" else 1j ** random.integers(0, 4, (1000, width))
    y, _ = minrnn_gen.scan(turns.astype(dtype), whole.astype(dtype), axis=0)
    state = np.zeros(width, np.complex128)
    for t in range(1000):
        state = turns[t] * state + whole[t]
        assert np.array_equal(y[t], state)
    _, db, _ = minrnn_gen.scan_backward(turns.astype(dtype), y, whole.astype(dtype), axis=0)
    delta = np.zeros(width, np.complex128)
    for t in reversed(range(1000)):
        delta = whole[t] + (turns[t + 1].conj() * delta if t < 999 else 0)
        assert np.array_equal(db[t], delta)


def inner(one: Any, other: Any) -> float:
    """The change that a step `other` makes in a loss whose gradient is `one`, in torch's convention."""
    return float(np.sum(np.conjugate(one) * other).real)


@OF_ONE_TARGET
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_gradients_are_the_adjoint_of_the_derivative(dtypes: tuple[str, ...], data: st.DataObject, seed: int) -> None:
    """<dy, dF v> = <dF* dy, v> for every step v: of b and h0, in which a scan is linear, and of a, by the product rule."""
    case = data.draw(of(dtypes, ("float64", "complex128")))
    random = np.random.default_rng(seed)
    dtype = case.a.dtype.name
    state_shape = tuple(np.delete(case.a.shape, case.axis))
    dy, v_a, v_b = (drawn(random, case.a.shape, dtype) for _ in range(3))
    dfinal, v_h0 = drawn(random, state_shape, dtype), drawn(random, state_shape, dtype)
    h0 = np.zeros(state_shape, dtype) if case.h0 is None else case.h0
    y, _ = minrnn_gen.scan(case.a, case.b, case.h0, **case.options)
    da, db, dh0 = minrnn_gen.scan_backward(case.a, y, dy, case.h0, dfinal, **case.options)

    previous = np.empty_like(y)
    moved, earlier = by_time(case, previous), np.concatenate([h0[None], by_time(case, y)])[:-1]
    moved[...] = earlier
    forcing = v_a * previous * (np.exp(case.a) if case.options["log_a"] else 1)
    change, change_final = minrnn_gen.scan(case.a, forcing + v_b, v_h0, **case.options)
    expected = inner(dy, change) + inner(dfinal, change_final)
    found = inner(da, v_a) + inner(db, v_b) + inner(dh0, v_h0)
    growth = np.exp(1) if case.options["log_a"] else 2**0.5  # |a| at most
    assert abs(found - expected) <= 1e-13 * max(1, case.a.size) * growth ** (2 * case.a.shape[case.axis] + 2)


@OF_ONE_TARGET
@given(data=st.data())
def test_narrow_gradients_are_those_of_wide_arithmetic(dtypes: tuple[str, ...], data: st.DataObject) -> None:
    case = data.draw(of(dtypes, ("float32", "float16", "bfloat16", "complex64")))
    y, _ = minrnn_gen.scan(case.a, case.b, case.h0, **case.options)
    given = (case.a, y, case.b)
    h0 = None if case.h0 is None else wide(case.h0)
    narrow = minrnn_gen.scan_backward(*given, case.h0, **case.options)
    with numpy_alone():
        exact = minrnn_gen.scan_backward(*map(wide, given), h0, **case.options)
    assert [gradient.dtype for gradient in narrow[:2]] == [case.a.dtype] * 2
    assert narrow[2].dtype.name == case.precision.arithmetic_dtype
    # |a| is at most e, |h| and |delta| at most its powers; six steps.
    largest = 10 * np.exp(1) ** (2 * case.a.shape[case.axis])
    for index, (one, other) in enumerate(zip(narrow, exact, strict=True)):
        roundoff = case.precision.storage_roundoff if index < 2 else case.precision.arithmetic_roundoff
        error = abs(wide(one) - other)
        assert (error <= roundoff * abs(other) + 64 * case.precision.arithmetic_roundoff * largest + 2.0**-24).all()


def test_a_broken_sequence_breaks_no_other() -> None:
    random = np.random.default_rng(2)
    a, b = drawn(random, (4, 300, 2), "float32"), drawn(random, (4, 300, 2), "float32")
    y, _ = minrnn_gen.scan(a, b)
    clean = minrnn_gen.scan_backward(a, y, b)
    broken = b.copy()
    broken[1, 7, 0], broken[2, 9, 1] = np.nan, np.inf
    other, final = minrnn_gen.scan(a, broken)
    sound = np.ones((4, 2), bool)
    sound[1, 0] = sound[2, 1] = False
    assert np.array_equal(other.swapaxes(1, 2)[sound], y.swapaxes(1, 2)[sound])
    assert not np.isfinite(final[~sound]).any()
    for one, two in zip(minrnn_gen.scan_backward(a, other, broken), clean, strict=True):
        axes = (0, 2, 1) if one.ndim == 3 else (0, 1)
        assert np.array_equal(one.transpose(axes)[sound], two.transpose(axes)[sound])


@given(cases())
@settings(max_examples=examples(40))
def test_gradients_are_torchs(case: Case) -> None:
    import torch

    dtype = "complex128" if np.iscomplexobj(case.a) else "float64"

    def leaf(array: Any) -> Any:
        return torch.tensor(array.astype(dtype, order="C"), requires_grad=True)

    a, b = leaf(case.a), leaf(case.b)
    h0 = leaf(np.zeros(np.delete(case.a.shape, case.axis)) if case.h0 is None else case.h0)
    order = range(case.a.shape[case.axis])
    state, loss = h0, 0
    coefficients = a.exp() if case.options["log_a"] else a
    dy = np.sin(np.arange(case.a.size)).reshape(case.a.shape).astype(dtype) * (1 if dtype == "float64" else 1 - 2j)
    y = torch.zeros(case.a.shape, dtype=a.dtype)
    for t in reversed(order) if case.options["reverse"] else order:
        state = coefficients.select(case.axis, t) * state + b.select(case.axis, t)
        loss = loss + (state * torch.tensor(dy).select(case.axis, t).conj()).real.sum()
        y.select(case.axis, t)[...] = state.detach()
    loss = loss + (state * (2 - 1j if dtype == "complex128" else 2)).real.sum()
    loss.backward()
    dfinal = torch.full(state.shape, 2 + 1j if dtype == "complex128" else 2, dtype=a.dtype)
    with torch.no_grad():
        found = minrnn_gen.scan_backward(a, y, torch.tensor(dy), h0, dfinal, **case.options)
    for one, leaf_ in zip(found, (a, b, h0), strict=True):
        expected = torch.zeros_like(leaf_) if leaf_.grad is None else leaf_.grad
        assert torch.allclose(one, expected, rtol=1e-12, atol=1e-11)


def test_results_come_in_the_callers_library() -> None:
    import torch

    a = torch.rand(2, 5, 3).to(torch.bfloat16)
    y, final = minrnn_gen.scan(a, a)
    assert (y.dtype, final.dtype, y.shape, final.shape) == (torch.bfloat16, torch.float32, a.shape, (2, 3))
    # Lazily conjugated and negated tensors are other numbers than their memory.
    z = torch.randn(2, 5, 3, dtype=torch.complex64)
    lazy, _ = minrnn_gen.scan(z.conj(), z)
    assert torch.equal(lazy, minrnn_gen.scan(z.conj().resolve_conj(), z)[0])
    part = z.conj().imag
    assert part.is_neg() and torch.equal(minrnn_gen.scan(part, part)[0], minrnn_gen.scan(part.clone(), part.clone())[0])


A = np.ones((2, 5, 3), np.float32)
STATE = np.ones((2, 3), np.float32)
REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "axis is 3, but a has shape [2, 5, 3]; allowed are the integers -3 to 2": ((A, A), {"axis": 3}),
    "axis is 1.0, but a has shape [2, 5, 3]; allowed are the integers -3 to 2": ((A, A), {"axis": 1.0}),
    "a has no axes; an array with an axis of time is expected": ((A[0, 0, 0], A[0, 0, 0]), {"axis": 0}),
    "log_a is 1; True or False is expected": ((A, A), {"log_a": 1}),
    "reverse is null; True or False is expected": ((A, A), {"reverse": None}),
    "b has shape [2, 4, 3]; that of a, [2, 5, 3], is expected": ((A, A[:, :4]), {}),
    "b has dtype float64; that of a, float32, is expected and nothing is cast silently": ((A, A.astype(np.float64)), {}),
    "a has dtype int64; one of float64, float32, float16, bfloat16, complex64, complex128 is expected and nothing is cast "
    "silently": ((A.astype(np.int64), A), {}),
    "a is a list; a NumPy, CuPy or torch array, or any with DLPack, is expected": (([1.0], A), {}),
    "h0 has shape [5, 3]; [2, 3], that of a without axis 1, is expected": ((A, A, A[0]), {}),
    "h0 has dtype float64; float32 is expected beside a of float32": ((A, A, STATE.astype(np.float64)), {}),
    "h0 has dtype float16; float32 is expected beside a of float16": (
        (A.astype(np.float16), A.astype(np.float16), STATE.astype(np.float16)),
        {},
    ),
    "log_a is given with a of complex64, whose logarithm has many values; pass a itself, without log_a": (
        (A.astype(np.complex64), A.astype(np.complex64)),
        {"log_a": True},
    ),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_does_not_fit_is_said_in_one_sentence(sentence: str) -> None:
    arrays, options = REFUSED[sentence]
    with pytest.raises(BadInput) as refused:
        minrnn_gen.scan(*arrays, **options)
    assert str(refused.value) == sentence


def test_a_backward_names_the_array_that_does_not_fit() -> None:
    for arrays, name in (((A, A[:1], A), "y"), ((A, A, A[..., 0]), "dy"), ((A, A, A, None, A), "dfinal")):
        with pytest.raises(BadInput, match=f"^{name} has shape"):
            minrnn_gen.scan_backward(*arrays)


def test_a_tensor_that_requires_grad_is_to_be_detached() -> None:
    import torch

    a = torch.ones(2, 5, 3, requires_grad=True)
    with pytest.raises(BadInput, match=r"a requires grad.*call minrnn_gen\.torch\.scan"):
        minrnn_gen.scan(a, a)
    with torch.no_grad():
        minrnn_gen.scan(a, a)
