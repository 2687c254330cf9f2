"""`scan_arithmetic: log` in native code: drawn calls and drawn cells beside the fp64 oracle, and what logarithms are for."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from support.examples import examples
from support.native_store import native_store

import minrnn_gen
from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.config.environment import numpy_alone
from minrnn_gen.errors import Infeasible
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import precision_of

TWO_STATES = {
    "name": "two_states",
    "gates": ["f", "i"],
    "states": ["h", "c"],
    "parameters": ["p"],
    "equations": """
keep = sigmoid(W.f + p)
h[t] = keep * h[t-1] + exp(W.i)
c[t] = exp(-softplus(W.i)) * c[t-1] + softplus(W.f)
""",
    "output": "0.5 * h[t-1] + keep * c[t]",
}
CELLS: dict[str, Any] = {"min_gru_log": "min_gru_log", "two_states": TWO_STATES}


@pytest.fixture(scope="module", autouse=True)
def native_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with native_store(tmp_path_factory, MINRNN_CPU="native"):
        if reason := why_no_native_code():
            pytest.skip(reason)
        yield
    compiled.cache_clear()


@functools.cache
def compiled(cell: str, precision: str, hidden: int, layout: str = "BTD", direction: str = "forward") -> Kernel:
    return native_kernel(CELLS[cell], precision, hidden, layout, direction)


def native_kernel(model: Any, precision: str, hidden: int, layout: str = "BTD", direction: str = "forward") -> Kernel:
    spec = {"model": model, "precision": precision, "hidden_size": hidden, "layout": layout, "direction": direction}
    kernel = minrnn_gen.compile({**spec, "scan_arithmetic": "log", "gpu": "h200"})
    assert kernel.executor.cpu.native.kernels.why_not == ""
    return kernel


class Options(NamedTuple):
    """A call of a kernel: what its arrays are like, and how its sequences begin and end."""

    layout: str
    direction: str
    hidden: int
    batch: int
    time: int
    sequences: str
    has_state: bool
    seed: int


@st.composite
def options(draw: st.DrawFn) -> Options:
    layout = draw(st.sampled_from(("BTD", "TBD", "BDT")))
    return Options(
        layout=layout,
        direction=draw(st.sampled_from(("forward", "reverse", "bidirectional"))),
        hidden=draw(st.sampled_from((5, 33))),
        batch=draw(st.integers(1, 4)),
        time=draw(st.sampled_from((0, 1, 2, 9, 40))),
        sequences=draw(st.sampled_from(("", "lengths", "resets", *(("packed",) if layout == "BTD" else ())))),
        has_state=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def drawn_call(kernel: Kernel, given: Options) -> dict[str, Any]:
    """Return the arguments of a call; some of the states, none of which may be negative, are 0."""
    random, interface = np.random.default_rng(given.seed), kernel.interface
    storage, carried = (numpy_dtype(name) for name in (interface.precision.storage_dtype, interface.precision.arithmetic_dtype))
    is_packed = given.sequences == "packed"
    rows, time = (1, given.batch * given.time) if is_packed else (given.batch, given.time)

    def uniform(shape: tuple[int, ...], scale: float) -> Any:
        return random.uniform(-scale, scale, shape).astype(storage)

    call: dict[str, Any] = {
        "x": uniform(interface.shape(interface.x_axes, rows, time), 3.0),
        "bias": uniform((*interface.directions, len(interface.gates), given.hidden), 1.0),
    }
    if interface.parameters:
        call["parameters"] = {name: uniform(interface.parameter_shape, 1.0) for name in interface.parameters}
    if given.has_state:
        shape = interface.state_shape(given.batch)
        call["state"] = {
            name: (random.uniform(0, 2, shape) * (random.random(shape) < 0.8)).astype(carried) for name in interface.states
        }
    if given.sequences == "lengths":
        call["lengths"] = random.integers(0, time + 1, rows)
    if given.sequences == "resets":
        call["resets"] = random.random((rows, time)) < 0.3
    if is_packed:
        call["cu_seqlens"] = np.concatenate([[0], np.sort(random.integers(0, time + 1, given.batch - 1)), [time]])
    return call


def widened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: widened(part) for name, part in value.items()}
    return value if value is None or value.dtype.kind in "bi" else value.astype(np.float64)


def relative_error(precision: str, time: int) -> float:
    """Return how far a state after so many steps may be from the exact one, relative to it.

    No term of a state is negative, so errors of terms add up to at most theirs. Each step rounds a gate's sum with its bias, a
    coefficient of at least 1 / 64, and logarithms of at most 8, whose roundings are relative errors of what they stand for.
    """
    return (time + 1) * (64 + 8 * 8) * precision_of(precision).arithmetic_roundoff


def assert_oracle(kernel: Kernel, call: dict[str, Any], precision: str, time: int) -> None:
    """Results are those of `kernel.reference`, element by element; single steps those of the sequence."""
    y, state = kernel.reference(**call, all_states=True)
    found, states = kernel(**call, all_states=True)
    _, final = kernel(**call)
    _, expected = kernel.reference(**call)
    error, storage = relative_error(precision, time), precision_of(precision).storage_roundoff
    rtol = error + storage * (1 + error)
    np.testing.assert_allclose(found.astype(np.float64), y, rtol=4 * error + storage, atol=0)
    for name in kernel.interface.states:
        np.testing.assert_allclose(states[name].astype(np.float64), state[name], rtol=rtol, atol=0)
        np.testing.assert_allclose(final[name].astype(np.float64), expected[name], rtol=error, atol=0)


def assert_gradients(kernel: Kernel, oracle: Kernel, call: dict[str, Any], precision: str, time: int, seed: int) -> None:
    """Gradients are those of NumPy in fp64, norm by norm."""
    random, named = np.random.default_rng(seed), precision_of(precision)
    y, final, saved = kernel.forward(**call)
    dy = random.uniform(-1, 1, y.shape).astype(y.dtype)
    dstate = {name: random.uniform(-1, 1, value.shape).astype(value.dtype) for name, value in final.items()}
    found = kernel.backward(saved, dy, dstate)
    with numpy_alone():
        wide = {name: widened(value) for name, value in call.items()}
        *_, saved = oracle.forward(**wide)
        expected = oracle.backward(saved, widened(dy), widened(dstate))
    # In 16 bits y, which is rounded, stands for the state.
    allowed = 8 * relative_error(precision, time) + (0 if precision in ("fp32", "fp64") else 8 * named.storage_roundoff)
    for name, value in expected.items():
        parts = value if isinstance(value, dict) else {"": value}
        for part, exact in parts.items():
            one = (found[name][part] if part else found[name]).astype(np.float64)
            assert one.shape == exact.shape
            assert np.linalg.norm(one - exact) <= allowed * np.linalg.norm(exact) + 1e-30, (name, part)


# A kernel takes the compiler a second, and serves every call: the others are compiled with the whole matrix.
KINDS = [
    ("min_gru_log", "fp32"),
    pytest.param("two_states", "fp32", marks=pytest.mark.matrix_full),
    ("two_states", "bf16"),
    *(pytest.param(cell, "fp64", marks=pytest.mark.matrix_full) for cell in CELLS),
    pytest.param("min_gru_log", "fp16", marks=pytest.mark.matrix_full),
]


@pytest.mark.parametrize(("cell", "precision"), KINDS)
@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.too_slow])
@given(given_options=options())
def test_every_call_is_the_oracles(cell: str, precision: str, given_options: Options) -> None:
    kernel = compiled(cell, precision, given_options.hidden, given_options.layout, given_options.direction)
    call = drawn_call(kernel, given_options)
    steps = given_options.time * (given_options.batch if given_options.sequences == "packed" else 1)
    assert_oracle(kernel, call, precision, steps)
    with numpy_alone():
        oracle = compiled_in_numpy(cell, given_options.hidden, given_options.layout, given_options.direction)
    assert_gradients(kernel, oracle, call, precision, steps, given_options.seed)


@functools.cache
def compiled_in_numpy(cell: str, hidden: int, layout: str, direction: str) -> Kernel:
    spec = {"model": CELLS[cell], "precision": "fp64", "hidden_size": hidden, "layout": layout, "direction": direction}
    kernel = minrnn_gen.compile({**spec, "scan_arithmetic": "log", "gpu": "h200"})
    assert kernel.executor.cpu.native.kernels.why_not
    return kernel


SHARES = ("sigmoid({})", "1 - sigmoid({})", "exp(-softplus({}))", "exp(0.25 * tanh({}))")
AMOUNTS = ("exp(tanh({}))", "softplus({})", "relu({}) + 0.25", "({}) ** 2 + 0.5", "sigmoid({})")


@st.composite
def log_cells(draw: st.DrawFn) -> dict[str, Any]:
    """Cells of one to three states, whose coefficients are never negative."""
    states = ["h", "c", "m"][: draw(st.integers(1, 3))]
    inputs = st.sampled_from(("W.a", "W.b", "W.a + p", "W.b - W.a", "p * W.b", "shared"))
    lines = ["shared = 0.5 * W.a + p * W.b"]
    for state in states:
        share, amount = (draw(st.sampled_from(forms)).format(draw(inputs)) for forms in (SHARES, AMOUNTS))
        form = draw(st.sampled_from(("{s}[t] = {a} * {s}[t-1] + {b}", "{s}[t] = {b} + ({a}) * {s}[t-1]", "{s}[t] = {b}")))
        lines.append(form.format(s=state, a=f"({share})", b=f"({amount})"))
    terms = [draw(st.sampled_from((f"{state}[t]", f"({state}[t] + 0.5 * {state}[t-1])"))) for state in states]
    output = " + ".join(terms) if draw(st.booleans()) or len(states) > 1 else f"{states[0]}[t]"
    # What nothing reads is refused.
    output += " + 0.25 * exp(tanh(shared)) + 0.25 * sigmoid(W.a)"
    arrays = {"gates": ["a", "b"], "states": states, "parameters": ["p"]}
    return {"name": "drawn", **arrays, "equations": "\n".join(lines), "output": output}


@pytest.mark.matrix_full
@settings(max_examples=examples(3), suppress_health_check=[HealthCheck.too_slow])
@given(model=log_cells(), precision=st.sampled_from(("fp32", "fp64", "bf16", "fp16")), given_options=options())
def test_every_cell_is_the_oracles(model: dict[str, Any], precision: str, given_options: Options) -> None:
    try:
        kernel = native_kernel(model, precision, given_options.hidden, given_options.layout, given_options.direction)
    except Infeasible:
        reject()  # too many operations for any kernel of a GPU
    call = drawn_call(kernel, given_options)
    steps = given_options.time * (given_options.batch if given_options.sequences == "packed" else 1)
    assert_oracle(kernel, call, precision, steps)


GROWING = {"name": "growing", "gates": ["a", "b"], "equations": "h[t] = exp(W.a) * h[t-1] + exp(W.b)"}


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp64", marks=pytest.mark.matrix_full)])
def test_states_of_all_sizes_neither_overflow_nor_vanish(precision: str) -> None:
    """From 1e-30 to 1e30, and on from where no number of the dtype is as large or as small: the logarithm is."""
    kernel, random = native_kernel(GROWING, precision, 40), np.random.default_rng(3)
    dtype = numpy_dtype_of(precision)
    largest = 0.98 * math.log(np.finfo(dtype).max)
    steps = random.uniform(-0.9, 0.9, (2, 40, 40)) * largest
    x = np.stack([steps, np.full_like(steps, -np.inf)], axis=2).astype(dtype)
    y, _ = kernel(x, state={"h": np.ones((2, 40), dtype)})
    exact = np.cumsum(x[:, :, 0].astype(np.float64), axis=1)
    is_number = abs(exact) < largest
    returns = is_number & ~np.logical_and.accumulate(is_number, axis=1)
    assert returns.any(axis=1).mean() > 0.5, "states are numbers again"
    # Each step rounds a logarithm of at most so much.
    allowed = 40 * 2 * abs(exact).max() * precision_of(precision).arithmetic_roundoff
    np.testing.assert_allclose(np.log(y[is_number].astype(np.float64)), exact[is_number], rtol=0, atol=allowed)
    assert np.isinf(y[exact > 1.03 * largest]).all() and (y[exact < -1.2 * largest] == 0).all()


def test_gradients_of_states_of_all_sizes() -> None:
    """The logarithms of the states after nine steps sum to a derivative of nine by the first exponent, whatever their size."""
    kernel, random = native_kernel(GROWING, "fp32", 40), np.random.default_rng(5)
    start = np.exp(random.uniform(-1, 1, (2, 40)) * math.log(1e30)).astype(np.float32)
    x = np.stack([random.uniform(-0.5, 0.5, (2, 9, 40)), np.full((2, 9, 40), -np.inf)], axis=2).astype(np.float32)
    y, _, saved = kernel.forward(x, state={"h": start})
    gradients = kernel.backward(saved, 1 / y)
    expected = np.arange(9, 0, -1)[:, None]
    np.testing.assert_allclose(gradients["x"][:, :, 0], np.broadcast_to(expected, (2, 9, 40)), rtol=1e-3)
    np.testing.assert_allclose(gradients["state"]["h"] * start, 9, rtol=1e-3)


def numpy_dtype_of(precision: str) -> Any:
    return numpy_dtype(precision_of(precision).arithmetic_dtype)


def test_zeros_idle_steps_and_what_is_no_number_stay_where_they_are() -> None:
    """log(0) is -infinity and computes as 0; a state that nothing changes keeps its bits, and a reset ends NaN."""
    cell = {"name": "coefficients", "gates": ["a", "b"], "equations": "h[t] = relu(W.a) * h[t-1] + relu(W.b)"}
    kernel, random = native_kernel(cell, "fp32", 37), np.random.default_rng(4)
    start = random.uniform(0, 3, (2, 37)).astype(np.float32)
    start[:, 3], start[:, 5] = 0, -1
    x = np.zeros((2, 20, 2, 37), np.float32)
    x[:, :, 0] = 1
    x[:, 7, 0, 11], x[:, 7, 0, 12] = np.nan, 0
    resets = np.zeros((2, 20), bool)
    resets[:, 15] = True
    y, _ = kernel(x, state={"h": start}, resets=resets)
    others = np.delete(np.arange(37), [5, 11, 12])
    np.testing.assert_array_equal(y[:, :15, others], np.broadcast_to(start[:, None, others], (2, 15, len(others))))
    assert np.isnan(y[:, :15, 5]).all(), "a negative state has no logarithm"
    assert np.isnan(y[:, 7:15, 11]).all() and (y[:, 7:15, 12] == 0).all()
    assert (y[:, 15:] == 0).all()


@pytest.mark.parametrize("cell", CELLS)
def test_a_sequence_may_be_cut_anywhere(cell: str) -> None:
    kernel = compiled(cell, "fp32" if cell == "min_gru_log" else "bf16", 33)
    given = Options("BTD", "forward", 33, 3, 9, "", True, 5)
    call = drawn_call(kernel, given)
    whole, states = kernel(**call, all_states=True)
    x, state = call.pop("x"), call.pop("state")
    error, storage = relative_error("fp32", given.time), kernel.interface.precision.storage_roundoff
    for time in range(given.time):
        y, state = kernel.step(x[:, time], **call, state=state)
        np.testing.assert_allclose(y.astype(float), whole[:, time].astype(float), rtol=8 * error + 2 * storage)
        for name, value in state.items():
            np.testing.assert_allclose(value, states[name][:, time], rtol=2 * error)
