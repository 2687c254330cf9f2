"""Native code for cells with n values per channel: every cell, call and storage beside float64, on any threads."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.drawn_vectors import compare, vector_cells
from support.everyday import one_in
from support.examples import examples
from support.native_store import native_store
from support.needed import needed
from support.vector_calls import VectorCall, results_of

import minrnn_gen
from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.codegen.cpu_vectors import CHUNK_STEPS
from minrnn_gen.errors import CompileFailed
from minrnn_gen.kernel import Kernel
from minrnn_gen.precision import PRECISION_NAMES
from minrnn_gen.run.cpu import native
from minrnn_gen.run.cpu.native_run import PIECE_BYTES

BUILT_IN = ("selective", "gated_linear", "s4d")
# Of every kind of state, sum and choice; none is a scan but the third.
OTHERS: Mapping[str, Any] = {
    "two kinds of states": {
        "states": {"g": 1, "h": "n"},
        "shared": ["b"],
        "parameters": {"u": "n", "v": 1},
        "equations": "k = sigmoid(W.f + g[t-1])\ng[t] = k * g[t-1] + (1 - k) * W.x\nh[t] = k * h[t-1] + W.x * S.b + u",
        "output": "sum(h[t] * S.b * h[t-1]) * g[t] + g[t-1] * v",
    },
    "delta rule": {
        "states": {"h": "n"},
        "shared": ["k", "q"],
        "parameters": {"keep": "n"},
        "equations": "e = W.v - sum(S.k * h[t-1])\nh[t] = sigmoid(keep) * h[t-1] + sigmoid(W.rate) * e * S.k",
        "output": "sum(S.q * h[t])",
    },
    "shares": {
        "states": {"h": "n"},
        "parameters": {"a": "n", "d": 1},
        "equations": "e = exp(W.x * a)\nshare = e / sum(e)\nh[t] = exp(logsigmoid(W.f)) * h[t-1] + share * (W.x + a)",
        "output": "sum((W.x + a) * h[t]) + sum(W.x + a) * d - sum(W.f + a) * W.x",
    },
    "chosen": {
        "states": {"h": "n"},
        "shared": ["b"],
        "parameters": {"u": "n"},
        "equations": (
            # No tanh: a product of its derivatives, 1 - tanh^2 of large states, has a relative error of its own in any order.
            "keep = where(S.b > 0, sigmoid(u), sigmoid(W.f))\nh[t] = keep * atan(h[t-1]) + relu(S.b * W.x) + abs(W.x)\n"
            "y = sum(max(h[t], u)) / (1 + sum(abs(S.b)))"
        ),
        "output": "where(W.x > 0, y, log(abs(W.f)) * W.x)",
    },
}

pytestmark = pytest.mark.skipif(bool(why_no_native_code()), reason=f"no native code: {why_no_native_code()}")


@pytest.fixture(scope="module", autouse=True)
def native_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with native_store(tmp_path_factory):
        yield


def kernel_of(cpu: str, model: Any, **keys: Any) -> Kernel:
    """Return a kernel whose host arrays run native code, or NumPy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRNN_CPU", cpu)
        named = {"name": "written", **model} if isinstance(model, Mapping) else model
        kernel = minrnn_gen.compile({"model": named, "hidden_size": 6, "state_size": 5, "gpu": "h200", **keys})
        kernels = kernel.executor.cpu.native.kernels
        if cpu == "native":
            assert kernels.why_not == ""
            assert kernels.backward is not None
        else:
            assert "numpy" in kernels.why_not
        return kernel


def check(model: Any, call: VectorCall, all_states: bool = False, **keys: Any) -> None:
    """Hold native code to NumPy in float64."""
    with np.errstate(all="ignore"):
        exact = kernel_of("numpy", model, **{**keys, "precision": "fp64"})
        found = kernel_of("native", model, **keys)
        compare(found, exact, call.arguments(found.interface), f"{model}, {keys}", all_states, gradients_cancel=True)


