"""Inputs X.* of one value per step: what they compute is that of the value in every channel, and gradients are sums."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.everyday import one_in
from support.input_cells import DIAGONAL, GAPS, HIGHWAY, IN_ROUNDS, LINEAR, NORMED, with_step_inputs

import minrnn_gen
from minrnn_gen.call.array import numpy_dtype
from minrnn_gen.call.interface import Interface
from minrnn_gen.cell.files import find_cell
from minrnn_gen.cell.language import parse_cell
from minrnn_gen.errors import BadInput
from minrnn_gen.kernel import Kernel

BATCH, TIME, HIDDEN = 2, 4, 6
CELLS = {
    cell["name"]: (cell, names)
    for cell, *names in ((HIGHWAY, "skip"), (GAPS, "gap", "mask"), (IN_ROUNDS, "gap"), (DIAGONAL, "gap"), (NORMED, "gap"))
}
WAYS = [*itertools.product(CELLS, ("BTD", "TBD", "BDT"), ("forward", "bidirectional"))]
MARKS = np.array([[0, 1, 0, 0], [0, 0, 1, 0]], bool)


def kernels(name: str, **options: Any) -> tuple[Kernel, Kernel, list[str]]:
    """A kernel with inputs of one value per step, that with all of them in channels, and the names."""
    cell, names = CELLS[name]
    keys, device = {"hidden_size": HIDDEN, "precision": "fp64", **options}, options.pop("device", None)
    keys.pop("device", None)
    of_steps, of_channels = (
        minrnn_gen.compile({"model": model, **keys}, device=device) for model in (with_step_inputs(cell, *names), cell)
    )
    return of_steps, of_channels, names


def arguments_of(interface: Interface, **more: Any) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = {"x": interface.shape(interface.x_axes, BATCH, TIME)}
    if interface.recurrent_gates:
        shapes["R"] = interface.R_shape
    if interface.takes_recurrent_bias:
        shapes["recurrent_bias"] = interface.recurrent_bias_shape
    arguments: dict[str, Any] = {name: random.standard_normal(shape) / 2 for name, shape in shapes.items()}
    if interface.parameters:
        arguments["parameters"] = {name: random.standard_normal(interface.parameter_shape) for name in interface.parameters}
    return {**arguments, **more}


def inputs_of(interface: Interface, names: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs of which some have one value per step, and the same in all channels."""
    random, axes = np.random.default_rng(1), interface.channel_axes
    shape = interface.shape(axes, BATCH, TIME)
    of_channels = {name: random.standard_normal(shape) for name in interface.inputs}
    of_steps = dict(of_channels)
    for name in names:
        of_steps[name] = random.standard_normal((BATCH, TIME))
        ordered = of_steps[name] if axes.index("b") < axes.index("t") else of_steps[name].T
        lengths = {"b": BATCH, "t": TIME}
        one = ordered.reshape([lengths.get(axis, 1) for axis in axes])
        of_channels[name] = np.ascontiguousarray(np.broadcast_to(one, shape))
    return of_steps, of_channels


def summed(interface: Interface, gradient: Any) -> Any:
    axes = interface.channel_axes
    total = gradient.sum(tuple(place for place, axis in enumerate(axes) if axis not in "bt"))
    return total if axes.index("b") < axes.index("t") else total.T


def agree(of_steps: Kernel, of_channels: Kernel, names: list[str], **more: Any) -> None:
    interface = of_channels.interface
    arguments = arguments_of(interface, **more)
    narrow, wide = inputs_of(interface, names)
    (y, final, saved), (expected, last, kept) = (
        kernel.forward(**arguments, inputs=inputs) for kernel, inputs in ((of_steps, narrow), (of_channels, wide))
    )
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal([*final.values()], [*last.values()])
    dy = np.random.default_rng(2).standard_normal(y.shape)
    found, gradients = of_steps.backward(saved, dy), of_channels.backward(kept, dy)
    assert found.keys() == gradients.keys()
    np.testing.assert_array_equal(found["x"], gradients["x"])
    for name, gradient in gradients["inputs"].items():
        wanted = summed(interface, gradient) if name in names else gradient
        assert found["inputs"][name].shape == wanted.shape
        np.testing.assert_allclose(found["inputs"][name], wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("name", "layout", "direction"), one_in(11, WAYS))
