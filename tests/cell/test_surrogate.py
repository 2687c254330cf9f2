"""`surrogate(v, g)`: the value of v with the gradient of g, and spiking neurons made of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cell_evaluation import Tree, cell_of, tree_text, trees
from support.examples import examples
from support.one_step import lower_step, lower_step_backward

import minrnn_gen
from minrnn_gen.cell.analysis import classify
from minrnn_gen.cell.language import Cell
from minrnn_gen.cell.printing import equation_text
from minrnn_gen.errors import BadInput

LEAVES = ("W.x", "h[t-1]", "p")
INPUTS = ("W_x", "previous_h", "parameter_p")


def cell_with(expression: str) -> Cell:
    return cell_of(f"h[t] = {expression} + 0 * (W.x + h[t-1] + p)", parameters=["p"])


@settings(max_examples=examples(60))
@given(trees(LEAVES, depth=2), trees(LEAVES, depth=2), st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_the_value_is_of_the_first_and_the_gradient_of_the_second(value: Tree, slope: Tree, point: list[float]) -> None:
    first, second = tree_text(value), tree_text(slope)
    both = cell_with(f"surrogate({first}, {second})")
    inputs = dict(zip(INPUTS, map(np.float64, point), strict=True))
    outcome = {cell: lower_step(cell).evaluate(inputs)["y"] for cell in (both, cell_with(first))}
    np.testing.assert_array_equal(*outcome.values())
    incoming = {"gradient_state_h": np.float64(2.0), "gradient_y": np.float64(1.0)}
    ours, theirs = (lower_step_backward(cell).evaluate(inputs | incoming) for cell in (both, cell_with(second)))
    for name in INPUTS:
        np.testing.assert_array_equal(ours[f"gradient_{name}"], theirs[f"gradient_{name}"])


def test_a_forward_computes_nothing_for_the_gradient() -> None:
    program = lower_step(cell_with("surrogate(where(W.x > 0, 1, 0), atan(exp(W.x)) * p)"))
    assert program.transcendental_count == 0


def test_it_is_printed_as_it_was_written() -> None:
    cell = cell_with("surrogate(where(W.x > p, 1, 0), erf(W.x - p))")
    assert equation_text(cell.next_states[0][1]).startswith("surrogate(where(W.x > p, 1, 0), erf(W.x - p))")


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("0.5 * h[t-1] + surrogate(where(W.x > 0, 1, 0), W.x)", "affine-diagonal"),
        # The gradient's recurrence would be another one than the forward's.
        ("0.5 * h[t-1] + surrogate(where(W.x > 0, 1, 0), h[t-1])", "diagonal"),
        ("surrogate(where(h[t-1] > 0, 1, 0), W.x)", "diagonal"),
    ],
)
def test_its_class(expression: str, kind: str) -> None:
    assert classify(cell_with(expression)).kind == kind


def test_its_arguments_have_the_same_axis() -> None:
    with pytest.raises(BadInput, match="surrogate takes two values that both have the axis n, or both none of it"):
        cell_of("h[t] = surrogate(S.b, W.x) * h[t-1]", shared=["b"], states={"h": "n"})


@pytest.mark.parametrize("name", ["atan", "erf", "sin", "cos", "softsign", "hard_sigmoid", "gelu", "surrogate"])
def test_a_cell_may_use_the_name_of_a_newer_function(name: str) -> None:
    cell_of(f"{name} = W.x\nh[t] = {name} * h[t-1]")
    cell_of(f"h[t] = W.{name} * h[t-1] + {name}", parameters=[name])
    with pytest.raises(BadInput, match=f"'{name}' is a value of this cell, which cannot be called; give it another name"):
        cell_of(f"{name} = W.x\nh[t] = {name}(W.x) * h[t-1]")


def fill(shape: tuple[int, ...], start: int) -> Any:
    return np.sin(start + 0.7 * np.arange(np.prod(shape))).reshape(shape)


@pytest.mark.parametrize("device", [None, "interpret"])
def test_a_spiking_neuron(device: str | None) -> None:
    """Values of a step-by-step computation in PyTorch, in float64."""
    kernel = minrnn_gen.compile({"model": "lif", "hidden_size": 4, "precision": "fp64", "gpu": "h200"}, device=device)
    arrays = {
        "x": fill((2, 5, 1, 4), 1),
        "parameters": {"decay": fill((4,), 40) / 2},
        "state": {name: fill((2, 4), 60 + place) / 2 for place, name in enumerate("sm")},
    }
    y, final, saved = kernel.forward(**arrays)
    gradients = kernel.backward(saved, fill((2, 5, 4), 80), {name: fill((2, 4), 100 + i) for i, name in enumerate("sm")})
    spikes = np.zeros((2, 5, 4))
    spikes[0, 0, 1:3] = 1
    np.testing.assert_array_equal(y, spikes)
    near = {"rtol": 1e-12, "atol": 1e-12}
    np.testing.assert_allclose(
        final["m"][1], [0.5683130151532637, 0.6564375869683049, 0.47435071338703183, 0.03476945933395239], **near
    )
    squares = {"x": gradients["x"], "decay": gradients["parameters"]["decay"], **gradients["state"]}
    expected = {"x": 7.661441587041524, "decay": 0.015163051714665055, "s": 0.7892270137845312, "m": 0.23041290762141536}
    for name, array in squares.items():
        np.testing.assert_allclose((array**2).sum(), expected[name], **near)


def test_the_kernels_of_every_new_function_are_right() -> None:
    calls = "atan(W.x) + erf(W.x) + sin(W.x) + cos(W.x) + softsign(W.x) + hard_sigmoid(W.x) + gelu(W.x)"
    cell = {"name": "functions", "equations": f"h[t] = tanh(0.5 * h[t-1] + {calls})"}
    for precision, roundings in (("fp64", 2.0**-44), ("fp32", 2.0**-16)):
        spec = {"model": cell, "hidden_size": 5, "precision": precision, "gpu": "h200"}
        emulated, host = minrnn_gen.compile(spec, device="interpret"), minrnn_gen.compile(spec)
        x = np.linspace(-4, 4, 60).reshape(2, 6, 1, 5).astype(host.interface.precision.storage_dtype)
        results = []
        for kernel in (emulated, host):
            y, _, saved = kernel.forward(x)
            results.append((y, kernel.backward(saved, np.ones_like(y))["x"]))
        for ours, theirs in zip(*results, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=roundings, atol=roundings)