@st.composite
def calls(draw: st.DrawFn) -> tuple[dict[str, Any], VectorCall]:
    """Keys of a spec, and a call of it: within a chunk of time, of one and of several; packed, or with lengths and resets."""
    groups, of_group = draw(st.sampled_from(((1, 1), (1, 9), (2, 20), (3, 2), (1, 33))))
    keys = {
        "hidden_size": groups * of_group,
        "groups": groups,
        "state_size": draw(st.sampled_from((1, 3, 8, 17))),
        "layout": draw(st.sampled_from(("BTD", "TBD", "BDT"))),
        "direction": draw(st.sampled_from(("forward", "reverse", "bidirectional"))),
    }
    time = draw(st.sampled_from((0, 1, 5, CHUNK_STEPS, 2 * CHUNK_STEPS + 3)))
    flags = {name: draw(st.booleans()) for name in ("has_resets", "has_state", "has_bias")}
    if keys["layout"] == "BTD" and draw(st.booleans()):
        cuts = sorted(draw(st.lists(st.integers(0, time), max_size=3)))
        return keys, VectorCall(1, time, ends=(0, *cuts, time), **flags)
    return keys, VectorCall(draw(st.integers(1, 4)), time, has_lengths=draw(st.booleans()), **flags)


def fitting(model: Any, keys: dict[str, Any]) -> dict[str, Any]:
    """Return keys without groups for cells that have no inputs S.*."""
    has_shared = model != "s4d" and (isinstance(model, str) or "shared" in model)
    return keys if has_shared else {name: value for name, value in keys.items() if name != "groups"}


