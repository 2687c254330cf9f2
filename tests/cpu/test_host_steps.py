"""Cells that are no scan, on the host: precisions, single steps, empty calls, and what is particular to their gradients."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from support.sequence_cases import DENSE_MODELS, assert_same, cell_named
from support.uncompiled_kernels import compiled_for_host, host_kernel

from minrnn_gen import BadInput
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.precision import PRECISION_NAMES, precision_of

MODELS = (*DENSE_MODELS, "ind_rnn")
BATCH, TIME, HIDDEN = 3, 20, 8
# A step rounds a sum of HIDDEN products, and a few functions of 4 units in the last place each.
STEP_ROUNDINGS = HIDDEN + 24


def call_of(model: str, precision: str, time: int = TIME, batch: int = BATCH) -> dict[str, Any]:
    """Return a call with two heads, in which R shrinks what it multiplies: no error grows from step to step."""
    random, cell, named = np.random.default_rng(5), cell_named(model), precision_of(precision)
    storage, carried = numpy_dtype(named.storage_dtype), numpy_dtype(named.arithmetic_dtype)
    arguments: dict[str, Any] = {
        "x": random.normal(size=(batch, time, len(cell.gates), HIDDEN)).astype(storage),
        "parameters": {name: random.uniform(-1, 1, HIDDEN).astype(storage) for name in cell.parameters},
        "state": {name: random.uniform(0.5, 1, (batch, HIDDEN)).astype(carried) for name in cell.states},
    }
    if cell.recurrent_gates:
        shape = (len(cell.recurrent_gates), 2, HIDDEN // 2, HIDDEN // 2)
        arguments["R"] = (random.uniform(-1, 1, shape) / (HIDDEN // 2)).astype(storage)
    return arguments


def kernel_for(model: str, precision: str, **spec: Any) -> Any:
    heads = 2 if model in DENSE_MODELS else 1
    return host_kernel(model, HIDDEN, precision, heads=heads, **spec)


def widened(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: widened(one) for name, one in value.items()}
    return value.astype(np.float64)


def assert_near(found: Any, expected: Any, relative: float, steps: int, roundoff: float, what: str) -> None:
    """Within one rounding of each element, and as many of the largest element as the steps before may have made."""
    allowed = relative * abs(expected) + steps * STEP_ROUNDINGS * roundoff * max(1.0, abs(expected).max())
    worst = (abs(found.astype(np.float64) - expected) / allowed).max()
    assert worst <= 1, f"{what}: {worst} times what is allowed"


@pytest.mark.parametrize("precision", PRECISION_NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_every_precision_is_near_float64(model: str, precision: str) -> None:
    """Results and gradients, and those are of what the forward computed: y, rounded, takes no part in them."""
    named, call = precision_of(precision), call_of(model, precision)
    kernel, exact = kernel_for(model, precision), kernel_for(model, "fp64")
    y, state, saved = kernel.forward(**call)
    y_reference, state_reference = kernel.reference(**call)
    y_exact, state_exact, saved_exact = exact.forward(**widened(call))
    assert_same((y_reference, state_reference), (y_exact, state_exact))
    assert y.dtype == numpy_dtype(named.storage_dtype)
    assert_near(y, y_exact, named.storage_roundoff, TIME, named.arithmetic_roundoff, "y")
    dy = np.random.default_rng(6).normal(size=y.shape).astype(y.dtype)
    gradients, expected = kernel.backward(saved, dy), exact.backward(saved_exact, widened(dy))
    rows = 2 * TIME * BATCH  # there and back, and summed
    for name in set(gradients) - {"state", "parameters"}:
        assert gradients[name].dtype == call[name].dtype
        assert_near(gradients[name], expected[name], named.storage_roundoff, rows, named.arithmetic_roundoff, name)
    for name in kernel.parameters:
        one, other = gradients["parameters"][name], expected["parameters"][name]
        assert_near(one, other, named.storage_roundoff, rows, named.arithmetic_roundoff, name)
    for name in kernel.states:
        assert state[name].dtype == gradients["state"][name].dtype == numpy_dtype(named.arithmetic_dtype)
        assert_near(state[name], state_exact[name], 0, TIME, named.arithmetic_roundoff, name)
        one, other = gradients["state"][name], expected["state"][name]
        assert_near(one, other, 0, rows, named.arithmetic_roundoff, f"initial {name}")


@pytest.mark.parametrize("precision", PRECISION_NAMES)
@pytest.mark.parametrize("model", MODELS)
def test_a_step_is_a_call_of_one_step(model: str, precision: str) -> None:
    kernel, call = kernel_for(model, precision), call_of(model, precision)
    whole, final = kernel(**call)
    x, state = call.pop("x"), call.pop("state")
    for t in range(TIME):
        y, state = kernel.step(x[:, t], **call, state=state)
        assert_same(y, whole[:, t])
    assert_same(state, final)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("batch", "time"), [(0, 4), (3, 0), (0, 0)])
def test_empty_calls_have_empty_results(model: str, batch: int, time: int) -> None:
    kernel, call = kernel_for(model, "fp32"), call_of(model, "fp32", time, batch)
    y, state, saved = kernel.forward(**call)
    assert y.shape == (batch, time, HIDDEN)
    dstate = {name: 2 * one for name, one in state.items()}
    gradients = kernel.backward(saved, y, dstate)
    assert_same(gradients["state"], dstate)
    assert gradients["x"].shape == call["x"].shape
    if model in DENSE_MODELS:
        assert gradients["R"].shape == call["R"].shape and not gradients["R"].any()


@pytest.mark.parametrize("model", ["elman", "gru"])
def test_what_is_saved_is_used_any_number_of_times_by_its_own_kernel(model: str) -> None:
    kernel, call = kernel_for(model, "fp32"), call_of(model, "fp32")
    y, _, saved = kernel.forward(**call)
    assert_same(kernel.backward(saved, y), kernel.backward(saved, y))
    with pytest.raises(BadInput, match="another kernel"):
        kernel_for(model, "fp32", batch=7).backward(saved, y)
    saved.release()
    with pytest.raises(BadInput, match="released"):
        kernel.backward(saved, y)


def test_no_recurrent_bias_is_one_of_zeros() -> None:
    kernel, call = kernel_for("gru", "fp32"), call_of("gru", "fp32")
    zeros = np.zeros((3, 2, HIDDEN // 2), np.float32)
    assert_same(kernel(**call), kernel(**call, recurrent_bias=zeros))
    y, _, saved = kernel.forward(**call, recurrent_bias=zeros)
    assert "recurrent_bias" in kernel.backward(saved, y)


def test_a_clip_that_nothing_reaches_changes_nothing() -> None:
    call, results = call_of("lstm", "fp64"), []
    for clip in (None, 1e6):
        kernel = kernel_for("lstm", "fp64", recurrent_gradient_clip=clip)
        y, _, saved = kernel.forward(**call)
        results.append(kernel.backward(saved, np.ones_like(y)))
    assert_same(results[0], results[1])


@pytest.mark.parametrize("kind", ["lengths", "packed"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("model", ["gru", "slstm"])
def test_gradients_of_sequences_are_clipped_as_those_of_each_alone(model: str, direction: str, kind: str) -> None:
    """The last step of a sequence, where nothing is clipped, lies anywhere among the steps of others."""
    kernel = kernel_for(model, "fp64", recurrent_gradient_clip=0.05, direction=direction)
    lengths, call, random = np.array([7, 1, 12]), call_of(model, "fp64", 12), np.random.default_rng(2)
    x, state = call.pop("x"), call.pop("state")
    dy = random.normal(size=(BATCH, 12, HIDDEN))
    dstate = {name: random.normal(size=values.shape) for name, values in state.items()}
    parts = [slice(index, index + 1) for index in range(BATCH)]
    alone = []
    for part, length in zip(parts, lengths, strict=True):
        own_state = {name: values[part] for name, values in state.items()}
        _, _, saved = kernel.forward(x[part, :length], **call, state=own_state)
        own_dstate = {name: values[part] for name, values in dstate.items()}
        alone.append(kernel.backward(saved, dy[part, :length], own_dstate))
    if kind == "packed":
        ends = np.concatenate([[0], np.cumsum(lengths)])
        x, dy = (np.concatenate([rows[row, :length] for row, length in enumerate(lengths)])[None] for rows in (x, dy))
        _, _, saved = kernel.forward(x, **call, state=state, cu_seqlens=ends)
        rows = [(0, slice(begin, end)) for begin, end in pairwise(ends)]
    else:
        _, _, saved = kernel.forward(x, **call, state=state, lengths=lengths)
        rows = [(row, slice(length)) for row, length in enumerate(lengths)]
    gradients = kernel.backward(saved, dy, dstate)
    for index, (own, row) in enumerate(zip(alone, rows, strict=True)):
        np.testing.assert_allclose(gradients["x"][row], own["x"][0], rtol=0, atol=1e-13)
        for name in kernel.states:
            np.testing.assert_allclose(gradients["state"][name][index], own["state"][name][0], rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("equations", "gradient"),
    [
        ("h[t] = tanh(W.h) * where(c[t-1] > 0, 1, 2)\nc[t] = 3", True),
        ("h[t] = detach(tanh(W.h) * where(c[t-1] > 0, 1, 2))\nc[t] = 3", False),
    ],
)
def test_a_state_that_nothing_reaches(equations: str, gradient: bool) -> None:
    """Results of a program may have fewer axes than its step, as may a gradient that is 0 everywhere."""
    kernel = compiled_for_host({"model": {"name": "odd", "equations": equations}, "hidden_size": HIDDEN, "precision": "fp64"})
    x = np.random.default_rng(0).normal(size=(BATCH, TIME, 1, HIDDEN))
    y, state, saved = kernel.forward(x)
    expected = np.tanh(x[:, :, 0]) * np.where(np.arange(TIME) > 0, 1, 2)[:, None]
    np.testing.assert_allclose(y, expected, rtol=1e-15)
    assert_same(state, {"h": y[:, -1], "c": np.full((BATCH, HIDDEN), 3.0)})
    gradients = kernel.backward(saved, np.ones_like(y))
    assert gradients["x"].any() == gradient
    assert_same(gradients["state"], {name: np.zeros((BATCH, HIDDEN)) for name in ("h", "c")})
