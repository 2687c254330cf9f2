"""Layers and recurrences of cells with projected units, beside torch's LSTM and the oracle."""

from __future__ import annotations

import itertools
from typing import Any

import numpy
import pytest
import torch
from support.projected_cells import NORMED, TWO_ROUNDS, call_of

import minrnn_gen
import minrnn_gen.torch as wing
from minrnn_gen.errors import BadInput

HIDDEN, PROJECTED, INPUTS = 8, 4, 5
CELLS: dict[str, Any] = {
    "lstm_projected": "lstm_projected",
    "two_rounds": TWO_ROUNDS,
    "normed": NORMED,
    "block_gru": "block_gru",
}


def with_names_of_cells(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state_dict of torch.nn.LSTM(proj_size) by the names of a layer of lstm_projected."""
    named = {}
    for name, parameter in state.items():
        kind, suffix = name[:9].rstrip("_"), name[name.index("_l") :]
        if name.startswith(("weight_hh", "bias_hh")):
            kind = "weight_hh" if name.startswith("weight") else "bias_hh"
            gates = zip("ifzo", parameter.split(HIDDEN), strict=True)
            named |= {f"{kind}_{gate}{suffix}": of_gate for gate, of_gate in gates}
        else:
            named[name.replace("weight_hr", "weight_hh_p")] = parameter
    return named


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_layer_by_gates_is_that_of_torch(bidirectional: bool) -> None:
    sizes, options = (INPUTS, HIDDEN, 2), {"bidirectional": bidirectional, "dtype": torch.float64, "batch_first": True}
    ours = wing.RNN("lstm_projected", *sizes, projection_size=PROJECTED, **options)
    theirs = torch.nn.LSTM(*sizes, proj_size=PROJECTED, **options)
    ours.load_state_dict(with_names_of_cells(theirs.state_dict()))
    x = torch.randn(2, 6, INPUTS, dtype=torch.float64)
    for (y, states), (expected, last) in ((ours(x), theirs(x)), (ours(x, theirs(x)[1]), theirs(x, theirs(x)[1]))):
        torch.testing.assert_close((y, states), (expected, last))


@pytest.mark.parametrize(("model", "heads"), [("lstm_projected", 2), ("normed", 2), ("block_gru", 2), ("block_gru", 1)])
def test_a_layer_is_the_oracle_with_its_parameters(model: str, heads: int) -> None:
    layer = wing.RNN(CELLS[model], INPUTS, HIDDEN, heads=heads, projection_size=PROJECTED, dtype=torch.float64)
    recurrent_bias = {"recurrent_bias": True}
    spec = {"model": CELLS[model], "hidden_size": HIDDEN, "heads": heads, "projection_size": PROJECTED, "precision": "fp64"}
    kernel = minrnn_gen.compile({**spec, "input_size": INPUTS, **recurrent_bias})
    named = {name: parameter.detach().numpy() for name, parameter in layer.named_parameters()}
    shapes = dict(zip(kernel.interface.recurrent_gates, kernel.interface.product_shapes, strict=True))
    arguments: dict[str, Any] = {
        "R": {gate: named[f"weight_hh_{gate}_l0"].reshape(tuple(shape)) for gate, shape in shapes.items()},
        "weight": named["weight_ih_l0"],
        "bias": named["bias_ih_l0"],
        "recurrent_bias": {
            gate: named[f"bias_hh_{gate}_l0"].reshape(shape[:2])
            for gate, shape in shapes.items()
            if gate not in kernel.interface.unbiased
        },
    }
    if not kernel.interface.has_unequal_biases:
        arguments["recurrent_bias"] = numpy.stack([*arguments["recurrent_bias"].values()])
    if kernel.parameters:
        arguments["parameters"] = {name: named[f"{name}_l0"] for name in kernel.parameters}
    x = torch.randn(2, 6, INPUTS, dtype=torch.float64)
    y, states = layer(x)
    expected, final = kernel.reference(x.numpy(), **arguments)
    numpy.testing.assert_allclose(y.detach(), expected, atol=1e-12)
    for state, last in zip(states if isinstance(states, tuple) else (states,), final.values(), strict=True):
        numpy.testing.assert_allclose(state[0].detach(), last, atol=1e-12)
    after, state = torch.zeros(0), None
    for x_t in x.unbind(1):
        after, state = layer.step(x_t, state)
    numpy.testing.assert_allclose(after, expected[:, -1], atol=1e-12)


@pytest.mark.parametrize("model", CELLS)
def test_gradients_of_a_recurrence_are_those_of_its_kernel(model: str) -> None:
    kernel = minrnn_gen.compile(
        {"model": CELLS[model], "hidden_size": HIDDEN, "heads": 2, "projection_size": PROJECTED, "precision": "fp64"}
    )
    arrays = call_of(kernel.interface, 2, 4, "float64")

    def tensors(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: tensors(of_name) for name, of_name in value.items()}
        return torch.from_numpy(value.copy()).requires_grad_()

    given = tensors(arrays)
    y, final, states = wing.recurrence(kernel, **given, all_states=True)
    assert {name: tuple(value.shape) for name, value in states.items()} == {
        name: kernel.interface.states_shape(name, 2, 4) for name in kernel.states
    }
    dy = torch.randn_like(y)
    ((y * dy).sum() + sum(value.sum() for value in final.values())).backward()
    _, _, saved = kernel.forward(**arrays)
    expected = kernel.backward(saved, dy.numpy(), {name: numpy.ones_like(value.detach()) for name, value in final.items()})
    for name, gradient in expected.items():
        for key, of_key in gradient.items() if isinstance(gradient, dict) else ((None, gradient),):
            tensor = given[name] if key is None else given[name][key]
            numpy.testing.assert_allclose(tensor.grad, of_key, atol=1e-11)


def test_what_does_not_fit_is_one_sentence() -> None:
    layer = wing.RNN("lstm_projected", INPUTS, HIDDEN, projection_size=PROJECTED)
    x = torch.randn(2, 3, INPUTS)
    with pytest.raises(BadInput, match=r"hx of state h has shape \[1, 2, 8\]; \[1, 2, 4\] is expected"):
        layer(x, (torch.zeros(1, 2, HIDDEN), torch.zeros(1, 2, HIDDEN)))
    layer.weight_hh_p_l0 = torch.nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(BadInput, match=r"parameter weight_hh_p_l0 has shape \[3, 3\]; \[4, 8\] is expected"):
        layer(x)
    with pytest.raises(BadInput, match="products: p leads to the axis p; give the spec's projection_size"):
        wing.RNN("lstm_projected", INPUTS, HIDDEN)
    with pytest.raises(BadInput, match="nothing of the cell lstm has the axis p; leave it out"):
        wing.RNN("lstm", INPUTS, HIDDEN, projection_size=3)
    with pytest.raises(BadInput, match="proj_size is 3; only 0 is supported: give projection_size"):
        wing.RNN("lstm_projected", INPUTS, HIDDEN, proj_size=3)


FOLDED: list[dict[str, Any]] = [
    {"heads": 2, "recurrent_bias": True},
    {"direction": "bidirectional", "heads": 2},
    {"layout": "BDT", "input_size": 3},
    {"layout": "TBD", "direction": "reverse"},
]


@pytest.mark.parametrize("options", FOLDED)
def test_a_folded_projection_is_the_projection(options: dict[str, Any]) -> None:
    """Without initial states R.g R.p is one product; with zeros for them both products are made."""
    sizes = {"hidden_size": HIDDEN, "projection_size": PROJECTED, "precision": "fp64"}
    kernel = minrnn_gen.compile({"model": "lstm_projected", **sizes, **options})
    interface = kernel.interface
    assert kernel.folded is not None

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    shapes = dict(zip(interface.recurrent_gates, interface.product_shapes, strict=True))
    R = {gate: drawn(*interface.directions, *shape) for gate, shape in shapes.items()}
    biases = {
        gate: drawn(*interface.directions, *shape[:2]) for gate, shape in shapes.items() if gate not in interface.unbiased
    }
    arguments: dict[str, Any] = {"lengths": torch.tensor([5, 3])}
    arguments |= {"recurrent_bias": biases} if interface.takes_recurrent_bias else {}
    arguments |= {"weight": drawn(interface.weight_rows, 3)} if interface.input_size else {}
    x = drawn(*interface.shape(interface.x_axes, 2, 5))
    zeros = {name: torch.zeros(interface.shape_of_state(name, 2), dtype=torch.float64) for name in interface.states}
    results = []
    for state in (None, zeros):
        y, final = wing.recurrence(kernel, x, R, state=state, **arguments)
        total = (y * torch.arange(y.numel()).reshape(y.shape)).sum() + final["h"].sum() + final["c"].square().sum()
        results.append((y, final, torch.autograd.grad(total, [x, *R.values(), *biases.values()])))
    torch.testing.assert_close(*results)


def test_only_a_linear_projection_is_folded() -> None:
    explained = minrnn_gen.compile({"model": "lstm_projected", "hidden_size": 64, "projection_size": 32, "precision": "bf16"})
    assert "multiply by R.i R.p, R.f R.p, R.z R.p, R.o R.p" in explained.explain()
    for model, options in ((TWO_ROUNDS, {}), (NORMED, {}), ("block_gru", {}), ("lstm_projected", {"recurrent_bias": True})):
        spec = {"model": model, "hidden_size": HIDDEN, "projection_size": PROJECTED, "precision": "fp32", **options}
        assert (minrnn_gen.compile(spec).folded is not None) == (model == "lstm_projected")


def test_a_folded_call_refuses_what_the_whole_one_does() -> None:
    sizes = {"hidden_size": HIDDEN, "projection_size": PROJECTED, "precision": "fp32"}
    kernel = minrnn_gen.compile({"model": "lstm_projected", **sizes})
    x, R = torch.randn(2, 5, 4, HIDDEN), torch.randn(*kernel.interface.R_shape)
    for wrong in (None, R.double()):
        with pytest.raises(BadInput, match=r"R (is missing|has dtype)"):
            wing.recurrence(kernel, x, wrong)
    zeros = {name: torch.zeros(kernel.interface.shape_of_state(name, 2)) for name in kernel.states}
    for wrong, state in itertools.product((R[:-1], R[:0], torch.cat((R, R[:PROJECTED])), R[None]), (None, zeros)):
        with pytest.raises(BadInput, match=r"R (has shape|is one array, but)"):
            wing.recurrence(kernel, x, wrong, state=state)
    with pytest.raises(BadInput, match="recurrent_bias"):
        wing.recurrence(kernel, x, R, recurrent_bias=torch.zeros(4 * HIDDEN))
