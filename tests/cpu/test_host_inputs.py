"""Inputs X.* on the CPU target: published numbers, a loop written by hand in every layout, and gradients by differences."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.host_kernels import compiled, fill, in_published_precisions
from support.input_cells import EVERY_CELL, HIGHWAY

import minrnn_gen
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.interface import Y_AXES, Interface
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel

ZONEOUT = "zoneout_lstm"
BATCH, TIME, HIDDEN = 3, 7, 6


@in_published_precisions
def test_zoneout_gives_the_published_numbers(code: str, precision: str, rtol: float) -> None:
    """Steps in float64, written by hand, gave these outputs and sums of squares of each gradient."""
    kernel = compiled(code, model=ZONEOUT, hidden_size=4, precision=precision)
    assert kernel.inputs == ("zh", "zc")
    dtype = numpy_dtype(kernel.interface.precision.storage_dtype)

    def given(shape: tuple[int, ...], phase: float, scale: float = 1.0) -> Any:
        return (scale * fill(shape, phase)).astype(dtype)

    R = np.stack([given((1, 4, 4), 2 + gate, 0.5) for gate in range(4)])
    state = {name: given((2, 4), 60 + place, 0.5) for place, name in enumerate("hc")}
    masks = {name: given((2, 5, 4), 120 + place) for place, name in enumerate(("zh", "zc"))}
    y, final, saved = kernel.forward(given((2, 5, 4, 4), 1), R, state=state, inputs=masks)
    np.testing.assert_allclose(y.sum(dtype=np.float64), -0.9207454511110008, rtol=rtol)
    expected = {
        "h": [0.1071620920351491, 0.17306851198282405, -0.043472133441187534, -0.07165469772223228],
        "c": [0.43829664723643164, 0.5645485620263984, -0.013531471126296324, 0.19612905967242245],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(final[name][1], values, rtol=rtol)
    dstate = {name: given((2, 4), 100 + place) for place, name in enumerate("hc")}
    gradients = kernel.backward(saved, given((2, 5, 4), 80), dstate)
    squares = {
        "x": (gradients["x"], 1.533809299577694),
        "R.i": (gradients["R"][0], 0.04015804669821922),
        "R.f": (gradients["R"][1], 0.014037547430271158),
        "R.z": (gradients["R"][2], 0.8313111150760905),
        "R.o": (gradients["R"][3], 0.013435374622424978),
        "h": (gradients["state"]["h"], 2.106371823826107),
        "c": (gradients["state"]["c"], 0.6256570867033231),
    }
    for name, (gradient, square) in squares.items():
        np.testing.assert_allclose((gradient.astype(np.float64) ** 2).sum(), square, rtol=rtol, err_msg=name)
    assert {name: abs(gradient).max() for name, gradient in gradients["inputs"].items()} == {"zh": 0, "zc": 0}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def highway(x: Any, skip: Any, added: Any, v: Any, h: Any, steps: Any, resets: Any) -> tuple[Any, Any]:
    """One sequence of one direction, step by step: x [T, G, H], others [T, H]; `steps` in the order of the recurrence."""
    y = np.zeros(skip.shape)
    for t in steps:
        h = np.zeros_like(h) if resets[t] else h
        z, f, r = x[t, 0], sigmoid(x[t, 1] + v * skip[t]), sigmoid(x[t, 2])
        h = f * h + (1 - f) * z + added[t]
        y[t] = r * h + (1 - r) * skip[t]
    return y, h


def in_layout(array: Any, axes: str, wanted: str) -> Any:
    return np.ascontiguousarray(array.transpose([axes.index(axis) for axis in wanted]))


def of_y(interface: Interface, y: Any) -> Any:
    """Return y [B, T, directions, H] in the layout of the interface."""
    return in_layout(y.reshape(*y.shape[:2], -1), "bth", Y_AXES[interface.layout])


@pytest.mark.parametrize("kind", ["plain", "ragged", "packed"])
def test_a_highway_scan_is_that_of_a_loop_in_every_layout_and_direction(code: str, kind: str) -> None:
    """With resets; sequences of several lengths side by side, or packed one behind the other."""
    for layout, direction in itertools.product(("BTD", "TBD", "BDT"), ("forward", "reverse", "bidirectional")):
        if kind == "packed" and layout != "BTD":
            continue
        kernel = compiled(code, model=HIGHWAY, hidden_size=HIDDEN, precision="fp64", layout=layout, direction=direction)
        assert kernel.builder.cell_shape.is_scan
        check_highway(kernel, kind)


def check_highway(kernel: Kernel, kind: str) -> None:
    interface, random = kernel.interface, np.random.default_rng(3)
    runs = interface.runs_reversed
    rows, time = (1, BATCH * TIME) if kind == "packed" else (BATCH, TIME)
    x = random.standard_normal((rows, time, len(runs), 3, HIDDEN))
    skip, added = random.standard_normal((2, rows, time, len(runs), HIDDEN))
    v, initial = random.standard_normal((len(runs), HIDDEN)), random.standard_normal((len(runs), BATCH, HIDDEN))
    resets = random.random((rows, time)) < 0.2
    ends = np.array([0, 4, 4, time])
    lengths = np.array([TIME, 0, 3])
    if kind == "packed":
        pieces = [(0, begin, end) for begin, end in itertools.pairwise(ends)]
    else:
        pieces = [(row, 0, int(length) if kind == "ragged" else time) for row, length in enumerate(lengths)]
    expected, final = np.zeros(skip.shape), np.zeros(initial.shape)
    for run, is_reversed in enumerate(runs):
        for sequence, (row, begin, end) in enumerate(pieces):
            steps = range(end - begin)[:: -1 if is_reversed else 1]
            piece = (row, slice(begin, end))
            arrays = (array[piece][:, run] for array in (x, skip, added))
            y, last = highway(*arrays, v[run], initial[run, sequence], steps, resets[piece])
            expected[piece][:, run], final[run, sequence] = y, last
    x_axes, input_axes = interface.preactivation_axes, interface.channel_axes
    directed = "d" in input_axes

    def led(array: Any) -> Any:
        return array if directed else array[0]

    given = {name: array if directed else array[:, :, 0] for name, array in (("x", x), ("skip", skip), ("added", added))}
    own = "btd" if directed else "bt"
    sequences = {"plain": {}, "ragged": {"lengths": lengths}, "packed": {"cu_seqlens": ends}}[kind]
    y, state = kernel(
        in_layout(given["x"], own + "gh", x_axes),
        parameters={"v": led(v)},
        state={"h": led(initial)},
        inputs={name: in_layout(given[name], own + "h", input_axes) for name in ("skip", "added")},
        resets=resets,
        **sequences,
    )
    np.testing.assert_allclose(y, of_y(interface, expected), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(state["h"], led(final), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("model", "direction"), one_in(5, itertools.product(EVERY_CELL, ["forward", "bidirectional"])))
def test_gradients_of_inputs_are_those_of_differences(code: str, model: dict[str, Any], direction: str) -> None:
    """Along one direction through all arrays, with a reset, and a sequence that ends early."""
    kernel = compiled(code, model=model, hidden_size=HIDDEN, precision="fp64", direction=direction)
    interface, random = kernel.interface, np.random.default_rng(0)
    shapes = {"x": interface.shape(interface.x_axes, BATCH, TIME)}
    if interface.recurrent_gates:
        shapes["R"] = interface.R_shape
    shapes |= {f"parameters {name}": interface.parameter_shape for name in interface.parameters}
    shapes |= {f"state {name}": interface.state_shape(BATCH) for name in interface.states}
    shapes |= {f"inputs {name}": interface.shape(interface.channel_axes, BATCH, TIME) for name in interface.inputs}
    at = {name: 0.5 * random.standard_normal(shape) for name, shape in shapes.items()}
    to = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    dy = random.standard_normal(interface.y_shape(BATCH, TIME))
    dstate = {name: random.standard_normal(interface.state_shape(BATCH)) for name in interface.states}
    resets = np.zeros((BATCH, TIME), bool)
    resets[1, 3] = True
    sequences = {"resets": resets, "lengths": np.array([TIME, TIME, 4])}

    def run(size: float) -> Any:
        flat = {name: value + size * to[name] for name, value in at.items()}
        return kernel.forward(**nested(flat), **sequences)

    def total(size: float) -> float:
        y, final, _ = run(size)
        return float((y * dy).sum() + sum((final[name] * dstate[name]).sum() for name in final))

    gradients = flattened(kernel.backward(run(0)[2], dy, dstate))
    found = sum((gradients[name] * to[name]).sum() for name in at)
    # Of the fourth order: five-point differences.
    differences = (8 * (total(2.5e-4) - total(-2.5e-4)) - (total(5e-4) - total(-5e-4))) / 3e-3
    np.testing.assert_allclose(found, differences, rtol=1e-8)
    behind = np.moveaxis(gradients[f"inputs {interface.inputs[0]}"], 1, 0)[4:, 2]
    assert not behind.any()


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in flat.items():
        outer, _, inner = name.partition(" ")
        if inner:
            result.setdefault(outer, {})[inner] = value
        else:
            result[outer] = value
    return result


def flattened(gradients: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{outer} {inner}" if inner else outer: one
        for outer, value in gradients.items()
        for inner, one in (value.items() if isinstance(value, dict) else [("", value)])
    }


@pytest.mark.parametrize("model", EVERY_CELL, ids=lambda model: model["name"])
def test_single_steps_are_those_of_a_call_over_time(code: str, model: dict[str, Any]) -> None:
    kernel = compiled(code, model=model, hidden_size=HIDDEN, precision="fp64")
    interface, random = kernel.interface, np.random.default_rng(1)
    x = random.standard_normal((BATCH, TIME, len(interface.gates), HIDDEN))
    inputs = {name: random.standard_normal((BATCH, TIME, HIDDEN)) for name in interface.inputs}
    weights: dict[str, Any] = {"parameters": {name: random.standard_normal(HIDDEN) for name in interface.parameters}}
    if interface.recurrent_gates:
        weights["R"] = random.standard_normal(interface.R_shape)
    y, final = kernel(x, **weights, inputs=inputs)
    state = None
    for t in range(TIME):
        of_step = {name: np.ascontiguousarray(array[:, t]) for name, array in inputs.items()}
        y_t, state = kernel.step(np.ascontiguousarray(x[:, t]), **weights, inputs=of_step, state=state)
        np.testing.assert_allclose(y_t, y[:, t], rtol=1e-12, atol=1e-13)
    for name, last in final.items():
        np.testing.assert_allclose(state[name], last, rtol=1e-12, atol=1e-13)


def test_pieces_of_a_projection_have_their_own_steps_of_the_inputs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody keeps pre-activations, a few steps are projected at once."""
    kernel = compiled(code, model=HIGHWAY, hidden_size=HIDDEN, input_size=4, precision="fp32")
    random = np.random.default_rng(2)
    arrays = {
        "x": (BATCH, 40, 4),
        "weight": (3 * HIDDEN, 4),
        "v": (HIDDEN,),
        "skip": (BATCH, 40, HIDDEN),
        "added": (BATCH, 40, HIDDEN),
    }
    drawn = {name: random.standard_normal(shape).astype(np.float32) for name, shape in arrays.items()}
    call = {"x": drawn["x"], "weight": drawn["weight"], "parameters": {"v": drawn["v"]}}
    call["inputs"] = {name: drawn[name] for name in ("skip", "added")}
    whole, _ = kernel(**call)
    monkeypatch.setattr("minrnn_gen.run.cpu.native_run.PIECE_BYTES", 1 << 11)
    again = compiled(code, model=HIGHWAY, hidden_size=HIDDEN, input_size=4, precision="fp32")
    np.testing.assert_array_equal(again(**call)[0], whole)