def test_it_is_the_value_in_every_channel(name: str, layout: str, direction: str) -> None:
    of_steps, of_channels, names = kernels(name, layout=layout, direction=direction)
    assert {*of_steps.inputs} == {*of_channels.inputs} and {*of_steps.interface.step_inputs} == {*names}
    agree(of_steps, of_channels, names)
    arguments = arguments_of(of_channels.interface)
    narrow, wide = inputs_of(of_channels.interface, names)
    np.testing.assert_array_equal(
        of_steps.reference(**arguments, inputs=narrow)[0], of_channels.reference(**arguments, inputs=wide)[0]
    )
    if direction != "forward":
        return
    x, axes = arguments.pop("x"), of_channels.interface.channel_axes
    at = {"x_t": np.ascontiguousarray(np.take(x, 0, of_channels.interface.x_axes.index("t"))), **arguments}
    first = {name: np.ascontiguousarray(np.take(array, 0, axes.index("t"))) for name, array in wide.items()}
    of_one = {name: narrow[name][:, 0] if name in names else array for name, array in first.items()}
    np.testing.assert_array_equal(of_steps.step(**at, inputs=of_one)[0], of_channels.step(**at, inputs=first)[0])


@pytest.mark.parametrize("more", one_in(2, [("reset_states",), ("holds",)]))
def test_resets_to_states_and_holds_go_with_them(more: str) -> None:
    of_steps, of_channels, names = kernels("gaps")
    states = {name: np.random.default_rng(3).standard_normal((BATCH, HIDDEN)) for name in of_steps.states}
    arguments: dict[str, Any] = {"resets": MARKS} | ({"holds": ~MARKS} if more == "holds" else {"reset_states": states})
    agree(of_steps, of_channels, names, **arguments)


@pytest.mark.matrix_full
@pytest.mark.parametrize("name", CELLS)
def test_kernels_take_them(name: str) -> None:
    of_steps, of_channels, names = kernels(name, device="interpret")
    agree(of_steps, of_channels, names)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_gradient_of_few_digits_is_one_sum(precision: str) -> None:
    """The sum over 512 channels is rounded once: a chain of sums in bf16 would stop at 256."""
    kernel = minrnn_gen.compile({"model": with_step_inputs(LINEAR, "added"), "hidden_size": 512, "precision": precision})
    dtype = numpy_dtype(kernel.interface.precision.storage_dtype)
    x, R, added = (np.zeros(shape, dtype) for shape in ((1, 1, 1, 512), (1, 1, 512, 512), (1, 1)))
    y, _, saved = kernel.forward(x, R, inputs={"added": added})
    gradient = kernel.backward(saved, np.ones_like(y))["inputs"]["added"]
    assert gradient.dtype == dtype and gradient.tolist() == [[512]]


def test_what_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    of_steps, _, names = kernels("gaps")
    arguments = arguments_of(of_steps.interface)
    narrow, wide = inputs_of(of_steps.interface, names)
    for inputs, said in (
        ({**narrow, "gap": wide["gap"]}, r"inputs\['gap'\] has shape \[2, 4, 6\]; \[2, 4\] is expected"),
        (
            {name: narrow[name] for name in ("added", "mask")},
            "inputs lacks 'gap'; the cell reads X.gap, so pass it, .batch, time.",
        ),
        ({**narrow, "gap": narrow["gap"].astype("f4")}, "gap.* has dtype float32; float64 is expected"),
    ):
        with pytest.raises(BadInput, match=said):
            of_steps(**arguments, inputs=inputs)
    with pytest.raises(BadInput, match=r"inputs\['gap'\] has shape \[4, 2\]; \[2, 4\] is expected, one value for each step"):
        of_steps(**arguments, inputs={**narrow, "gap": narrow["gap"].T}, holds=MARKS)
    _, _, saved = of_steps.forward(**arguments, inputs=narrow)
    with pytest.raises(
        BadInput, match=r"the cell reads X\.mask, one value per step, and kernels take no tangent of it; list it"
    ):
        of_steps.tangent(saved, {"x": arguments["x"]})
    file = tmp_path / "mine.yaml"
    for text, said in (
        ("inputs: {m: n}", "inputs: 'n' is given for m; allowed: step, for one value per step, or 1, for one per channel"),
        ("inputs: {m: true}", "inputs: true is given for m; allowed: step"),
        ("inputs: {m: step, g: 1}", "inputs.g: 'g' is never used as X.g; remove it or use it"),
        (
            "inputs: {m: step}\nproducts: {x: {over: all}}",
            "mine.yaml:5:22: X.m has one value per step in a cell that lists products, which takes none; list it as `m: 1`",
        ),
    ):
        file.write_text(f"name: mine\n{text}\nequations: |\n  h[t] = W.x + R.x + X.m\n")
        with pytest.raises(BadInput) as raised:
            parse_cell(find_cell(str(file), tmp_path, "test"))
        assert said in str(raised.value)
