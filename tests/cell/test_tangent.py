"""The tangent of a cell as a cell: derivatives along tangents, and gradients of gradients, of every cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cell_evaluation import built_in
from support.input_cells import EVERY_CELL as OF_INPUTS
from support.norm_cells import EVERY_CELL as OF_NORMS
from support.projected_cells import OVER_ALL, TWO_ROUNDS, biases, matrices
from support.round_cells import EVERY_CELL as OF_ROUNDS
from support.uncompiled_kernels import compiled_for_host

import minrnn_gen
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.blocks import dual_blocks
from minrnn_gen.cell.files import find_cell, input_library_names, library_names, projected_library_names, vector_library_names
from minrnn_gen.cell.language import Cell, parse_cell
from minrnn_gen.cell.tangent import tangent_cell
from minrnn_gen.errors import BadInput

BATCH, TIME, HIDDEN = 2, 5, 4
Arrays = dict[str, Any]
Draw = Callable[[tuple[int, ...]], Any]
# With a tangent of R, three times the products that a cell may have.
MOST_PRODUCTS = {
    "name": "most_products",
    "equations": "r = sigmoid(W.g0 + R.g0)\nh[t] = tanh("
    + " + ".join(f"W.g{k} * R.g{k}(r * h[t-1])" for k in range(1, 16))
    + ")",
    "gates": [f"g{k}" for k in range(16)],
    "states": ["h"],
}
OF_AXES = {"state_size": 2, "groups": 2}
CELLS: dict[str, tuple[Any, dict[str, Any]]] = {
    **{name: (name, {}) for name in (*library_names(), *input_library_names())},
    **{name: (name, {"projection_size": 2}) for name in projected_library_names()},
    **{name: (name, OF_AXES if name != "s4d" else {"state_size": 2}) for name in vector_library_names()},
    **{cell["name"]: (cell, {}) for cell in (*OF_ROUNDS, *OF_NORMS, *OF_INPUTS, MOST_PRODUCTS)},
    **{cell["name"]: (cell, {"projection_size": 2}) for cell in (TWO_ROUNDS, OVER_ALL)},
}
OF_EVERY_DAY = ("gru", "selective", "biquad", "lif")


def host_kernel(model: Any, hidden_size: int, precision: str, **spec: Any) -> minrnn_gen.Kernel:
    return compiled_for_host({"model": model, "hidden_size": hidden_size, "precision": precision, **spec})


def kernel_of(name: str, **spec: Any) -> minrnn_gen.Kernel:
    model, keys = CELLS[name]
    return host_kernel(model, HIDDEN, "fp64", **keys, **spec)


def call_of(kernel: minrnn_gen.Kernel, draw: Draw) -> Arrays:
    """Return all arrays of a call that have gradients."""
    interface = kernel.interface
    arrays: Arrays = {"x": draw(interface.shape(interface.x_axes, BATCH, TIME)), "bias": draw((interface.weight_rows,))}
    if interface.input_size:
        arrays["weight"] = draw((interface.weight_rows, interface.input_size))
    if interface.recurrent_gates:
        arrays["R"] = matrices(interface, draw)
    if interface.takes_recurrent_bias:
        arrays["recurrent_bias"] = biases(interface, draw)
    arrays["parameters"] = {name: draw(interface.shape_of_parameter(name)) for name in interface.parameters}
    arrays["state"] = {name: draw(interface.shape_of_state(name, BATCH)) for name in interface.states}
    arrays["shared"] = {name: draw(interface.shape(interface.shared_axes, BATCH, TIME)) for name in interface.shared}
    arrays["inputs"] = {name: draw(interface.shape(interface.channel_axes, BATCH, TIME)) for name in interface.inputs}
    return {name: value for name, value in arrays.items() if not isinstance(value, dict) or value}


def dot(one: Any, other: Any) -> float:
    if isinstance(one, Mapping):
        return sum(dot(value, other[name]) for name, value in one.items())
    return float((one * other).sum())


def moved(arrays: Any, along: Any, step: float) -> Any:
    if isinstance(arrays, Mapping):
        return {name: moved(value, along[name], step) for name, value in arrays.items()}
    return arrays + step * along


def squares(value: Any) -> float:
    return dot(value, value)


@pytest.mark.parametrize(
    "name", [name if name in OF_EVERY_DAY else pytest.param(name, marks=pytest.mark.matrix_full) for name in CELLS]
)
@pytest.mark.parametrize("spec", [{}, pytest.param({"input_size": 3}, marks=pytest.mark.matrix_full)], ids=["gates", "input"])
def test_of_every_cell(name: str, spec: dict[str, Any]) -> None:
    """<tangent, dy> is <tangents, gradients>, and second gradients are differences of these along any direction."""
    generator = np.random.default_rng(1)
    kernel = kernel_of(name, **spec)
    arrays, tangents, along = (call_of(kernel, lambda shape: generator.standard_normal(shape) / 2) for _ in range(3))
    sequences = {"resets": generator.random((BATCH, TIME)) < 0.2, "lengths": np.array([TIME, 3])}
    y, final, saved = kernel.forward(**arrays, **sequences)
    (dy, dy_along), (dstate, states_along) = (
        [like(one, lambda shape: generator.standard_normal(shape)) for _ in range(2)] for one in (y, final)
    )
    moving, states_moving = kernel.tangent(saved, tangents)
    gradients = kernel.backward(saved, dy, dstate)
    expected = dot(tangents, gradients)
    assert abs(dot(moving, dy) + dot(states_moving, dstate) - expected) <= 1e-11 * (1 + abs(expected))
    second = kernel.second_backward(saved, dy, tangents, dstate)
    np.testing.assert_array_equal(second["dy"], moving)
    if not is_limit_of_differences(name):
        return

    def first(step: float) -> float:
        _, _, saved = kernel.forward(**moved(arrays, along, step), **sequences)
        return dot(tangents, kernel.backward(saved, dy + step * dy_along, moved(dstate, states_along, step)))

    step = 1e-5
    found = dot(along, second) + dot(dy_along, second["dy"]) + dot(states_along, second["dstate"])
    assert abs(found - (first(step) - first(-step)) / (2 * step)) <= 1e-6 * (1 + abs(found))


def is_limit_of_differences(name: str) -> bool:
    """Say whether the derivatives of a cell are those of its values, which surrogates and detached values have others than."""
    source = str(CELLS[name][0]) if isinstance(CELLS[name][0], dict) else built_in(name).equations
    return "surrogate(" not in source and "detach(" not in source


def like(value: Any, draw: Draw) -> Any:
    return {name: draw(one.shape) for name, one in value.items()} if isinstance(value, Mapping) else draw(value.shape)


def fill(shape: tuple[int, ...], first: float) -> Any:
    return np.sin(first + 0.7 * np.arange(np.prod(shape))).reshape(shape)


BIQUAD = {
    "name": "biquad",
    "states": ["u", "v"],
    "parameters": ["b0", "b1", "b2", "a1", "a2"],
    "equations": "y = b0 * W.x + u[t-1]\nu[t] = b1 * W.x - a1 * y + v[t-1]\nv[t] = b2 * W.x - a2 * y",
    "output": "y",
}
COMPLEX_LRU = {
    "name": "complex_lru",
    "gates": ["re", "im"],
    "states": ["re", "im"],
    "parameters": ["nu", "theta", "gamma", "c", "d"],
    "equations": """
        r     = exp(-exp(nu))
        p     = r * cos(theta)
        q     = r * sin(theta)
        re[t] = p * re[t-1] - q * im[t-1] + gamma * W.re
        im[t] = q * re[t-1] + p * im[t-1] + gamma * W.im
    """,
    "output": "c * re[t] - d * im[t]",
}
# Sums of squares of second gradients, of x, dy and R: torch's double backward of steps written by hand, in float64.
SQUARES: dict[str, tuple[Any, float, float, float]] = {
    "gru_reset_before": ("gru_reset_before", 1.4677922498739435, 8.671734475644321, 0.6679881993716326),
    "lstm_projected": ("lstm_projected", 0.5557202061367539, 1.0160307392043233, 2.4368175566996952),
    "layer_norm_lstm": ("layer_norm_lstm", 13.03030263416367, 14.174773149642707, 48.35172051640085),
    "block_gru": ("block_gru", 0.07731550547430638, 6.236053119474768, 0.40684790178866476),
    "biquad": (BIQUAD, 23.687393321933364, 26.290001372693197, 0),
    "complex_lru": (COMPLEX_LRU, 8.172487601965244, 16.406959905542443, 0),
    "lif": ("lif", 9.62940769076069, 2.2886224146085863, 0),
    "zoneout_lstm": ("zoneout_lstm", 1.2972259942307898, 4.010599785335288, 3.372363981663411),
}
SIZES = {"lstm_projected": {"projection_size": 2}, "block_gru": {"projection_size": 2, "heads": 2}}


@pytest.mark.parametrize(
    "name", [name if name in OF_EVERY_DAY else pytest.param(name, marks=pytest.mark.matrix_full) for name in SQUARES]
)
def test_second_gradients_of_others(name: str) -> None:
    model, *expected = SQUARES[name]
    kernel = host_kernel(model, HIDDEN, "fp64", **SIZES.get(name, {}))
    interface, places = kernel.interface, iter(range(140, 170))
    first = {"x": 1, "R": 2, "recurrent_bias": 20, "parameters": 40, "state": 60}
    shapes: dict[str, Any] = {"x": interface.shape(interface.x_axes, BATCH, TIME)}
    if interface.recurrent_gates:
        pairs = [*zip(interface.recurrent_gates, interface.product_shapes, strict=True)]
        shapes["R"] = {gate: tuple(shape) for gate, shape in pairs}
        if interface.takes_recurrent_bias:
            shapes["recurrent_bias"] = {gate: (shape.heads, shape.out) for gate, shape in pairs}
    shapes["parameters"] = {one: interface.shape_of_parameter(one) for one in interface.parameters}
    shapes["state"] = {one: interface.shape_of_state(one, BATCH) for one in interface.states}

    def filled(draw: Callable[[str, int, tuple[int, ...]], Any]) -> Arrays:
        found: Arrays = {}
        for key, of in shapes.items():
            values = {one: draw(key, j, shape) for j, (one, shape) in enumerate(of.items())} if isinstance(of, dict) else of
            found[key] = values if isinstance(of, dict) else draw(key, 0, of)
        for key in ("R", "recurrent_bias"):
            if key in found and not interface.has_unequal_products:
                found[key] = np.stack([*found[key].values()])
        return found

    arrays = filled(lambda key, j, shape: fill(shape, first[key] + j) / (1 if key == "x" else 2))
    tangents = filled(lambda _key, _j, shape: fill(shape, next(places)))
    inputs = {one: fill(interface.shape(interface.channel_axes, BATCH, TIME), 120 + j) for j, one in enumerate(kernel.inputs)}
    y, final, saved = kernel.forward(**arrays, **({"inputs": inputs} if inputs else {}))
    dstate = {one: fill(state.shape, 100 + j) for j, (one, state) in enumerate(final.items())}
    second = kernel.second_backward(saved, fill(y.shape, 80), tangents, dstate)
    found = [squares(second[key]) if key in second else 0 for key in ("x", "dy", "R")]
    np.testing.assert_allclose(found, expected, rtol=1e-11)


CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "resets": ({}, {"resets": np.array([[0, 0, 1, 0, 0], [1, 0, 0, 1, 0]], bool)}),
    "lengths in reverse": ({"direction": "reverse", "layout": "TBD"}, {"lengths": np.array([TIME, 3])}),
    "both directions": ({"direction": "bidirectional", "layout": "BDT"}, {"lengths": np.array([2, TIME])}),
    "packed": ({"direction": "bidirectional"}, {"cu_seqlens": np.array([0, 3, TIME])}),
}


@pytest.mark.matrix_full
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("call", CALLS)
def test_second_gradients_of_every_call(name: str, call: str) -> None:
    """Second gradients along drawn directions are differences of first ones, as gradgradcheck has it in its fast mode."""
    spec, sequences = CALLS[call]
    generator = np.random.default_rng(3)
    kernel = kernel_of(name, **spec)
    arrays, tangents, along = (call_of(kernel, lambda shape: generator.standard_normal(shape) / 2) for _ in range(3))
    if "cu_seqlens" in sequences:
        arrays, tangents, along = (packed_of(kernel, one) for one in (arrays, tangents, along))
    y, final, saved = kernel.forward(**arrays, **sequences)
    dy, dstate = (like(one, lambda shape: generator.standard_normal(shape)) for one in (y, final))
    moving, states_moving = kernel.tangent(saved, tangents)
    expected = dot(tangents, kernel.backward(saved, dy, dstate))
    assert abs(dot(moving, dy) + dot(states_moving, dstate) - expected) <= 1e-11 * (1 + abs(expected))
    found = dot(along, kernel.second_backward(saved, dy, tangents, dstate))
    if not is_limit_of_differences(name):
        return

    def first(step: float) -> float:
        _, _, saved = kernel.forward(**moved(arrays, along, step), **sequences)
        return dot(tangents, kernel.backward(saved, dy, dstate))

    step = 1e-5
    assert abs(found - (first(step) - first(-step)) / (2 * step)) <= 1e-6 * (1 + abs(found))


def packed_of(kernel: minrnn_gen.Kernel, arrays: Arrays) -> Arrays:
    """Return the arrays of a call of packed sequences, one for each state: the first row of what has a batch."""
    interface = kernel.interface

    def row(array: Any, axes: str) -> Any:
        return array.take([0], axes.index("b"))

    changed: Arrays = {"x": row(arrays["x"], interface.x_axes)}
    for key, axes in (("shared", interface.shared_axes), ("inputs", interface.channel_axes)):
        if key in arrays:
            changed[key] = {name: row(array, axes) for name, array in arrays[key].items()}
    return {**arrays, **changed}


@pytest.mark.matrix_full
@pytest.mark.parametrize("name", CELLS)
def test_kernels_of_a_gpu_have_them(name: str) -> None:
    """The emulated kernels beside NumPy, in float32."""
    model, keys = CELLS[name]
    spec = {"model": model, "hidden_size": HIDDEN, "precision": "fp32", "gpu": "h200", **keys}
    generator = np.random.default_rng(1)

    def draw(shape: tuple[int, ...]) -> Any:
        return (generator.standard_normal(shape) / 2).astype(np.float32)

    results = []
    kernels = [minrnn_gen.compile(spec, device="interpret"), host_kernel(model, HIDDEN, "fp32", **keys)]
    arrays, tangents = (call_of(kernels[0], draw) for _ in range(2))
    dy = draw(kernels[0].interface.y_shape(BATCH, TIME))
    for kernel in kernels:
        _, _, saved = kernel.forward(**arrays)
        results.append((kernel.second_backward(saved, dy, tangents), kernel.tangent(saved, tangents)[1]))
    for one, other in zip(*map(flat, results), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * (1 + np.abs(other).max()))


def flat(value: Any) -> list[Any]:
    if isinstance(value, np.ndarray):
        return [value]
    return [one for inner in (value.values() if isinstance(value, Mapping) else value) for one in flat(inner)]


def cell_of(equations: str, **keys: Any) -> Cell:
    return parse_cell(find_cell({"name": "own", "equations": equations, **keys}, Path(), "test"))


def test_what_a_tangent_does_not_depend_on_is_left_out() -> None:
    data, names = tangent_cell(cell_of("h[t] = 0.5 * h[t-1] + W.x"), False)
    assert data["equations"] == "d_h[t] = 0.5 * d_h[t-1] + W.d_x"
    assert (data["gates"], data["states"]) == (["d_x"], ["d_h"])
    assert (names.gates, names.states) == ({"x": "d_x"}, {"h": "d_h"})


@pytest.mark.parametrize("name", library_names())
def test_tangents_multiply_as_often_as_their_cells_and_are_scans(name: str) -> None:
    cell = built_in(name)
    data, names = tangent_cell(cell, True)
    tangent = parse_cell(find_cell(data, Path(), "test"))
    if names.has_output:
        assert len(tangent.recurrent_gates) == len(cell.recurrent_gates)
    else:
        assert cell.arguments or cell.norms or not cell.recurrent_gates
    is_scan = classify(cell).is_scan and not cell.vectors
    pairs = {tuple(sorted(block.states)) for block in dual_blocks(tangent)} if is_scan else set()
    assert pairs == ({tuple(sorted(pair)) for pair in names.states.items()} if is_scan else set())


def test_names_that_a_cell_has_are_not_taken() -> None:
    long = "n" * 64
    data, names = tangent_cell(
        cell_of(f"d_h = W.x\nv0 = d_h * W.d_x\nh[t] = tanh(h[t-1] * v0 + {long})", parameters=[long]), False
    )
    assert names.gates == {"x": "d_x_", "d_x": "d_d_x"} and names.states == {"h": "d_h_"}
    assert names.parameters[long] == "d0"
    lines = [line.partition(" = ")[0] for line in data["equations"].splitlines()]
    assert len({*lines}) == len(lines)


def test_an_output_without_derivatives_has_no_tangent() -> None:
    with pytest.raises(BadInput, match="the output of own has no derivatives"):
        tangent_cell(cell_of("h[t] = 0.5 * h[t-1] + W.x", output="detach(h[t])"), False)


def test_states_that_reach_the_output_as_constants_keep_their_tangents() -> None:
    cell = {"name": "own", "equations": "h[t] = 0.5 * h[t-1] + W.x\ng[t] = g[t-1] * W.y + detach(h[t])", "output": "g"}
    kernel = host_kernel(cell, HIDDEN, "fp64")
    x, dx = np.ones((1, 2, 2, HIDDEN)), np.ones((1, 2, 2, HIDDEN))
    _, _, saved = kernel.forward(x)
    dy, dstate = kernel.tangent(saved, {"x": dx})
    np.testing.assert_array_equal(dstate["h"], np.full((1, HIDDEN), 1.5))
    np.testing.assert_array_equal(dy[:, 1], kernel.tangent(saved, {"x": dx})[1]["g"])


def test_bad_input() -> None:
    kernel = host_kernel("gru", HIDDEN, "fp64")
    arrays = call_of(kernel, lambda shape: np.zeros(shape))
    y, _, saved = kernel.forward(**arrays)
    cases: list[tuple[Any, str]] = [
        ({"X": y}, "tangents has an unknown name 'X'; allowed are x, R, weight"),
        ({"x": y}, r"tangents: x has shape \[2, 5, 4\]; \[2, 5, 3, 4\] is expected"),
        ({"R": arrays["R"].astype(np.float32)}, "tangents: R has dtype float32; float64 is expected"),
        ({"weight": y}, "tangents: weight was given, but the call has no weight"),
        ({"state": {"c": y}}, r"tangents\['state'\] has an unknown name 'c'"),
        ({"reset_states": {"h": y}}, "tangents: reset_states was given, but the call has none"),
    ]
    for tangents, message in cases:
        with pytest.raises(BadInput, match=message):
            kernel.tangent(saved, tangents)
    clipped = host_kernel("gru", HIDDEN, "fp64", recurrent_gradient_clip=0.5)
    _, _, saved = clipped.forward(**arrays)
    with pytest.raises(BadInput, match="recurrent_gradient_clip has no second derivative"):
        clipped.second_backward(saved, y, {"x": arrays["x"]})


def test_reset_states_and_holds() -> None:
    generator = np.random.default_rng(2)
    kernel = host_kernel("min_gru", HIDDEN, "fp64")
    x, dx = (generator.standard_normal((BATCH, TIME, 2, HIDDEN)) for _ in range(2))
    h, dh = (generator.standard_normal((BATCH, HIDDEN)) for _ in range(2))
    marks = {"resets": generator.random((BATCH, TIME)) < 0.4, "holds": generator.random((BATCH, TIME)) < 0.3}

    def run(step: float) -> Any:
        return kernel.forward(x + step * dx, reset_states={"h": h + step * dh}, **marks)

    tangents = {"x": dx, "reset_states": {"h": dh}}
    y, _, saved = run(0.0)
    dy, step = generator.standard_normal(y.shape), 1e-5
    np.testing.assert_allclose(kernel.tangent(saved, tangents)[0], (run(step)[0] - run(-step)[0]) / (2 * step), atol=1e-8)
    second = kernel.second_backward(saved, dy, tangents)
    first = [kernel.backward(run(sign * step)[2], dy) for sign in (1, -1)]
    found = dot(tangents, second)
    expected = (dot(tangents, first[0]) - dot(tangents, first[1])) / (2 * step)
    assert abs(found - expected) <= 1e-6 * (1 + abs(found))
