"""The layers of docs/how-to/state-space.md beside the equations of their papers, in NumPy, step by step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.needed import needed

import minrnn_gen

torch = pytest.importorskip("torch")
needed("minrnn_gen.torch")

PAGE = Path(__file__).parents[2] / "docs/how-to/state-space.md"
# States of single precision: some 50 steps are remembered, each of which rounds once.
ALLOWED = 64 * 2.0**-24


def layers() -> dict[str, Any]:
    """Return what the page defines."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block.partition("torch.manual_seed")[0], str(PAGE), "exec"), names)
    return names


def of_layer(layer: Any) -> dict[str, Any]:
    return {name: value.detach().double().numpy() for name, value in layer.named_parameters()}


def discrete(turn: Any, B: Any, C: Any, D: Any, x: Any) -> Any:
    """Return y of h[t] = turn h[t-1] + B x[t], y[t] = Re(C h[t]) + D x[t]."""
    h, y = np.zeros((len(x), len(turn)), complex), np.empty_like(x)
    for step in range(x.shape[1]):
        h = turn * h + x[:, step] @ B.T
        y[:, step] = (h @ C.T).real + D * x[:, step]
    return y


def lru(p: dict[str, Any], x: Any) -> Any:
    """The unit of arXiv 2303.06349, as defined there."""
    turn = np.exp(-np.exp(p["nu_log"]) + 1j * np.exp(p["theta_log"]))
    B = np.exp(p["gamma_log"])[:, None] * (p["B_re"] + 1j * p["B_im"])
    return discrete(turn, B, p["C_re"] + 1j * p["C_im"], p["D"], x)


def s5(p: dict[str, Any], x: Any) -> Any:
    """The zero-order hold of arXiv 2208.04933, with states and their conjugates as states."""
    poles, step = p["Lambda_re"] + 1j * p["Lambda_im"], np.exp(p["log_step"][:, 0])
    turn = np.exp(poles * step)
    B = ((turn - 1) / poles)[:, None] * (p["B"] @ [1, 1j])
    C = p["C"] @ [1, 1j]
    both = (np.concatenate(pair, axis) for pair, axis in (((turn, turn.conj()), 0), ((B, B.conj()), 0), ((C, C.conj()), 1)))
    return discrete(*both, p["D"], x)


@pytest.mark.parametrize("name", ["LRU", "S5SSM"])
def test_a_layer_is_its_paper(name: str) -> None:
    torch.manual_seed(0)
    layer = {
        "LRU": lambda of: of["LRU"](3, 5, 0.5, 0.98),
        "S5SSM": lambda of: of["S5SSM"](3, torch.complex(torch.full((5,), -0.5), 3.0 * torch.arange(5))),
    }[name](layers())
    x = torch.randn(2, 60, 3, requires_grad=True)
    y = layer(x)
    wide = x.detach().double().numpy()
    expected = {"LRU": lru, "S5SSM": s5}[name](of_layer(layer), wide)
    assert np.abs(y.detach().numpy() - expected).max() <= ALLOWED * np.abs(expected).max()
    gradients = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
    # A derivative along a direction of all parameters, by differences in double precision.
    directions = {each: np.random.default_rng(1).normal(size=tuple(value.shape)) for each, value in layer.named_parameters()}
    ends = []
    for sign in (1, -1):
        moved = {each: value + sign * 1e-5 * directions[each] for each, value in of_layer(layer).items()}
        ends.append((({"LRU": lru, "S5SSM": s5}[name](moved, wide)) ** 2).sum())
    along = sum(
        float((gradient.double().numpy() * directions[each]).sum())
        for each, gradient in zip(directions, gradients[1:], strict=True)
    )
    assert abs(along - (ends[0] - ends[1]) / 2e-5) <= 1e-4 * abs(along)


def test_the_cell_has_the_states_of_the_layer() -> None:
    torch.manual_seed(0)
    layer = layers()["LRU"](3, 5, 0.5, 0.98)
    p = of_layer(layer)
    x = np.random.default_rng(0).normal(size=(2, 60, 3))
    kernel = minrnn_gen.compile({"model": "complex_lru", "hidden_size": 5, "input_size": 3, "precision": "fp64", "gpu": "h200"})
    parameters = {
        "nu": p["nu_log"],
        "theta": np.exp(p["theta_log"]),
        "gamma": np.exp(p["gamma_log"]),
        "c": np.ones(5),
        "d": np.zeros(5),
    }
    _, states = kernel(x, weight=np.concatenate((p["B_re"], p["B_im"])), parameters=parameters, all_states=True)
    y = states["re"] @ p["C_re"].T - states["im"] @ p["C_im"].T + p["D"] * x
    np.testing.assert_allclose(y, lru(p, x), rtol=0, atol=1e-12)
