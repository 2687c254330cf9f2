"""Cells with n values per channel on the CPU target: results and gradients beside autograd of the equations by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.needed import needed
from support.uncompiled_kernels import host_kernel, nothing_compiled

import minrnn_gen
from minrnn_gen.errors import BadInput

torch = pytest.importorskip("torch")
vector_cells = needed("support.vector_cells")
CELLS, drawn, looped = vector_cells.CELLS, vector_cells.drawn, vector_cells.looped

TOLERANCE = 1e-9


def planned(spec: dict[str, Any]) -> minrnn_gen.Kernel:
    with nothing_compiled():
        return minrnn_gen.compile(spec)


def kernel_of(name: str, **keys: Any) -> minrnn_gen.Kernel:
    sizes = {"hidden_size": 4, "state_size": 3} | keys
    if "groups" in sizes and "shared" not in CELLS[name].file:
        del sizes["groups"]
    return planned(CELLS[name].spec(**sizes))


def assert_like_the_loop(name: str, kernel: Any, rows: int, time: int, **sequences: Any) -> None:
    ends = sequences.get("cu_seqlens")
    arrays = drawn(kernel, rows, time, None if ends is None else len(ends) - 1)
    recorded = arrays.torch()
    expected, last = looped(CELLS[name], kernel, recorded, **sequences)
    y, final, saved = kernel.forward(
        arrays.x, parameters=arrays.parameters, shared=arrays.shared or None, state=arrays.state, **sequences
    )
    random = np.random.default_rng(1)
    dy, dstate = random.normal(size=y.shape), {state: random.normal(size=value.shape) for state, value in final.items()}
    np.testing.assert_allclose(y, expected.detach(), rtol=TOLERANCE, atol=TOLERANCE)
    for state, value in final.items():
        np.testing.assert_allclose(value, last[state].detach(), rtol=TOLERANCE, atol=TOLERANCE, err_msg=state)
    loss = (expected * torch.tensor(dy)).sum() + sum((last[state] * torch.tensor(dstate[state])).sum() for state in last)
    gradients = torch.autograd.grad(loss, recorded.leaves(), allow_unused=True)
    found = kernel.backward(saved, dy, dstate)
    of_each = [found["x"], *found["parameters"].values(), *found.get("shared", {}).values(), *found["state"].values()]
    labels = ["x", *kernel.parameters, *kernel.interface.shared, *kernel.states]
    for label, one, other in zip(labels, of_each, gradients, strict=True):
        other = np.zeros(one.shape) if other is None else other
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, err_msg=label)


@given(
    name=st.sampled_from(sorted(CELLS)),
    n=st.integers(1, 5),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2), (6, 3)]),
    rows=st.integers(1, 3),
    time=st.integers(0, 6),
    reverse=st.booleans(),
    data=st.data(),
)
def test_gradients_are_those_of_autograd(
    name: str, n: int, heads: tuple[int, int], rows: int, time: int, reverse: bool, data: Any
) -> None:
    """Every cell, for any n, channels, groups, batch and time, none and one among them, in either direction."""
    hidden, groups = heads
    kernel = kernel_of(name, hidden_size=hidden, state_size=n, groups=groups, direction="reverse" if reverse else "forward")
    sequences: dict[str, Any] = {}
    if data.draw(st.booleans()):
        sequences["resets"] = np.array(data.draw(st.lists(st.booleans(), min_size=rows * time, max_size=rows * time)))
        sequences["resets"] = sequences["resets"].reshape(rows, time).astype(bool)
    if data.draw(st.booleans()):
        sequences["lengths"] = data.draw(st.lists(st.integers(0, time), min_size=rows, max_size=rows))
    assert_like_the_loop(name, kernel, rows, time, **sequences)


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("name", CELLS)
def test_packed_sequences_are_each_its_own(name: str, direction: str) -> None:
    kernel = kernel_of(name, groups=2, direction=direction)
    resets = np.zeros((1, 9), bool)
    resets[0, 6] = True
    assert_like_the_loop(name, kernel, 1, 9, cu_seqlens=[0, 4, 4, 5, 9], resets=resets)


@pytest.mark.parametrize("layout", ["TBD", "BDT"])
@pytest.mark.parametrize("name", CELLS)
def test_layouts_are_the_same_numbers_at_other_places(name: str, layout: str) -> None:
    plain, other = kernel_of(name, groups=2), kernel_of(name, groups=2, layout=layout)
    arrays = drawn(plain, 2, 5)
    ways = {
        "TBD": {"x": "tbgh", "y": "tbh", "s": "tbkn", "a": "tbhn"},
        "BDT": {"x": "bght", "y": "bht", "s": "bknt", "a": "bhnt"},
    }

    def moved(array: Any, kind: str) -> Any:
        source, target = {"x": "btgh", "y": "bth", "s": "btkn", "a": "bthn"}[kind], ways[layout][kind]
        return np.ascontiguousarray(array.transpose([source.index(axis) for axis in target]))

    shared = {key: moved(value, "s") for key, value in arrays.shared.items()} or None
    same = {"parameters": arrays.parameters, "state": arrays.state}
    y, states, saved = plain.forward(arrays.x, shared=arrays.shared or None, all_states=True, **same)
    found, found_states, found_saved = other.forward(moved(arrays.x, "x"), shared=shared, all_states=True, **same)
    np.testing.assert_array_equal(found, moved(y, "y"))
    for state, values in states.items():
        kind = "a" if state in plain.interface.vector_states else "y"
        np.testing.assert_array_equal(found_states[state], moved(values, kind))
    expected, gradients = plain.backward(saved, y), other.backward(found_saved, found)
    np.testing.assert_array_equal(gradients["x"], moved(expected["x"], "x"))
    for key, values in expected.get("shared", {}).items():
        np.testing.assert_array_equal(gradients["shared"][key], moved(values, "s"))


@pytest.mark.parametrize("name", CELLS)
def test_both_directions_are_two_runs(name: str) -> None:
    both = kernel_of(name, groups=2, direction="bidirectional")
    arrays = drawn(both, 2, 5)
    y, final, saved = both.forward(arrays.x, parameters=arrays.parameters, shared=arrays.shared or None, state=arrays.state)
    gradients = both.backward(saved, y)
    for run, direction in enumerate(("forward", "reverse")):
        one = kernel_of(name, groups=2, direction=direction)
        of_run = {
            "parameters": {key: value[run] for key, value in arrays.parameters.items()},
            "shared": {key: np.ascontiguousarray(value[:, :, run]) for key, value in arrays.shared.items()} or None,
            "state": {key: value[run] for key, value in arrays.state.items()},
        }
        expected, last, kept = one.forward(np.ascontiguousarray(arrays.x[:, :, run]), **of_run)
        part = y[..., run * 4 : run * 4 + 4]
        np.testing.assert_array_equal(part, expected)
        found = one.backward(kept, np.ascontiguousarray(part))
        np.testing.assert_array_equal(gradients["x"][:, :, run], found["x"])
        for key, value in last.items():
            np.testing.assert_array_equal(final[key][run], value)
            np.testing.assert_array_equal(gradients["state"][key][run], found["state"][key])
        for key, value in found.get("shared", {}).items():
            np.testing.assert_array_equal(gradients["shared"][key][:, :, run], value)
        for key, value in found["parameters"].items():
            np.testing.assert_allclose(gradients["parameters"][key][run], value, rtol=1e-12)


@pytest.mark.parametrize("name", CELLS)
def test_steps_are_the_call(name: str) -> None:
    kernel = kernel_of(name, groups=2)
    arrays = drawn(kernel, 2, 4)
    y, final = kernel(arrays.x, parameters=arrays.parameters, shared=arrays.shared or None, state=arrays.state)
    state = arrays.state
    for t in range(4):
        at_t = {key: value[:, t] for key, value in arrays.shared.items()} or None
        y_t, state = kernel.step(arrays.x[:, t], parameters=arrays.parameters, shared=at_t, state=state)
        np.testing.assert_allclose(y_t, y[:, t], rtol=1e-12, atol=1e-12)
    for key, value in final.items():
        np.testing.assert_allclose(state[key], value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_states_are_carried_in_the_arithmetic_whatever_the_storage(precision: str) -> None:
    kernel = kernel_of("selective", precision=precision)
    arrays = drawn(kernel, 2, 6)
    storage = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    x, shared = torch.tensor(arrays.x).to(storage), {key: torch.tensor(one).to(storage) for key, one in arrays.shared.items()}
    parameters = {key: torch.tensor(one).float() for key, one in arrays.parameters.items()}
    y, final, saved = kernel.forward(x, parameters=parameters, shared=shared)
    exact, last = kernel.reference(x, parameters=parameters, shared=shared)
    assert y.dtype is storage and final["h"].dtype is torch.float32
    gradients = kernel.backward(saved, y)
    assert gradients["shared"]["b"].dtype is storage and gradients["parameters"]["a"].shape == (4, 3)
    np.testing.assert_allclose(final["h"], last["h"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y.double(), exact, rtol=2e-2, atol=2e-2)


def test_a_projection_makes_the_gates_and_no_shared_input() -> None:
    kernel, plain = kernel_of("selective", input_size=5, groups=2), kernel_of("selective", groups=2)
    arrays = drawn(plain, 2, 4)
    x, weight = np.random.default_rng(2).normal(size=(2, 4, 5)), np.random.default_rng(3).normal(size=(12, 5))
    named = {"parameters": arrays.parameters, "shared": arrays.shared, "bias": np.linspace(-1, 1, 12)}
    y, _, saved = kernel.forward(x, weight=weight, **named)
    gates = (x @ weight.T).reshape(2, 4, 3, 4)
    expected, _, kept = plain.forward(gates, **named)
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    found, of_plain = kernel.backward(saved, y), plain.backward(kept, y)
    np.testing.assert_allclose(found["weight"], np.einsum("btr,bti->ri", of_plain["x"].reshape(2, 4, 12), x), rtol=1e-10)
    np.testing.assert_allclose(found["bias"], of_plain["bias"].reshape(12), rtol=1e-10)


WRONG = [
    ({"shared": None}, "shared lacks 'b'"),
    ({"shared": {"b": np.zeros((2, 5, 1, 3))}}, "shared lacks 'c'"),
    ({"shared": {"b": np.zeros((2, 5, 1, 2)), "c": np.zeros((2, 5, 1, 3))}}, "shared['b'] has shape [2, 5, 1, 2]"),
    ({"shared": {"b": np.zeros((2, 5, 3)), "c": np.zeros((2, 5, 1, 3))}}, "[2, 5, 1, 3] is expected"),
    ({"parameters": {"a": np.zeros(4), "d": np.zeros(4)}}, "parameters['a'] has shape [4]; [4, 3] is expected"),
    ({"parameters": {"a": np.zeros((4, 3)), "d": np.zeros((4, 3))}}, "parameters['d'] has shape [4, 3]; [4] is expected"),
    ({"state": {"h": np.zeros((2, 4))}}, "state['h'] has shape [2, 4]; [2, 4, 3] is expected"),
    ({"shared": {"b": np.zeros((2, 5, 1, 3)), "c": np.zeros((2, 5, 1, 3)), "q": None}}, "shared has an unknown name 'q'"),
]


@pytest.mark.parametrize(("changed", "fragment"), WRONG)
def test_an_array_without_its_axis_is_one_sentence(changed: dict[str, Any], fragment: str) -> None:
    kernel = kernel_of("selective")
    arrays = drawn(kernel, 2, 5)
    named = {"parameters": arrays.parameters, "shared": arrays.shared, "state": arrays.state} | changed
    with pytest.raises(BadInput) as caught:
        kernel(arrays.x, **named)
    assert fragment in str(caught.value) and "\n" not in str(caught.value)


def test_a_cell_without_the_axis_takes_no_shared_input() -> None:
    kernel = host_kernel("min_gru", 4, "fp32")
    with pytest.raises(BadInput, match="shared has an unknown name 'b'; this cell has no shared"):
        kernel(np.zeros((1, 2, 2, 4), np.float32), shared={"b": np.zeros((1, 2, 1, 3), np.float32)})


@pytest.mark.parametrize(
    ("model", "keys", "fragment"),
    [
        ("selective", {}, "state_size: the cell selective has n values per channel; give n"),
        ("min_gru", {"state_size": 4}, "state_size: 4 is given, but nothing of the cell min_gru has the axis n"),
        ("min_gru", {"groups": 2}, "groups: 2 is given, but nothing of the cell min_gru has the axis n"),
        ("s4d", {"state_size": 4, "groups": 2}, "groups: 2 is given, but the cell s4d has no inputs S.*"),
        ("selective", {"state_size": 4, "groups": 3}, "groups: 3 does not divide hidden_size 4"),
        ("selective", {"state_size": 257}, "state_size: 257 is given; allowed: an integer from 1 to 256"),
    ],
)
def test_sizes_that_do_not_fit_the_cell_are_one_sentence(model: str, keys: dict[str, Any], fragment: str) -> None:
    with pytest.raises(BadInput) as caught:
        minrnn_gen.compile({"model": model, "hidden_size": 4, "gpu": "h200"} | keys)
    assert fragment in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "is_compiled"),
    [
        *(("selective", True), ("scalar and vector states", False)),
        *(
            pytest.param(*way, marks=pytest.mark.matrix_full)
            for way in (("selective", False), ("scalar and vector states", True))
        ),
    ],
)
def test_autograd_of_torch_knows_them(name: str, is_compiled: bool) -> None:
    """`recurrence`, as it is and traced, beside the loop over time."""
    wing = needed("minrnn_gen.torch")
    kernel = kernel_of(name, groups=2)
    given_tensors = drawn(kernel, 2, 5).torch()

    def run(x: Any, parameters: Any, shared: Any, state: Any) -> Any:
        return wing.recurrence(kernel, x, parameters=parameters, shared=shared, state=state)

    run = torch.compile(run, backend="aot_eager", fullgraph=True) if is_compiled else run
    y, final = run(given_tensors.x, given_tensors.parameters, given_tensors.shared, given_tensors.state)
    expected, last = looped(CELLS[name], kernel, given_tensors)
    pairs = ((y, final), (expected, last))
    losses = [result.sin().sum() + sum(value.cos().sum() for value in states.values()) for result, states in pairs]
    found, wanted = (torch.autograd.grad(loss, given_tensors.leaves(), allow_unused=True) for loss in losses)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, torch.zeros_like(one) if other is None else other)
