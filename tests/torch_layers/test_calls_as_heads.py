"""`vmap` over weights, and of gradients of weights: heads of one call, equal to one call after another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.needed import needed

import minrnn_gen

torch = pytest.importorskip("torch")
wing = needed("minrnn_gen.torch")
transformed = needed("minrnn_gen.torch.operators.transformed")

BATCH, TIME = 2, 4
TOLERANCE = {"rtol": 1e-9, "atol": 1e-10}
WEIGHTS = ("R", "weight", "bias", "recurrent_bias", "parameters")
SPECS: list[tuple[dict[str, Any], int]] = [
    ({"model": "min_gru"}, 2),
    ({"model": "lstm"}, 3),
    ({"model": "gru", "heads": 2, "direction": "bidirectional", "layout": "BDT", "recurrent_bias": True}, 3),
    ({"model": "lstm", "input_size": 3, "direction": "bidirectional", "layout": "TBD"}, 3),
    ({"model": "min_gru", "input_size": 3}, 5),
    ({"model": "selective", "state_size": 3, "groups": 2, "direction": "bidirectional"}, 3),
    ({"model": "layer_norm_lstm"}, 2),
    ({"model": "peephole_lstm", "direction": "reverse"}, 5),
]


def drawn(interface: Any, calls: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return the arrays of a call, or of as many calls."""

    def draw(shape: tuple[int, ...]) -> Any:
        return torch.randn(*calls, *shape, dtype=torch.float64) / 2

    arrays: dict[str, Any] = {
        "x": draw(interface.shape(interface.x_axes, BATCH, TIME)),
        "bias": draw((interface.weight_rows,)),
        "parameters": {name: draw(interface.shape_of_parameter(name)) for name in interface.parameters},
        "state": {name: draw(interface.shape_of_state(name, BATCH)) for name in interface.states},
        "shared": {name: draw(interface.shape(interface.shared_axes, BATCH, TIME)) for name in interface.shared},
    }
    arrays |= {"weight": draw((interface.weight_rows, interface.input_size))} if interface.input_size else {}
    arrays |= {"R": draw(interface.R_shape)} if interface.recurrent_gates else {}
    arrays |= {"recurrent_bias": draw(interface.recurrent_bias_shape)} if interface.takes_recurrent_bias else {}
    return {name: value for name, value in arrays.items() if not isinstance(value, dict) or value}


def call_of(arrays: Any, number: int) -> Any:
    return torch.utils._pytree.tree_map(lambda array: array[number], arrays)


def assert_stacked(together: Any, by_call: list[Any]) -> None:
    leaves = torch.utils._pytree.tree_leaves
    for number, expected in enumerate(by_call):
        for array, own in zip(leaves(together), leaves(expected), strict=True):
            torch.testing.assert_close(array[number], own, **TOLERANCE)


@pytest.mark.matrix_full
@pytest.mark.parametrize(("spec", "count"), SPECS)
def test_calls_are_heads(spec: Mapping[str, Any], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(transformed, "_one_by_one", None)
    kernel = minrnn_gen.compile({"hidden_size": 4, "precision": "fp64", **spec})
    resets = torch.rand(BATCH, TIME) < 0.3

    def loss(arrays: dict[str, Any]) -> Any:
        y, final = wing.recurrence(kernel, **arrays, resets=resets)
        return y.square().sum() + sum((state**3).sum() for state in final.values())

    def of_weights(weights: dict[str, Any], others: dict[str, Any]) -> Any:
        return torch.func.grad(lambda weights: loss({**weights, **others}))(weights)

    calls, along = drawn(kernel.interface, (count,)), drawn(kernel.interface)

    def second(arrays: dict[str, Any]) -> Any:
        return torch.func.jvp(torch.func.grad(loss), (arrays,), (along,))[1]

    for run in (torch.func.grad(loss), second):
        assert_stacked(torch.func.vmap(run)(calls), [run(call_of(calls, number)) for number in range(count)])
    weights = {name: array for name, array in along.items() if name in WEIGHTS}
    others = {name: array for name, array in calls.items() if name not in WEIGHTS}
    expected = [of_weights(weights, call_of(others, number)) for number in range(count)]
    assert_stacked(torch.func.vmap(of_weights, (None, 0))(weights, others), expected)
