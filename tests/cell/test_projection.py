"""Cells with projected units: what the language takes and refuses, and their gradients in NumPy."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.everyday import in_turn, one_in
from support.projected_cells import NAN_BEYOND, NORMED, NORMS_BY_HEAD, NORMS_OVER_ALL, OVER_ALL, TWO_ROUNDS, call_of

import minrnn_gen
from minrnn_gen.cell.files import find_cell
from minrnn_gen.cell.language import Cell, parse_cell
from minrnn_gen.errors import BadInput

PROJECTED = """\
name: projected
gates: [i, f, z, o]
states: {h: p, c: 1}
products: {p: {to: p}}
equations: |
  i    = sigmoid(W.i + R.i)
  f    = sigmoid(W.f + R.f)
  z    = tanh(W.z + R.z)
  o    = sigmoid(W.o + R.o)
  c[t] = f * c[t-1] + i * z
  h[t] = R.p(o * tanh(c[t]))
output: h
"""
CELLS: dict[str, Any] = {
    "lstm_projected": "lstm_projected",
    "block_gru": "block_gru",
    **{cell["name"]: cell for cell in (TWO_ROUNDS, OVER_ALL, NORMED, NORMS_OVER_ALL, NORMS_BY_HEAD, NAN_BEYOND)},
}
# Outputs, final states and sums of squares of first derivatives of a prototype in float64, for B = 2, T = 5, H = 4.
REFERENCES = json.loads((Path(__file__).parent / "projected_references.json").read_text(encoding="utf-8"))


def cell_of(text: str, tmp_path: Path) -> Cell:
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    return parse_cell(find_cell("a.yaml", tmp_path, "spec"))


def test_a_file_says_which_names_have_projected_units(tmp_path: Path) -> None:
    projection = cell_of(PROJECTED, tmp_path).projection
    assert (projection.states, projection.to, projection.of) == (("h",), ("p",), ("i", "f", "z", "o"))
    assert projection.output and not projection.across


WRONG = [
    (("R.p(o * tanh(c[t]))", "o * tanh(c[t])"), ":11:3: h[t] has P projected units, but its expression has H; "),
    (("W.i + R.i", "W.i + R.i + h[t-1]"), "a.yaml:6:18: h has P projected units and W.i has H; only a product R.g(…) leads "),
    (
        ("i * z", "where(h[t-1] > W.i, i, z)"),
        "a.yaml:10:29: h has P projected units and W.i has H; only a product R.g(…) leads ",
    ),
    (("states: {h: p, c: 1}", "states: {h: 1, c: 1}"), ":11:3: h[t] has H units, but its expression has P projected units; "),
    (("{p: {to: p}}", "{p: {to: p}, q: {to: p}}"), "products.q: 'q' is never used as R.q; remove it or use it"),
    (("{to: p}", "{to: n}"), "products.p.to: 'n' is given; allowed: h, p"),
    (("{to: p}", "{too: p}"), "products.p.too: unknown key (did you mean 'to'?); allowed: to, over, bias"),
    (("{to: p}", "{to: p, over: heads}"), "products.p.over: 'heads' is given (did you mean 'head'?); allowed: head, all"),
    (
        ("{h: p, c: 1}", "{h: q, c: 1}"),
        "'q' is given for h; allowed: n, for n values per channel, p, for P projected units, or 1",
    ),
    (("{h: p, c: 1}", "{h: p}"), "'c' is used here but not listed under states; list it with its axis, `c: p` or `c: 1`"),
]


@pytest.mark.parametrize(("changed", "said"), WRONG)
def test_what_is_refused_is_one_sentence_with_its_place(changed: tuple[str, str], said: str, tmp_path: Path) -> None:
    assert changed[0] in PROJECTED
    with pytest.raises(BadInput) as caught:
        cell_of(PROJECTED.replace(*changed, 1), tmp_path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_norms_are_of_values_with_the_same_units() -> None:
    mixed = OVER_ALL["equations"].replace("silu(R.a)", "rms_norm(R.a, all, 1) * mean([R.a, W.k], all)")
    with pytest.raises(BadInput, match=r"R.a has P projected units and W\.k has H; only a product R\.g"):
        minrnn_gen.compile({"model": {**OVER_ALL, "equations": mixed}, "hidden_size": 8, "projection_size": 4})
    with pytest.raises(BadInput, match="'centre' is not a function of the language"):
        parse_cell(find_cell({"name": "a", "equations": "h[t] = centre(W.x + R.x)"}, Path(), "spec"))


def test_both_axes_exclude_each_other() -> None:
    equations = "c[t] = W.a * c[t-1]\nm[t] = w * m[t-1]\nh[t] = sum(c[t])"
    cell = {
        "name": "a",
        "states": {"h": 1, "c": "n", "m": "p"},
        "parameters": {"w": "p"},
        "output": "h",
        "equations": equations,
    }
    with pytest.raises(BadInput, match="m has the axis p in a cell with the axis n, which exclude each other; leave one out"):
        parse_cell(find_cell(cell, Path(), "spec"))


SIZES = [
    ({}, "lstm_projected.yaml: products: p leads to the axis p; give the spec's projection_size"),
    (
        {"projection_size": 6, "heads": 4},
        "projection_size: 6 is given, which the 4 heads do not divide; give a multiple of them",
    ),
    ({"projection_size": 6, "model": "lstm"}, "6 is given, but nothing of the cell lstm has the axis p; leave it out"),
]


@pytest.mark.parametrize(("keys", "said"), SIZES)
def test_a_spec_gives_the_size_that_the_cell_needs(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        minrnn_gen.compile({"model": "lstm_projected", "hidden_size": 8, **keys})
    assert said in str(caught.value)


SHAPES = [
    ("lstm_projected", 2, 6),
    ("normed", 2, 6),
    ("norms_by_head", 2, 6),
    ("norms_by_head", 4, 8),
    ("two_rounds", 2, 2),
    ("block_gru", 4, 4),
    ("nan_beyond", 2, 4),
    ("lstm_projected", 1, 3),
    ("two_rounds", 1, 8),
    ("over_all", 2, 4),
    ("normed", 1, 8),
    ("norms_over_all", 2, 6),
]
# The shapes of each day.
EMULATED_DAILY = {"native": SHAPES[:5], "interpret": ()}


def with_shapes(*ways: str) -> list[Any]:
    """Every shape in every way, of which the first five are run every day, in one way each."""
    rest = itertools.product(ways, SHAPES[5:])
    return [*in_turn(ways, SHAPES[:5]), *(pytest.param(*case, marks=pytest.mark.matrix_full) for case in rest)]


@pytest.mark.parametrize(
    ("model", "where", "precision"),
    one_in(3, itertools.product(REFERENCES, ("numpy", "native", "interpret"), ("fp64", "fp32"))),
)
def test_outputs_and_gradients_are_those_of_the_prototype(model: str, where: str, precision: str) -> None:
    reference = REFERENCES[model]
    keys = {"model": model, "hidden_size": 4, "heads": reference["heads"], "projection_size": 2, "precision": precision}
    kernel = _in_numpy(keys) if where == "numpy" else minrnn_gen.compile(keys, device=where if where == "interpret" else None)
    interface, dtype = kernel.interface, precision.replace("fp", "float")

    def filled(shape: tuple[int, ...], first: float, scale: float = 0.5) -> Any:
        return (scale * numpy.sin(first + 0.7 * numpy.arange(numpy.prod(shape)))).reshape(shape).astype(dtype)

    shapes = dict(zip(interface.recurrent_gates, interface.product_shapes, strict=True))
    places = [*enumerate(reference["products"])]
    arguments: dict[str, Any] = {
        "R": {gate: filled(tuple(shapes[gate]), 2 + place) for place, gate in places},
        "state": {name: filled(interface.shape_of_state(name, 2), 60 + place) for place, name in enumerate(interface.states)},
    }
    if interface.parameters:
        named = enumerate(interface.parameters)
        arguments["parameters"] = {name: filled(interface.shape_of_parameter(name), 40 + place) for place, name in named}
    if interface.takes_recurrent_bias:
        arguments["recurrent_bias"] = {gate: filled(tuple(shapes[gate])[:-1], 20 + place) for place, gate in places}
    y, final, saved = kernel.forward(filled((2, 5, len(interface.gates), 4), 1, scale=1), **arguments)
    exact = precision == "fp64"
    numpy.testing.assert_allclose(y, reference["y"], atol=1e-14 if exact else 2e-6)
    for name, last in reference["final"].items():
        numpy.testing.assert_allclose(final[name][1], last, atol=1e-14 if exact else 2e-6)
    dstate = {
        name: filled(interface.shape_of_state(name, 2), 100 + place, scale=1) for place, name in enumerate(interface.states)
    }
    gradients = kernel.backward(saved, filled(y.shape, 80, scale=1), dstate)
    of_kinds = {"R": "R", "rb": "recurrent_bias", "p": "parameters", "s": "state"}
    for label, square in reference["grad_sq"].items():
        kind, _, name = label.partition(".")
        gradient = gradients[of_kinds[kind]][name] if name else gradients[kind]
        numpy.testing.assert_allclose(numpy.square(gradient, dtype="f8").sum(), square, rtol=1e-11 if exact else 1e-4)


@pytest.mark.parametrize(("direction", "shape"), with_shapes("forward", "bidirectional"))
def test_gradients_are_differences_of_outputs(direction: str, shape: tuple[str, int, int]) -> None:
    model, heads, size = shape
    spec = {"model": CELLS[model], "hidden_size": 8, "heads": heads, "projection_size": size, "precision": "fp64"}
    kernel = minrnn_gen.compile({**spec, "direction": direction})
    arguments = call_of(kernel.interface, 2, 4, "float64")
    arguments["lengths"] = numpy.array([4, 3])
    random = numpy.random.default_rng(1)
    y, final, saved = kernel.forward(**arguments)
    dy = random.normal(size=y.shape)
    dstate = {name: random.normal(size=value.shape) for name, value in final.items()}
    gradients = kernel.backward(saved, dy, dstate)

    def loss() -> float:
        y, final = kernel(**arguments)
        return float((y * dy).sum() + sum((final[name] * dstate[name]).sum() for name in final))

    for name, gradient in gradients.items():
        for key, of_key in gradient.items() if isinstance(gradient, dict) else ((None, gradient),):
            array = arguments[name] if key is None else arguments[name][key]
            assert of_key.shape == array.shape
            direction_of = random.normal(size=array.shape)
            kept, step = array.copy(), 1e-6
            losses = []
            for sign in (1, -1):
                array[...] = kept + sign * step * direction_of
                losses.append(loss())
            array[...] = kept
            numpy.testing.assert_allclose(
                (of_key * direction_of).sum(), (losses[0] - losses[1]) / (2 * step), rtol=1e-6, atol=1e-8
            )


def test_a_wrong_R_is_refused_in_one_sentence() -> None:
    kernel = minrnn_gen.compile({"model": "lstm_projected", "hidden_size": 4, "projection_size": 2})
    arguments = call_of(kernel.interface, 1, 2, "float32")
    x, R = arguments["x"], arguments["R"]
    wrong = {
        'R is one array, but the products of lstm_projected have two shapes; give {"i": …, "p": …}': numpy.zeros(
            (5, 1, 4, 4), "f4"
        ),
        "R lacks 'p'; pass R = {'i': [1, 4, 2], ": {gate: matrix for gate, matrix in R.items() if gate != "p"},
        "R has an unknown gate 'q'; allowed are i, f, z, o, p": {**R, "q": R["p"]},
        "R['p'] has shape [1, 4, 2]; [1, 2, 4] is expected": {**R, "p": R["i"]},
        "R is missing; products multiply by it": None,
    }
    for said, given in wrong.items():
        with pytest.raises(BadInput) as caught:
            kernel(x, given)
        assert said in str(caught.value)


# Every day native code wherever units are projected; test_emulated_rounds.py has emulated products that wait for one another.
@pytest.mark.parametrize(
    ("where", "shape"),
    [
        pytest.param(where, shape, marks=() if shape in EMULATED_DAILY[where] else pytest.mark.matrix_full)
        for where in EMULATED_DAILY
        for shape in SHAPES
    ],
)
def test_kernels_compute_what_numpy_does(where: str, shape: tuple[str, int, int]) -> None:
    model, heads, size = shape
    keys = {"model": CELLS[model], "hidden_size": 8, "heads": heads, "projection_size": size, "precision": "fp32"}
    kernel = minrnn_gen.compile(keys, device="interpret" if where == "interpret" else None)
    arguments = call_of(kernel.interface, 2, 3, "float32")
    arguments["resets"] = numpy.array([[False, True, False], [False, False, False]])
    dy = numpy.random.default_rng(2).normal(size=kernel.interface.y_shape(2, 3)).astype("float32")
    found, expected = (_results(kernel, arguments, dy) for kernel in (kernel, _in_numpy(keys)))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        numpy.testing.assert_allclose(found[name], value, atol=2e-5, err_msg=name)


def _in_numpy(keys: dict[str, Any]) -> minrnn_gen.Kernel:
    """Return a kernel whose calls are computed in NumPy, by programs of both units."""
    kernel = minrnn_gen.compile(keys)
    kernel.executor.serves = lambda _: False  # type: ignore[attr-defined]
    return kernel


def _results(kernel: minrnn_gen.Kernel, arguments: dict[str, Any], dy: Any) -> dict[str, Any]:
    y, final, saved = kernel.forward(**arguments)
    states = kernel(**arguments, all_states=True)[1]
    gradients = kernel.backward(saved, dy, {name: numpy.ones_like(value) for name, value in final.items()})
    named = {"y": y, **{f"final {name}": value for name, value in final.items()}, "x": gradients.pop("x")}
    named |= {f"all {name}": value for name, value in states.items()}
    for name, gradient in gradients.items():
        of_names = gradient if isinstance(gradient, dict) else {"": gradient}
        named |= {f"{name} {key}": value for key, value in of_names.items()}
    first = {name: arguments[name] for name in arguments if name not in ("x", "resets")}
    step, after = kernel.step(arguments["x"][:, 0], **first)
    return named | {"step": step, **{f"after {name}": value for name, value in after.items()}}


def test_inputs_next_to_projected_units_are_gates_that_are_not_projected() -> None:
    """X.m has H units; the same numbers as a gate of x give the same y, gradients and step."""
    equations = "c[t] = sigmoid(W.f + R.f) * c[t-1] + tanh(W.z + R.z + {m})\nh[t] = R.p(tanh(c[t]) * {m})"
    sizes = {"hidden_size": 6, "projection_size": 4, "heads": 2, "precision": "fp64"}
    file = {"name": "one", "states": {"h": "p", "c": 1}, "products": {"p": {"to": "p"}}, "output": "h"}
    with_input, with_gate = (
        minrnn_gen.compile({"model": {**file, **more, "equations": equations.format(m=m)}, **sizes})
        for m, more in (("X.m", {"inputs": ["m"]}), ("W.m", {}))
    )
    random, gate = numpy.random.default_rng(3), with_gate.gates.index("m")
    x = random.normal(size=(2, 5, len(with_gate.gates), 6))
    interface = with_input.interface
    shapes = zip(interface.recurrent_gates, interface.product_shapes, strict=True)
    R = {name: random.normal(size=tuple(shape)) for name, shape in shapes}
    m, others = numpy.ascontiguousarray(x[:, :, gate]), numpy.ascontiguousarray(numpy.delete(x, gate, axis=2))
    y, _, saved = with_input.forward(others, R, inputs={"m": m})
    expected, _, expected_saved = with_gate.forward(x, R)
    numpy.testing.assert_array_equal(y, expected)
    dy = random.normal(size=y.shape)
    gradients, wanted = with_input.backward(saved, dy), with_gate.backward(expected_saved, dy)
    numpy.testing.assert_allclose(gradients["inputs"]["m"], wanted["x"][:, :, gate], rtol=1e-12, atol=1e-14)
    numpy.testing.assert_allclose(gradients["x"], numpy.delete(wanted["x"], gate, axis=2), rtol=1e-12, atol=1e-14)
    step, _ = with_input.step(others[:, 0], R, inputs={"m": numpy.ascontiguousarray(m[:, 0])})
    numpy.testing.assert_allclose(step, y[:, 0], rtol=1e-12)


def test_a_c_interface_has_no_arrays_for_inputs_next_to_projected_units(tmp_path: Path) -> None:
    file = {"name": "one", "states": {"h": "p"}, "products": {"p": {"to": "p"}}, "inputs": ["m"]}
    equations = "h[t] = R.p(tanh(W.z + R.z + X.m))"
    kernel = minrnn_gen.compile({"model": {**file, "equations": equations}, "hidden_size": 6, "projection_size": 4})
    with pytest.raises(
        BadInput, match=r"one reads X\.m next to projected units, for which a C interface has no array"
    ) as refused:
        kernel.export(tmp_path, target="cpu")
    assert "\n" not in str(refused.value)
