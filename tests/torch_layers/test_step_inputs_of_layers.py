"""Inputs X.* of one value per step in recurrences and layers: as those of every channel, with gradients that are sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.everyday import one_in
from support.input_cells import GAPS, with_step_inputs

import minrnn_gen
import minrnn_gen.torch as wing
from minrnn_gen.errors import BadInput

BATCH, TIME, HIDDEN, INPUTS = 2, 4, 6, 3
OF_STEPS = with_step_inputs(GAPS, "gap")
MARKS = torch.tensor([[False, True, False, False], [False, False, True, False]])


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize(("layout", "altering"), one_in(3, [("TBD", "holds"), ("BTD", None), ("BDT", "reset_states")]))
def test_a_recurrence_is_that_of_the_value_in_every_channel(layout: str, altering: str | None) -> None:
    keys = {"hidden_size": HIDDEN, "precision": "fp64", "layout": layout}
    of_steps, of_channels = (minrnn_gen.compile({"model": model, **keys}) for model in (OF_STEPS, GAPS))
    interface = of_channels.interface
    shape = interface.shape(interface.channel_axes, BATCH, TIME)
    leaves = {"x": drawn(*interface.shape(interface.x_axes, BATCH, TIME)), "gap": drawn(BATCH, TIME), "mask": drawn(*shape)}
    arguments: dict[str, Any] = {"R": drawn(*interface.R_shape) / 3, "parameters": {"w": drawn(HIDDEN)}}
    if altering == "holds":
        arguments["holds"] = MARKS
    if altering == "reset_states":
        arguments |= {"resets": MARKS, "reset_states": {name: drawn(BATCH, HIDDEN) for name in interface.states}}
    dy, results = drawn(*interface.y_shape(BATCH, TIME)), []
    for kernel in (of_steps, of_channels):
        at = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
        gap = at["gap"]
        if kernel is of_channels:
            gap = {"BTD": gap[:, :, None], "TBD": gap.T[:, :, None], "BDT": gap[:, None]}[layout].expand(shape)
        inputs = {"gap": gap, "mask": at["mask"], "added": torch.zeros(shape, dtype=torch.float64)}
        y, _ = wing.recurrence(kernel, at["x"], inputs=inputs, **arguments)
        (y * dy).sum().backward()
        results.append([y, *(leaf.grad for leaf in at.values())])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(("batch_first", "bidirectional"), one_in(2, [(True, False), (False, True)]))
def test_a_layer_is_that_of_the_value_in_every_channel(batch_first: bool, bidirectional: bool) -> None:
    options: dict[str, Any] = {"batch_first": batch_first, "bidirectional": bidirectional, "dtype": torch.float64}
    of_steps, of_channels = (wing.RNN(model, INPUTS, HIDDEN, 2, **options) for model in (OF_STEPS, GAPS))
    of_channels.load_state_dict(of_steps.state_dict())
    lead = (BATCH, TIME) if batch_first else (TIME, BATCH)
    x, gap = drawn(*lead, INPUTS), drawn(*lead).requires_grad_()
    others = (2, HIDDEN) if bidirectional else (HIDDEN,)
    inputs: dict[str, Any] = {"mask": drawn(*lead, *others), "added": drawn(*lead, *others)}
    wide = gap[(..., *(None for _ in others))].expand(*lead, *others)
    results = []
    for layer, given in ((of_steps, gap), (of_channels, wide)):
        y, _ = layer(x, inputs={**inputs, "gap": given})
        results.append([y, *torch.autograd.grad(y.square().sum(), [gap, layer.weight_ih_l0, layer.weight_hh_l1])])
    torch.testing.assert_close(*results)
    if bidirectional:
        return
    first = {name: values[:, 0] for name, values in inputs.items()}
    torch.testing.assert_close(
        of_steps.step(x[:, 0], inputs={**first, "gap": gap[:, 0]})[0],
        of_channels.step(x[:, 0], inputs={**first, "gap": wide[:, 0]})[0],
    )
    with pytest.raises(BadInput, match=r"inputs\['gap'\] has shape \[2, 4, 6\]; \[2, 4\] is expected"):
        of_steps(x, inputs={**inputs, "gap": wide})


@pytest.mark.matrix_full
def test_torch_compile_takes_them() -> None:
    kernel = minrnn_gen.compile({"model": OF_STEPS, "hidden_size": HIDDEN, "precision": "fp64"})
    interface = kernel.interface
    x, gap = drawn(*interface.shape(interface.x_axes, BATCH, TIME)), drawn(BATCH, TIME).requires_grad_()
    arguments = {"R": drawn(*interface.R_shape) / 3, "parameters": {"w": drawn(HIDDEN)}}
    zeros = torch.zeros(BATCH, TIME, HIDDEN, dtype=torch.float64)

    def loss(gap: Any) -> Any:
        y, _ = wing.recurrence(kernel, x, inputs={"gap": gap, "mask": zeros + 0.5, "added": zeros}, **arguments)
        return y.square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    found, expected = (torch.autograd.grad(function(gap), gap)[0] for function in (compiled, loss))
    torch.testing.assert_close(found, expected)