@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.too_slow])
@given(
    model=st.sampled_from(("selective", "gated_linear", *OTHERS)),
    of_call=calls(),
    threads=st.sampled_from((1, 3)),
    all_states=st.booleans(),
)
def test_native_code_computes_what_float64_does(
    model: str, of_call: tuple[dict[str, Any], VectorCall], threads: int, all_states: bool
) -> None:
    """Results, final states and every gradient, of any layout, direction, sizes and sequences."""
    keys, call = of_call
    cell = OTHERS.get(model, model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", str(threads))
        patch.delitem(sys.modules, "torch", raising=False)
        check(cell, call, all_states, precision="fp32", **fitting(cell, keys))


@pytest.mark.parametrize(
    ("model", "precision"),
    one_in(5, itertools.product(BUILT_IN, (name for name in PRECISION_NAMES if not name.startswith("complex")))),
)
def test_every_precision(model: str, precision: str) -> None:
    """With an input projection or without."""
    call = VectorCall(3, CHUNK_STEPS + 7, has_resets=True, has_lengths=True)
    check(model, call, precision=precision, hidden_size=34, **({} if model == "s4d" else {"groups": 2}))


@settings(max_examples=examples(2), suppress_health_check=[HealthCheck.too_slow])
@given(model=vector_cells(), of_call=calls(), precision=st.sampled_from(("fp32", "fp64", "bf16", "fp16")))
def test_drawn_cells(model: dict[str, Any], of_call: tuple[dict[str, Any], VectorCall], precision: str) -> None:
    """Sums over anything: states, inputs, parameters alone."""
    keys, call = of_call
    check(model, call, precision=precision, **keys)


@pytest.mark.parametrize("model", ["selective", OTHERS["two kinds of states"]], ids=str)
def test_steps_are_the_call(model: Any) -> None:
    kernel = kernel_of("native", model, hidden_size=20, groups=2, precision="fp32")
    given_arrays = VectorCall(3, 4).arguments(kernel.interface)
    y, final = kernel(**given_arrays)
    x, shared, state = (given_arrays.pop(name) for name in ("x", "shared", "state"))
    for time in range(4):
        at_time = {name: values[:, time] for name, values in shared.items()}
        found, state = kernel.step(x[:, time], shared=at_time, state=state, **given_arrays)
        np.testing.assert_array_equal(found, y[:, time])
    for name, values in final.items():
        np.testing.assert_array_equal(state[name], values)


def test_a_projection_makes_the_gates_and_no_shared_input() -> None:
    """In pieces of time, too, where nobody keeps pre-activations."""
    torch = pytest.importorskip("torch")
    wing = needed("minrnn_gen.torch")
    keys = {"hidden_size": 32, "groups": 2, "precision": "fp32"}
    projecting, plain = kernel_of("native", "selective", input_size=8, **keys), kernel_of("native", "selective", **keys)
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    rows, time = 8, 2 * PIECE_BYTES // (8 * 96 * 4) + 5  # more than two pieces
    x, weight = drawn(rows, time, 8), drawn(96, 8) / 3
    shared = {name: drawn(rows, time, 2, 5) for name in ("b", "c")}
    named = {"parameters": {"a": drawn(32, 5), "d": drawn(32)}, "shared": shared}
    gates = (x @ weight.t()).reshape(rows, time, 3, 32)
    with torch.no_grad():
        expected = wing.recurrence(plain, gates, **named, all_states=True)
        found = wing.recurrence(projecting, x, weight=weight, **named, all_states=True)
        in_pieces = wing.recurrence(projecting, x, weight=weight, **named)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found[2]["h"], expected[2]["h"], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(in_pieces[0], found[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(in_pieces[1]["h"], found[1]["h"], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 5])
def test_results_do_not_depend_on_chance(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits again, with threads that share channels and with threads that share rows; results, for any number."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    by_threads = {}
    for threads in (1, 2, 3):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        kernel = kernel_of("native", "selective", hidden_size=80, groups=2, precision="fp32")
        given_arrays = VectorCall(rows, 3 * CHUNK_STEPS, has_resets=True).arguments(kernel.interface)
        first, again = ({**results, **gradients} for results, gradients in (results_of(kernel, given_arrays) for _ in range(2)))
        for name, values in first.items():
            np.testing.assert_array_equal(values, again[name], err_msg=name)
        by_threads[threads] = first
    for threads in (2, 3):
        for name in ("y", "h", "x", "state h"):
            np.testing.assert_array_equal(by_threads[1][name], by_threads[threads][name], err_msg=name)


def test_what_a_compiler_refuses_of_a_backward_numpy_does_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways: NumPy's backward reads states that native code does not keep."""
    compiled = native.cpu_kernel

    def refusing(plan: Any, store: Any) -> Any:
        if plan.kernel_pass == "backward":
            raise CompileFailed("cc refuses the kernel")
        return compiled(plan, store)

    monkeypatch.setattr(native, "cpu_kernel", refusing)
    monkeypatch.setenv("MINRNN_CPU", "native")
    kernel = minrnn_gen.compile({"model": "selective", "hidden_size": 6, "state_size": 5, "gpu": "h200", "precision": "fp64"})
    exact = kernel_of("numpy", "selective", precision="fp64")
    assert kernel.executor.cpu.native.kernels.why_not == ""
    compare(kernel, exact, VectorCall(2, 5).arguments(exact.interface), "refused")


def test_powers_of_two_have_the_error_that_is_documented() -> None:
    """Over all exponents, to infinity, and NaN stays NaN."""
    cell = {
        "states": {"h": "n"},
        "parameters": {"a": "n"},
        "equations": "h[t] = exp(a * W.x) + 0 * h[t-1]",
        "output": "sum(h[t])",
    }
    kernel = kernel_of("native", cell, hidden_size=1, state_size=1, precision="fp32")
    x = np.concatenate([np.linspace(-152, 130, 200_001), [np.inf, -np.inf, np.nan, 0, 1e30, -1e30]]).astype(np.float32)
    # log2(e) ln 2 is 1 in float32: the exponents are x.
    y, _ = kernel(x.reshape(-1, 1, 1, 1), parameters={"a": np.full((1, 1), np.log(2), np.float32)})
    with np.errstate(all="ignore"):
        expected = np.exp2(x.astype(np.float64))
        rounded, found = expected.astype(np.float32), y.reshape(-1)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(rounded))
        is_finite = np.isfinite(rounded)
        errors = abs(found - expected)[is_finite] / np.spacing(rounded[is_finite]).astype(np.float64)
    assert errors.max() <= 1
