"""Cells with n values per channel, each beside its step in torch, written by hand; and calls of them by a loop over time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import logsigmoid, relu, silu, softplus

Tensors = dict[str, Any]
Step = Callable[[Tensors, Tensors, Tensors, Tensors], tuple[Any, Tensors]]
"""Gives (y, the states) of W.*, S.* (of each channel), parameters and the states before; what lacks the axis n has it of 1."""


@dataclass(frozen=True)
class VectorCell:
    """A cell file's mapping, and what one step of it is."""

    file: Mapping[str, Any]
    step: Step

    def spec(self, **keys: Any) -> dict[str, Any]:
        return {"model": {"name": "written", **self.file}, "precision": "fp64", "gpu": "h200", **keys}


def selective_step(w: Tensors, s: Tensors, p: Tensors, before: Tensors) -> tuple[Any, Tensors]:
    dt = softplus(w["dt"])
    h = torch.exp(-torch.exp(p["a"]) * dt) * before["h"] + dt * w["x"] * s["b"]
    return ((s["c"] * h).sum(-1, keepdim=True) + p["d"] * w["x"]) * silu(w["z"]), {"h": h}


def two_kinds_step(w: Tensors, s: Tensors, p: Tensors, before: Tensors) -> tuple[Any, Tensors]:
    keep = torch.sigmoid(w["f"])
    g = keep * before["g"] + (1 - keep) * w["x"]
    h = keep * before["h"] + g * 0 + w["x"] * s["b"] + p["u"]
    return (h * s["b"] * before["h"]).sum(-1, keepdim=True) * g + before["g"] * p["v"], {"g": g, "h": h}


def delta_rule_step(w: Tensors, s: Tensors, p: Tensors, before: Tensors) -> tuple[Any, Tensors]:
    error = w["v"] - (s["k"] * before["h"]).sum(-1, keepdim=True)
    h = torch.sigmoid(p["keep"]) * before["h"] + torch.sigmoid(w["rate"]) * error * s["k"]
    return (s["q"] * h).sum(-1, keepdim=True), {"h": h}


def chosen_step(w: Tensors, s: Tensors, p: Tensors, before: Tensors) -> tuple[Any, Tensors]:
    keep = torch.where(s["b"] > 0, torch.sigmoid(p["u"]), torch.sigmoid(w["f"]))
    h = keep * before["h"] + relu(s["b"] * w["x"]) + torch.abs(w["x"])
    y = torch.maximum(h, p["u"]).sum(-1, keepdim=True) / (1 + s["b"].abs().sum(-1, keepdim=True))
    return torch.where(w["x"] > 0, y, torch.log(torch.abs(w["f"])) * w["x"]), {"h": h}


def one_of_many_step(w: Tensors, _: Tensors, p: Tensors, before: Tensors) -> tuple[Any, Tensors]:
    v = w["x"] + p["a"]
    share = torch.exp(w["x"] * p["a"]) / torch.exp(w["x"] * p["a"]).sum(-1, keepdim=True)
    h = torch.exp(logsigmoid(w["f"])) * before["h"] + share * v
    alone = (w["f"] + p["a"]).sum(-1, keepdim=True)
    return (v * h).sum(-1, keepdim=True) + v.sum(-1, keepdim=True) * p["d"] - alone * w["x"], {"h": h}


CELLS = {
    "selective": VectorCell(
        {
            "states": {"h": "n"},
            "shared": ["b", "c"],
            "parameters": {"a": "n", "d": 1},
            "equations": "dt = softplus(W.dt)\nh[t] = exp(-exp(a) * dt) * h[t-1] + dt * W.x * S.b",
            "output": "(sum(S.c * h[t]) + d * W.x) * silu(W.z)",
        },
        selective_step,
    ),
    "scalar and vector states": VectorCell(
        {
            "states": {"g": 1, "h": "n"},
            "shared": ["b"],
            "parameters": {"u": "n", "v": 1},
            "equations": "k = sigmoid(W.f)\ng[t] = k * g[t-1] + (1 - k) * W.x\nh[t] = k * h[t-1] + W.x * S.b + u",
            "output": "sum(h[t] * S.b * h[t-1]) * g[t] + g[t-1] * v",
        },
        two_kinds_step,
    ),
    "delta rule": VectorCell(
        {
            "states": {"h": "n"},
            "shared": ["k", "q"],
            "parameters": {"keep": "n"},
            "equations": "e = W.v - sum(S.k * h[t-1])\nh[t] = sigmoid(keep) * h[t-1] + sigmoid(W.rate) * e * S.k",
            "output": "sum(S.q * h[t])",
        },
        delta_rule_step,
    ),
    "chosen": VectorCell(
        {
            "states": {"h": "n"},
            "shared": ["b"],
            "parameters": {"u": "n"},
            "equations": (
                "keep = where(S.b > 0, sigmoid(u), sigmoid(W.f))\nh[t] = keep * h[t-1] + relu(S.b * W.x) + abs(W.x)\n"
                "y = sum(max(h[t], u)) / (1 + sum(abs(S.b)))"
            ),
            "output": "where(W.x > 0, y, log(abs(W.f)) * W.x)",
        },
        chosen_step,
    ),
    "one of many": VectorCell(
        {
            "states": {"h": "n"},
            "parameters": {"a": "n", "d": 1},
            "equations": (
                "v = W.x + a\ne = exp(W.x * a)\nshare = e / sum(e)\nh[t] = exp(logsigmoid(W.f)) * h[t-1] + share * v"
            ),
            "output": "sum(v * h[t]) + sum(v) * d - sum(W.f + a) * W.x",
        },
        one_of_many_step,
    ),
}