def test_inputs_that_do_not_fit_are_refused_in_one_sentence() -> None:
    kernel = minrnn_gen.compile({"model": HIGHWAY, "hidden_size": HIDDEN, "precision": "fp32", "layout": "BDT"})
    x, v = np.zeros((2, 3, HIDDEN, 5), np.float32), {"v": np.zeros(HIDDEN, np.float32)}
    right = np.zeros((2, HIDDEN, 5), np.float32)
    wrong: list[tuple[Any, str]] = [
        (None, r"inputs lacks 'skip'; the cell reads X\.skip, so pass it, \[batch, hidden, time\]"),
        ({"skip": right}, "inputs lacks 'added'"),
        ({"skip": right, "added": right, "addd": right}, "inputs has an unknown name 'addd'; allowed are skip, added"),
        ({"skip": right, "added": right.astype(np.float64)}, r"inputs\['added'\] has dtype float64; float32 is expected"),
        ({"skip": right, "added": right[:, :, :4]}, r"inputs\['added'\] has shape \[2, 6, 4\]; \[2, 6, 5\] is expected"),
        ({"skip": right, "added": right.transpose(0, 2, 1)[:, :HIDDEN]}, r"inputs\['added'\] has shape"),
        ({"skip": right, "added": right[::-1]}, r"inputs\['added'\] has strides .* \(contiguous\) is expected"),
        ([right], "inputs is a list; a mapping of skip, added is expected"),
    ]
    for inputs, why in wrong:
        with pytest.raises(BadInput, match=why) as refused:
            kernel(x, parameters=v, inputs=inputs)
        assert "\n" not in str(refused.value)
    with pytest.raises(BadInput, match="inputs has an unknown name 'skip'; this cell has no inputs"):
        minrnn_gen.compile({"model": "min_gru", "hidden_size": 4})(np.zeros((1, 1, 2, 4), np.float32), inputs={"skip": right})
