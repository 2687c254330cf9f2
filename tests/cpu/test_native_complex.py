"""Kernels over complex numbers in native code: results beside the oracle's recurrence, and gradients in torch's convention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.native_store import native_store

from minrnn_gen.build.cpu_kernel import why_no_native_code
from minrnn_gen.build.store import Store, cache_folder
from minrnn_gen.cell import expressions as ex
from minrnn_gen.cell.functions import Exp
from minrnn_gen.cell.printing import complex_c_text
from minrnn_gen.interpret.builder import EmulatedBuilder
from minrnn_gen.kernel import Kernel
from minrnn_gen.raw_scan.kernels import RawSpec
from minrnn_gen.run.target import target_of

RAW = {"name": "raw", "equations": "h[t] = W.a * h[t-1] + W.b", "gates": ["a", "b"]}


@pytest.fixture(scope="module", autouse=True)
def native_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with native_store(tmp_path_factory, MINRNN_CPU="native"):
        if reason := why_no_native_code():
            pytest.skip(reason)
        yield


def kernel_of(precision: Any, hidden: int, layout: Any, direction: Any) -> Kernel:
    spec = RawSpec(model=RAW, hidden_size=hidden, precision=precision, layout=layout, direction=direction, gpu="h200")
    builder = EmulatedBuilder(spec, target_of(spec), Store(cache_folder()))
    kernel = Kernel(builder, (builder.build(builder.key_of("forward", builder.hinted_specialization)),))
    assert kernel.executor.cpu.native.kernels.why_not == ""
    return kernel


def drawn(random: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    return (random.uniform(-0.7, 0.7, shape) + 1j * random.uniform(-0.7, 0.7, shape)).astype(dtype)


def inner(one: Any, other: Any) -> float:
    """The change that a step `other` makes in a loss whose gradient is `one`, in torch's convention."""
    return float(np.sum(np.conjugate(one) * other).real)


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.too_slow])
@given(
    precision=st.sampled_from(("complex64", "complex128")),
    layout=st.sampled_from(("BTD", "TBD", "BDT")),
    direction=st.sampled_from(("forward", "reverse")),
    hidden=st.sampled_from((1, 5, 33)),
    sequences=st.sampled_from(("", "lengths", "resets")),
    seed=st.integers(0, 2**32 - 1),
)
def test_results_and_gradients(precision: str, layout: str, direction: str, hidden: int, sequences: str, seed: int) -> None:
    """Results of each sequence equal a loop's; gradients equal changes of a loss, by the derivatives of a scan."""
    random, batch, time = np.random.default_rng(seed), 3, 8
    kernel, dtype = kernel_of(precision, hidden, layout, direction), np.dtype(precision)
    x = drawn(random, kernel.interface.shape(kernel.interface.x_axes, batch, time), dtype)
    h0, bias = drawn(random, (batch, hidden), dtype), drawn(random, (2, hidden), dtype)
    marks: dict[str, Any] = {}
    lengths, resets = np.full(batch, time), np.zeros((batch, time), bool)
    if sequences == "lengths":
        marks["lengths"] = lengths = random.integers(0, time + 1, batch)
    if sequences == "resets":
        marks["resets"] = resets = random.random((batch, time)) < 0.3
    to_btgh = [kernel.interface.x_axes.index(axis) for axis in "btgh"]
    y_axes = {"BTD": "bth", "TBD": "tbh", "BDT": "bht"}[layout]
    to_bth = [y_axes.index(axis) for axis in "bth"]

    def walked(x: Any, bias: Any, h0: Any) -> tuple[Any, Any]:
        a, b = np.moveaxis(x.transpose(to_btgh).astype(complex) + bias, 2, 0)
        y, final = np.zeros((batch, time, hidden), complex), h0.astype(complex)
        for row in range(batch):
            steps = range(lengths[row])
            for t in reversed(steps) if direction == "reverse" else steps:
                final[row] = a[row, t] * (0 if resets[row, t] else final[row]) + b[row, t]
                y[row, t] = final[row]
        return y, final

    y, state, saved = kernel.forward(x, bias=bias, state={"h": h0}, **marks)
    exact, final = walked(x, bias, h0)
    roundoff = kernel.interface.precision.arithmetic_roundoff
    allowed = 64 * time * roundoff * (1 + abs(exact).max())
    assert abs(y.transpose(to_bth) - exact).max() <= allowed and abs(state["h"] - final).max() <= allowed
    dy, dfinal = drawn(random, y.shape, dtype), drawn(random, h0.shape, dtype)
    gradients = kernel.backward(saved, dy, {"h": dfinal})
    steps = [drawn(random, array.shape, complex) for array in (x, bias, h0)]
    # Central differences of a polynomial: what remains is of the third order.
    size = 1e-5
    moved = [[array + sign * size * step for array, step in zip((x, bias, h0), steps, strict=True)] for sign in (1, -1)]
    (y_more, final_more), (y_less, final_less) = (walked(*arrays) for arrays in moved)
    expected = (inner(dy.transpose(to_bth), y_more - y_less) + inner(dfinal, final_more - final_less)) / (2 * size)
    found = [gradients["x"], gradients["bias"], gradients["state"]["h"]]
    change = sum(inner(one, step) for one, step in zip(found, steps, strict=True))
    scale = sum(float(np.sum(abs(one) * abs(step))) for one, step in zip(found, steps, strict=True))
    assert abs(change - expected) <= (256 * time * roundoff + 1e-7) * (1 + scale)


def test_steps_are_those_of_the_sequence() -> None:
    kernel, random = kernel_of("complex128", 5, "BTD", "forward"), np.random.default_rng(0)
    x = drawn(random, (3, 7, 2, 5), np.complex128)
    y, final = kernel(x)
    state = None
    for time in range(7):
        y_t, state = kernel.step(x[:, time], state=state)
        np.testing.assert_array_equal(y_t, y[:, time])
    assert state is not None
    np.testing.assert_array_equal(state["h"], final["h"])


def test_what_is_no_sum_and_no_product_has_no_complex_text() -> None:
    a, b = ex.named("a"), ex.named("b")
    assert complex_c_text(ex.add(ex.multiply(a, b), a), ["a"]) == (
        "fn_times(fn_conjugate(cell_a), cell_b) + fn_conjugate(cell_a)"
    )
    for expression in (Exp(a), ex.divide(a, b), ex.multiply(ex.add(ex.ONE, ex.ONE), a)):
        with pytest.raises(ValueError, match="no sum and no product of complex numbers"):
            complex_c_text(expression)
