"""Cells of coupled states on the CPU target: published numbers, loops written by hand, and gradients by differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.drawn_cells import DrawnCell, cells
from support.everyday import one_in
from support.examples import examples
from support.host_kernels import compiled, computed_by, fill
from support.uncompiled_kernels import compiled_for_host

from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.cell.files import coupled_library_names
from minrnn_gen.cpu import blocks
from minrnn_gen.cpu.maps import scan_maps

# Of steps in float64, confirmed by scipy's lfilter and by complex arithmetic: the sum of y, the last states of the second
# sequence, and the sum of squares of each gradient.
PUBLISHED: dict[str, tuple[float, dict[str, list[float]], dict[str, float]]] = {
    "biquad": (
        -0.6258893222654414,
        {
            "u": [0.3676908518202231, 0.13487087642741308, -0.20023621222565163, -0.04807805668614132],
            "v": [-0.4010660059778518, -0.4709015782145289, -0.2857018293324148, 0.09943639328806246],
        },
        {
            "x": 1.9898418110221927,
            "b0": 55.031132212679644,
            "b1": 69.40326512228705,
            "b2": 50.15801386566688,
            "a1": 0.6845634639474113,
            "a2": 2.6292608066494623,
            "u": 3.4150723269820653,
            "v": 2.838771938944226,
        },
    ),
    "complex_lru": (
        -0.0715856988294031,
        {
            "re": [-0.5207012938612723, -0.4937759525716782, -0.17287114088563021, -0.019738060039710213],
            "im": [0.4653857546351265, 0.6238143563420671, 0.15479838453212227, 0.022019174755861872],
        },
        {
            "x": 1.3282773175722369,
            "nu": 0.4157563780049315,
            "theta": 0.045062981046523884,
            "gamma": 10.329855111613744,
            "c": 0.5666531370898118,
            "d": 0.1338730831485946,
            "re": 0.08207307507938713,
            "im": 0.03728015051746257,
        },
    ),
}


@pytest.mark.parametrize(("precision", "rtol"), one_in(2, [("fp64", 1e-11), ("fp32", 3e-5)]))
@pytest.mark.parametrize("model", one_in(2, PUBLISHED))
def test_coupled_cells_give_the_published_numbers(code: str, model: str, precision: str, rtol: float) -> None:
    kernel = compiled(code, model=model, hidden_size=4, precision=precision)
    interface = kernel.interface
    dtype = numpy_dtype(interface.precision.storage_dtype)

    def of(shape: tuple[int, ...], phase: float, scale: float = 1.0) -> Any:
        return (scale * fill(shape, phase)).astype(dtype)

    parameters = {name: of((4,), 40 + place, 0.5) for place, name in enumerate(interface.parameters)}
    state = {name: of((2, 4), 60 + place, 0.5) for place, name in enumerate(interface.states)}
    y, final, saved = kernel.forward(of(interface.shape(interface.x_axes, 2, 5), 1), parameters=parameters, state=state)
    total, last, squares = PUBLISHED[model]
    np.testing.assert_allclose(y.sum(dtype=np.float64), total, rtol=rtol)
    for name, values in last.items():
        np.testing.assert_allclose(final[name][1], values, rtol=rtol)
    dstate = {name: of((2, 4), 100 + place) for place, name in enumerate(interface.states)}
    gradients = kernel.backward(saved, of((2, 5, 4), 80), dstate)
    named = {"x": gradients["x"], **gradients["parameters"], **gradients["state"]}
    assert named.keys() == squares.keys()
    for name, square in squares.items():
        np.testing.assert_allclose((named[name].astype(np.float64) ** 2).sum(), square, rtol=rtol, err_msg=name)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def biquad(x: Any, s: Any, b0: Any, b1: Any, b2: Any, a1: Any, a2: Any) -> tuple[Any, ...]:
    y = b0 * x[0] + s[0]
    return y, b1 * x[0] - a1 * y + s[1], b2 * x[0] - a2 * y


def complex_lru(x: Any, s: Any, nu: Any, theta: Any, gamma: Any, c: Any, d: Any) -> tuple[Any, ...]:
    h = np.exp(-np.exp(nu) + 1j * theta) * (s[0] + 1j * s[1]) + gamma * (x[0] + 1j * x[1])
    return ((c + 1j * d) * h).real, h.real, h.imag


def linoss(x: Any, s: Any, stiffness: Any, step: Any) -> tuple[Any, ...]:
    # The implicit step as the linear system that the paper inverts: z + dt k y = z0 + dt u and y - dt z = y0.
    dt, k = sigmoid(step), np.maximum(stiffness, 0)
    system = np.moveaxis(np.array([[np.ones_like(dt), dt * k], [-dt, np.ones_like(dt)]]), -1, 0)
    sides = np.stack([s[1] + dt * x[0], s[0]], -1)
    z, y = np.moveaxis(np.linalg.solve(system, sides[..., None])[..., 0], -1, 0)
    return y, y, z


def holt(x: Any, s: Any, alpha: Any, beta: Any) -> tuple[Any, ...]:
    level = s[0] + s[1] + sigmoid(alpha) * (x[0] - s[0] - s[1])
    trend = s[1] + sigmoid(beta) * (level - s[0] - s[1])
    return level + trend, level, trend


def conv_min_gru(x: Any, s: Any, *taps: Any) -> tuple[Any, ...]:
    z = sigmoid(x[0])
    candidate = sum(tap * value for tap, value in zip(taps, (x[1], *s[1:]), strict=True))
    h = s[0] + z * (candidate - s[0])
    return h, h, x[1], s[1], s[2]


STEPS: dict[str, Callable[..., tuple[Any, ...]]] = {
    step.__name__: step for step in (biquad, complex_lru, conv_min_gru, holt, linoss)
}


@pytest.mark.parametrize("model", one_in(5, coupled_library_names()))
def test_coupled_cells_are_those_of_a_loop(code: str, model: str) -> None:
    """With resets and lengths, forward; and along one direction through all arrays, backward."""
    kernel, random = compiled(code, model=model, hidden_size=6, precision="fp64"), np.random.default_rng(4)
    interface, batch, time = kernel.interface, 3, 9
    shapes = {"x": interface.shape(interface.x_axes, batch, time)}
    shapes |= {f"parameters {name}": interface.parameter_shape for name in interface.parameters}
    shapes |= {f"state {name}": interface.state_shape(batch) for name in interface.states}
    at = {name: 0.5 * random.standard_normal(shape) for name, shape in shapes.items()}
    along = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    resets, lengths = random.random((batch, time)) < 0.2, np.array([time, 4, 0])
    marks = {"resets": resets, "lengths": lengths}
    dy, dstate = random.standard_normal((batch, time, 6)), random.standard_normal((len(interface.states), batch, 6))

    def arguments(values: dict[str, Any]) -> dict[str, Any]:
        nested: dict[str, Any] = {"parameters": {}, "state": {}}
        for name, value in values.items():
            kind, _, inner = name.partition(" ")
            nested.update({kind: value}) if not inner else nested[kind].update({inner: value})
        return nested

    def by_hand(values: dict[str, Any]) -> tuple[Any, Any]:
        call = arguments(values)
        y, states = np.zeros((batch, time, 6)), np.stack(list(call["state"].values()))
        for row, step in np.ndindex(batch, time):
            if step < lengths[row]:
                before = np.where(resets[row, step], 0, states[:, row])
                y[row, step], *states[:, row] = STEPS[model](call["x"][row, step], before, *call["parameters"].values())
        return y, states

    y, final, saved = kernel.forward(**arguments(at), **marks)
    expected, states = by_hand(at)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose([final[name] for name in interface.states], states, rtol=1e-12, atol=1e-13)
    found = kernel.backward(saved, dy, dict(zip(interface.states, dstate, strict=True)))

    def loss(size: float) -> Any:
        moved, last = by_hand({name: at[name] + size * along[name] for name in at})
        return (moved * dy).sum() + (last * dstate).sum()

    given = {"x": found["x"], **{f"parameters {name}": found["parameters"][name] for name in interface.parameters}}
    given |= {f"state {name}": found["state"][name] for name in interface.states}
    directional = sum((given[name] * along[name]).sum() for name in at)
    np.testing.assert_allclose(directional, (loss(1e-5) - loss(-1e-5)) / 2e-5, rtol=1e-6)


MOMENTUM = {
    "name": "momentum",
    "equations": "v[t] = sigmoid(a) * v[t-1] + W.g\np[t] = 0.5 * p[t-1] + v[t] * tanh(v[t-1]) + X.m",
    "parameters": ["a"],
    "inputs": ["m"],
    "output": "p[t]",
}
DUAL = {
    "name": "dual",
    "equations": "u[t] = sigmoid(W.p) * u[t-1] + W.q * v[t-1]\nv[t] = sigmoid(W.p) * v[t-1] + (u[t-1] - u[t-1]) * W.q + W.q",
}
# No scan, but its gradient is: with a state that is not of its block, and one that grows beyond all bounds.
CURVED = {
    "name": "curved",
    "equations": "h[t] = sigmoid(W.a) * tanh(h[t-1]) + W.b * c[t-1]\nc[t] = 0.5 * tanh(h[t-1])\ng[t] = 2 * g[t-1] + h[t]",
    "output": "h[t] + 1e-30 * g[t]",
}
LONG = 300


def name_of(model: Any) -> str:
    return model["name"] if isinstance(model, dict) else model


@pytest.mark.parametrize("model", one_in(4, (MOMENTUM, *coupled_library_names(), DUAL, CURVED)), ids=name_of)
@pytest.mark.parametrize("direction", one_in(2, ("forward", "reverse")))
def test_many_steps_in_parallel_are_those_one_after_the_other(
    model: Any, direction: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With resets, before one of them NaN, lengths, and what a batch of other rows leaves as it is."""
    with computed_by("numpy", tmp_path_factory) as code:
        kernel = compiled(code, model=model, hidden_size=4, precision="fp64", direction=direction)
        interface, random, batch = kernel.interface, np.random.default_rng(5), 3
        x = random.standard_normal((batch, LONG, len(interface.gates), 4))
        resets = random.random((batch, LONG)) < 0.02
        resets[0, [100, 101]] = True
        x[0, 100 if direction == "forward" else 101] = np.nan
        call = {
            "x": x,
            "parameters": {name: 0.3 * random.standard_normal(4) for name in interface.parameters},
            "state": {name: random.standard_normal((batch, 4)) for name in interface.states},
            "inputs": {name: random.standard_normal((batch, LONG, 4)) for name in interface.inputs},
            "resets": resets,
            "lengths": np.array([LONG, 270, 0]),
        }
        call = {name: value for name, value in call.items() if not isinstance(value, dict) or value}
        dy, dstate = random.standard_normal((batch, LONG, 4)), random.standard_normal((len(interface.states), batch, 4))

        def results() -> dict[str, Any]:
            y, final, saved = kernel.forward(**call)
            gradients = kernel.backward(saved, dy, dict(zip(interface.states, dstate, strict=True)))
            nested = {"final": final, **{name: gradients.get(name, {}) for name in ("state", "parameters", "inputs")}}
            flat = {f"{kind} {name}": value for kind, named in nested.items() for name, value in named.items()}
            return {"y": y, "x": gradients["x"], **flat}

        in_parallel = results()
        monkeypatch.setattr(blocks, "PARALLEL_STEPS_LEAST", LONG + 1)
        for name, value in results().items():
            scale = np.nanmax(np.abs(value), initial=1.0)
            np.testing.assert_allclose(in_parallel[name], value, rtol=1e-11, atol=1e-12 * scale, err_msg=name)
        assert np.isnan(in_parallel["y"]).any() and np.isfinite(in_parallel["y"][1:]).all()