@dataclass(frozen=True)
class Drawn:
    """Arrays of one call in fp64, layout BTD, of a single direction."""

    x: Any
    parameters: Tensors
    shared: Tensors
    state: Tensors

    def torch(self) -> Drawn:
        """The same as tensors that record gradients."""

        def tensor(array: Any) -> Any:
            return torch.tensor(array, requires_grad=True)

        named = (
            {name: tensor(array) for name, array in arrays.items()} for arrays in (self.parameters, self.shared, self.state)
        )
        return Drawn(tensor(self.x), *named)

    def leaves(self) -> list[Any]:
        return [self.x, *self.parameters.values(), *self.shared.values(), *self.state.values()]


def drawn(kernel: Any, rows: int, time: int, sequences: int | None = None, seed: int = 0) -> Drawn:
    random, interface = np.random.default_rng(seed), kernel.interface
    return Drawn(
        random.normal(size=(rows, time, *interface.shape(interface.gate_axes, 0, 0))),
        {name: random.normal(size=interface.shape_of_parameter(name)) for name in interface.parameters},
        {name: random.normal(size=interface.shape(interface.shared_axes, rows, time)) for name in interface.shared},
        {
            name: random.normal(size=interface.shape_of_state(name, rows if sequences is None else sequences))
            for name in interface.states
        },
    )


def looped(
    cell: VectorCell, kernel: Any, given: Drawn, *, resets: Any = None, lengths: Any = None, cu_seqlens: Any = None
) -> tuple[Any, Tensors]:
    """Return y and the final states by a loop in torch, over arrays of one direction in layout BTD."""
    if cu_seqlens is not None:
        parts = []
        for sequence, (begin, end) in enumerate(itertools.pairwise(cu_seqlens)):
            part = Drawn(
                given.x[:, begin:end],
                given.parameters,
                {name: values[:, begin:end] for name, values in given.shared.items()},
                {name: state[sequence : sequence + 1] for name, state in given.state.items()},
            )
            parts.append(looped(cell, kernel, part, resets=None if resets is None else resets[:, begin:end]))
        return torch.cat([y for y, _ in parts], 1), {
            name: torch.cat([state[name] for _, state in parts]) for name in kernel.states
        }
    interface = kernel.interface
    wide = interface.vector_states
    parameters = {
        name: one if name in interface.vector_parameters else one[..., None] for name, one in given.parameters.items()
    }
    states = {name: state if name in wide else state[..., None] for name, state in given.state.items()}
    rows, time = given.x.shape[:2]
    y = [torch.zeros(rows, interface.hidden_size, dtype=torch.float64) for _ in range(time)]
    repeated = {
        name: values.repeat_interleave(interface.hidden_size // interface.groups, 2) for name, values in given.shared.items()
    }
    for t in reversed(range(time)) if interface.runs_reversed[0] else range(time):
        if resets is not None:
            cut = torch.tensor(resets[:, t])[:, None, None]
            inside = True if lengths is None else torch.tensor(t < np.asarray(lengths))[:, None, None]
            states = {name: torch.where(cut & inside, torch.zeros_like(state), state) for name, state in states.items()}
        gates = {name: given.x[:, t, index][..., None] for index, name in enumerate(interface.gates)}
        y_t, after = cell.step(gates, {name: values[:, t] for name, values in repeated.items()}, parameters, states)
        y_t = y_t[..., 0]
        if lengths is not None:
            inside = torch.tensor(t < np.asarray(lengths))
            y_t = torch.where(inside[:, None], y_t, torch.zeros_like(y_t))
            after = {name: torch.where(inside[:, None, None], state, states[name]) for name, state in after.items()}
        y[t], states = y_t, {name: state + torch.zeros_like(states[name]) for name, state in after.items()}
    final = {name: states[name] if name in wide else states[name][..., 0] for name in kernel.states}
    return torch.stack(y, 1) if time else given.x.new_zeros(rows, 0, interface.hidden_size), final