def test_powers_of_a_map_that_overflow_leave_states_as_they_are() -> None:
    """And the other elements as they are without it."""
    maps, random = np.array([np.eye(2) * 0.5, [[1e200, 0], [0, 0.5]]]), np.random.default_rng(0)
    b, initial = random.standard_normal((60, 2, 2)), np.zeros((2, 2))
    b[:, 1, 0] = 0
    states = scan_maps(maps, b, initial)
    assert np.isfinite(states).all() and (states[:, 1, 0] == 0).all()
    assert np.array_equal(states[:, :1], scan_maps(maps[:1], b[:, :1], initial[:1]))


@settings(max_examples=examples(4), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(cells(("coupled", "diagonal")), st.sampled_from(("forward", "reverse")), st.integers(1, 20), st.integers(0, 2**16))
def test_drawn_cells_in_parallel_are_those_step_by_step(cell: DrawnCell, direction: str, time: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setenv("MINRNN_CPU", "numpy")
        spec = {"model": cell.document, "hidden_size": 3, "precision": "fp64", "direction": direction}
        kernel, random = compiled_for_host(spec), np.random.default_rng(seed)
        interface = kernel.interface
        call: dict[str, Any] = {"x": random.standard_normal((2, time, len(interface.gates), 3))}
        shapes = {"parameters": (3,), "state": (2, 3), "inputs": (2, time, 3)}
        named = {kind: getattr(interface, "states" if kind == "state" else kind) for kind in shapes}
        for kind, names in named.items():
            call |= {kind: {name: random.standard_normal(shapes[kind]) for name in names}} if names else {}
        dy, resets = random.standard_normal((2, time, 3)), random.random((2, time)) < 0.2
        results = []
        for least in (1, time + 1):
            patch.setattr(blocks, "PARALLEL_STEPS_LEAST", least)
            y, final, saved = kernel.forward(**call, resets=resets)
            gradients = kernel.backward(saved, dy)
            nested = [final, *(gradients.get(kind, {}) for kind in named)]
            results.append([y, gradients["x"], *(value for values in nested for value in values.values())])
        for value, expected in zip(*results, strict=True):
            assume(np.isfinite(expected).all() and np.abs(expected).max(initial=0) < 1e6)
            np.testing.assert_allclose(value, expected, rtol=1e-7, atol=1e-7 * np.abs(expected).max(initial=1))
